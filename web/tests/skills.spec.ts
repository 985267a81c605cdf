// Skills in a browser: uploaded, filtered, downloaded, deleted, and chosen for an agent.
import { execFileSync } from "node:child_process";
import type { Page } from "@playwright/test";
import { accessible, expect, test } from "./fixtures";
import { KEY, skillArchive } from "./service";

async function upload(page: Page, buffer: Buffer): Promise<void> {
  const chooser = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Upload a tar archive" }).click();
  await (await chooser).setFiles({ name: "skill.tar", mimeType: "application/x-tar", buffer });
}

const stored = (page: Page) => page.locator("main").getByRole("status");
const card = (page: Page, ...texts: string[]) =>
  texts.reduce((cards, text) => cards.filter({ hasText: text }), page.getByRole("main").getByRole("listitem"));

test("a skill is uploaded, filtered, downloaded, and deleted unless a session uses it", async ({ reader, service }) => {
  // Other tests store skills, too.
  for (const { id } of (await service.call("GET", "/skills")).data) await service.call("DELETE", `/skills/${id}`);
  await reader.getByRole("link", { name: "Skills", exact: true }).click();
  await expect(reader.getByRole("heading", { name: "No skills yet" })).toBeVisible();
  await accessible(reader);

  // The same files are the same version.
  const first = skillArchive("pdf", "Reads PDFs.\n<img src=x onerror='window.hit=1'> \u202Etxt.exe");
  await upload(reader, first);
  await expect(stored(reader)).toHaveText("Stored as version 1 of pdf.");
  await upload(reader, first);
  await expect(card(reader, "pdf")).toHaveCount(1);
  await upload(reader, skillArchive("pdf", "Reads and fills PDFs."));
  await expect(stored(reader)).toHaveText("Stored as version 2 of pdf.");
  await upload(reader, skillArchive("mail", "Writes mails."));
  await expect(stored(reader)).toHaveText("Stored as version 1 of mail.");
  await expect(card(reader)).toHaveCount(3);
  await expect(card(reader).first()).toContainText("mail");
  const old = card(reader, "pdf", "version 1");
  await expect(old).toContainText("2 files");
  await expect(old).toContainText(/\d KiB/);
  await expect(old).toContainText("Reads PDFs. <img src=x onerror='window.hit=1'> ⟨U+202E⟩txt.exe");
  await accessible(reader);
  await reader.setViewportSize({ width: 390, height: 780 });
  expect(await reader.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
  await accessible(reader);
  await reader.setViewportSize({ width: 1280, height: 800 });

  // A refusal names the problem, and the list stays.
  await upload(reader, Buffer.from("no archive"));
  await expect(reader.getByRole("alert")).toContainText("the body is not a tar archive");
  await expect(card(reader)).toHaveCount(3);
  await upload(reader, Buffer.alloc((30 << 20) + 1));
  await expect(reader.getByRole("alert")).toContainText("more than 30 MiB");

  // The filter is in the address.
  const filter = reader.getByRole("search").getByLabel("Name");
  await filter.fill("pdf");
  await filter.press("Enter");
  await expect(card(reader)).toHaveCount(2);
  await reader.reload();
  await expect(card(reader)).toHaveCount(2);
  await filter.fill("none");
  await filter.press("Enter");
  await expect(reader.getByRole("heading", { name: "No skill has this name" })).toBeVisible();
  await filter.fill("pdf");
  await filter.press("Enter");

  const downloaded = reader.waitForEvent("download");
  await card(reader, "version 2").getByRole("button", { name: "Download" }).click();
  const file = await downloaded;
  expect(file.suggestedFilename()).toBe("pdf-2.tar");
  const text = execFileSync("tar", ["-xOf", (await file.path()) ?? "", "pdf/SKILL.md"], { encoding: "utf8" });
  expect(text).toContain("Reads and fills PDFs.");
  expect(reader.url()).not.toContain(KEY);

  const agent = await service.call("POST", "/agents", { name: "with pdf", prompt: "", model: "scripted/inline", skills: [{ skill: "pdf" }] });
  const { session } = await service.call("POST", "/sessions", { agent: agent.id, input: { script: [{ text: "Done." }] } });
  const remove = async (version: string) => {
    await card(reader, version).getByRole("button", { name: "Delete" }).click();
    await card(reader, version).getByRole("button", { name: "Confirm delete" }).click();
  };
  await remove("version 2");
  await expect(card(reader, "version 2").getByRole("alert")).toContainText("a session uses this version");
  await remove("version 1");
  await expect(card(reader)).toHaveCount(1);
  await service.call("DELETE", `/sessions/${session.id}`);
  await remove("version 2");
  await expect(card(reader, "version 2").getByRole("alert")).toContainText("the agent `with pdf` needs this version");
  await service.call("DELETE", `/agents/${agent.id}`);
  await remove("version 2");
  await expect(reader.getByRole("heading", { name: "No skill has this name" })).toBeVisible();
  expect((await service.call("GET", "/skills")).data.map(({ name }: { name: string }) => name)).toEqual(["mail"]);
});

test("an agent gets skills, one a line, and keeps them", async ({ reader, service }) => {
  await reader.goto(`${service.url}/#/skills`);
  for (const description of ["Makes slides.", "Makes better slides."]) await upload(reader, skillArchive("slides", description));
  await upload(reader, skillArchive("sheets", "Makes sheets."));
  await expect(stored(reader)).toHaveText("Stored as version 1 of sheets.");

  await reader.goto(`${service.url}/#/agents`);
  await reader.getByRole("button", { name: "New agent" }).click();
  const dialog = reader.getByRole("dialog");
  const field = dialog.getByLabel("Skills", { exact: true });
  await dialog.getByLabel("Name", { exact: true }).fill("presenter");
  await dialog.getByRole("textbox", { name: "Prompt" }).fill("Present.");
  await dialog.getByLabel("Model", { exact: true }).fill("scripted/noop");
  await dialog.getByText("Tools, options and limits").click();
  await field.fill("sheets\nslides@two");
  await dialog.getByRole("button", { name: "Create agent" }).click();
  await expect(dialog.getByRole("alert")).toHaveText("Line 2 of the skills is not a name or name@version.");
  await field.fill("sheets\nslides@9");
  await dialog.getByRole("button", { name: "Create agent" }).click();
  await expect(dialog.getByRole("alert")).toContainText("Field: skills[1]");
  await field.fill(" sheets@latest\n\nslides@1 ");
  await accessible(reader);
  await dialog.getByRole("button", { name: "Create agent" }).click();
  await expect(dialog).toBeHidden();

  const [made] = (await service.call("GET", "/agents")).data.filter(({ name }: { name: string }) => name === "presenter");
  const skills = [{ skill: "sheets", version: "latest" }, { skill: "slides", version: 1 }];
  expect(made.skills).toEqual(skills);
  await reader.goto(`${service.url}/#/agents/${made.id}`);
  await expect(reader.getByRole("definition").filter({ hasText: "sheets, slides@1" })).toBeVisible();

  // A session has a version of each.
  const { session } = await service.call("POST", "/sessions", { agent: made.id, input: "Present." });
  await reader.goto(`${service.url}/#/sessions/${session.id}/details`);
  await expect(reader.getByRole("definition").filter({ hasText: "sheets@1, slides@1" })).toBeVisible();
  await reader.goBack();

  // A form that is saved without a change keeps them; an empty field removes them.
  await reader.getByRole("button", { name: "Edit" }).click();
  await expect(field).toHaveValue("sheets\nslides@1");
  await dialog.getByRole("button", { name: "Save as a new revision" }).click();
  await expect(dialog).toBeHidden();
  expect((await service.call("GET", `/agents/${made.id}`)).skills).toEqual(skills);
  await reader.getByRole("button", { name: "Edit" }).click();
  await dialog.getByText("Tools, options and limits").click();
  await field.fill("");
  await dialog.getByRole("button", { name: "Save as a new revision" }).click();
  await expect(dialog).toBeHidden();
  const difference = reader.getByRole("region", { name: "Difference between the revisions" });
  await expect(difference.locator("[data-diff=cut]")).toHaveText(["- skill: sheets\n", "- skill: slides@1\n"]);
  await expect(reader.getByRole("term").filter({ hasText: "Skills" })).toHaveCount(0);
  expect((await service.call("GET", `/agents/${made.id}`)).skills ?? []).toEqual([]);
});
