// Files of a sandbox in a browser: browsed, read as text, downloaded, and the message while the sandbox is
// hibernated.
import { readFileSync } from "node:fs";
import { test as bare } from "@playwright/test";
import { accessible, expect, test } from "./fixtures";
import { KEY, Service } from "./service";

const bash = (command: string) => [{ tools: [{ tool: "bash", input: { command } }] }, { text: "There." }];
const MADE = [
  "mkdir -p src/deep",
  "printf 'first\\nsecond\\n' > src/deep/words.txt",
  "seq 1 60000 > src/long.txt",
  "printf '\\000\\001\\377' > src/picture.bin",
  "touch src/nothing",
  "ln -s deep src/way",
  "ln -s deep/words.txt src/same",
  "mkfifo src/pipe",
  "printf -- '--- a\\n+++ b\\n@@ -1 +1 @@\\n-old line\\n+new line\\n' > src/change.diff",
].join(" && ");

test("files are walked through, read as text and downloaded", async ({ reader, service }) => {
  const session = await service.play(bash(MADE), { title: "It has files" });
  await service.until(session, "idle");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  await reader.getByRole("link", { name: "Files" }).click();
  await reader.getByRole("button", { name: "src/" }).click();
  await expect(reader.getByRole("row").filter({ hasText: "long.txt" })).toContainText("341 KiB");
  await expect(reader.getByText("8 entries")).toBeVisible();
  // The table is below the path, not beside it.
  const places = [reader.getByRole("navigation", { name: "Path" }), reader.getByRole("table")].map((part) =>
    part.evaluate((element) => {
      const { top, bottom } = element.getBoundingClientRect();
      return { top, bottom };
    }),
  );
  const [path, table] = await Promise.all(places);
  expect(table!.top).toBeGreaterThanOrEqual(path!.bottom);
  // Neither a file nor a directory: there is no button to open it.
  await expect(reader.getByRole("button", { name: "pipe" })).toHaveCount(0);
  await accessible(reader);

  await reader.getByRole("button", { name: "deep/" }).click();
  await reader.getByRole("button", { name: "words.txt" }).click();
  await expect(reader.getByRole("region", { name: "Text of words.txt" })).toHaveText("first\nsecond\n");
  const kept = reader.waitForEvent("download");
  await reader.getByRole("button", { name: "Download" }).click();
  const file = await kept;
  expect(file.suggestedFilename()).toBe("words.txt");
  expect(readFileSync((await file.path()) ?? "", "utf8")).toBe("first\nsecond\n");
  expect(reader.url()).not.toContain(KEY);

  await reader.getByRole("button", { name: "src", exact: true }).click();
  await reader.getByRole("button", { name: "long.txt" }).click();
  await expect(reader.getByText("of which the first 256 KiB are shown")).toBeVisible();
  await reader.goBack();
  await reader.getByRole("button", { name: "picture.bin" }).click();
  await expect(reader.getByText("This file is not text.")).toBeVisible();
  await reader.goBack();
  await reader.getByRole("button", { name: "nothing" }).click();
  await expect(reader.getByText("The file is empty.")).toBeVisible();
  await reader.goBack();
  await reader.getByRole("button", { name: "same" }).click();
  await expect(reader.getByRole("region", { name: "Text of same" })).toHaveText("first\nsecond\n");
  await reader.goBack();
  await reader.getByRole("button", { name: "way" }).click();
  await reader.getByRole("button", { name: "Open directory" }).click();
  await expect(reader.getByRole("button", { name: "words.txt" })).toBeVisible();
  await reader.goBack();
  await reader.goBack();
  await reader.getByRole("button", { name: "change.diff" }).click();
  await expect(reader.locator("[data-diff=add]").filter({ hasText: "+new line" })).toBeVisible();

  // A missing directory shows an error with a retry.
  await reader.goto(`${service.url}/#/sessions/${session}/files?path=%2Fworkspace%2Fgone`);
  await expect(reader.getByRole("alert")).toContainText("No such file");
  await service.call("PUT", `/sessions/${session}/files?path=gone%2Fnew`, {});
  await reader.getByRole("button", { name: "Try again" }).click();
  await expect(reader.getByRole("button", { name: "new" })).toBeVisible();

  await service.call("POST", `/sessions/${session}/archive`);
  await reader.goto(`${service.url}/#/sessions/${session}/files`);
  await expect(reader.getByRole("heading", { name: "No files" })).toBeVisible();
});

test("nothing is made for a session without a sandbox until someone asks", async ({ reader, service }) => {
  const session = await service.play([{ text: "I need no sandbox." }], { title: "Without" });
  await service.until(session, "idle");
  await reader.goto(`${service.url}/#/sessions/${session}/files`);
  await expect(reader.getByRole("heading", { name: "No sandbox yet" })).toBeVisible();
  expect((await service.call("GET", `/sessions/${session}`)).sandbox).toBeNull();
  await reader.getByRole("button", { name: "Start sandbox" }).click();
  await expect(reader.getByRole("heading", { name: "Empty directory" })).toBeVisible();
});

bare("a sandbox that sleeps is woken when a person says so", async ({ page }) => {
  const service = await Service.start({ SOJOURN_SANDBOX_FREEZE_AFTER_SECONDS: "0.5", SOJOURN_SANDBOX_HIBERNATE_AFTER_SECONDS: "1.5" });
  try {
    const session = await service.play(bash("echo kept > here.txt"), { title: "It sleeps" });
    await service.until(session, "idle");
    await expect.poll(async () => (await service.call("GET", `/sessions/${session}`)).sandbox?.state).toBe("hibernated");
    await page.addInitScript((key) => sessionStorage.setItem("sojourn.key", key), KEY);
    await page.goto(`${service.url}/#/sessions/${session}/files`);
    await expect(page.getByRole("heading", { name: "The sandbox is hibernated" })).toBeVisible();
    await accessible(page);
    await page.getByRole("button", { name: "Restore sandbox" }).click();
    await expect(page.getByRole("status").filter({ hasText: "Restoring the sandbox" })).toBeVisible();
    await page.getByRole("button", { name: "here.txt" }).click();
    await expect(page.getByRole("region", { name: "Text of here.txt" })).toHaveText("kept\n");
  } finally {
    await service.end();
  }
});
