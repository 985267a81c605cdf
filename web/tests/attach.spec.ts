// Files of messages in a browser: attached, uploaded, shown in the timeline, downloaded, and refused.
import { readFileSync } from "node:fs";
import type { Locator, Page } from "@playwright/test";
import { accessible, expect, test } from "./fixtures";
import type { Json, Service } from "./service";

/** 40 by 30 pixels. */
const PNG = Buffer.from(
  "iVBORw0KGgoAAAANSUhEUgAAACgAAAAeCAIAAADRv8uKAAAALElEQVR42u3NMQ0AAAgDsEnBERrwbwIZcDTp39T0iYjFYrFYLBaLxWKx+G+8X+3PLrL6fDgAAAAASUVORK5CYII=",
  "base64",
);
const SVG = `<svg xmlns="http://www.w3.org/2000/svg" onload="window.hit=1"><script>window.hit=2</script></svg>`;
const png = (name: string, buffer = PNG) => ({ name, mimeType: "image/png", buffer });
const text = (name: string, content: string, mimeType = "text/plain") => ({ name, mimeType, buffer: Buffer.from(content) });

type Chosen = ReturnType<typeof png>;

async function attach(within: Page | Locator, page: Page, files: Chosen[]): Promise<void> {
  const chooser = page.waitForEvent("filechooser");
  await within.getByRole("button", { name: "Attach files" }).click();
  await (await chooser).setFiles(files);
}

/** Opens an idle session; returns its id and the parts of its page. */
async function open(page: Page, service: Service, title: string) {
  const session = await service.play([{ text: "Ready." }], { title });
  await service.until(session, "idle");
  await page.goto(`${service.url}/#/sessions/${session}`);
  const timeline = page.getByRole("region", { name: "Timeline" });
  await expect(timeline.locator(".end")).toHaveCount(1);
  return {
    session,
    timeline,
    field: page.getByLabel("Message to the agent"),
    send: page.getByRole("button", { name: "Send", exact: true }),
    attached: page.getByRole("list", { name: "Attached files" }),
  };
}

async function messages(service: Service, session: string): Promise<Json[]> {
  return (await service.call("GET", `/sessions/${session}/events?type=user.message`)).data;
}

/** Waits until the browser has decoded the image. */
async function decoded(image: Locator): Promise<void> {
  await expect.poll(() => image.evaluate((element) => (element as HTMLImageElement).naturalWidth)).toBe(40);
}

test("an image and a document are attached, sent and shown in the timeline", async ({ reader, service }) => {
  const { session, timeline, field, send, attached } = await open(reader, service, "With a picture");
  await attach(reader, reader, [png("photo.png"), text("notes.txt", "two words\n"), text("drawing.svg", SVG, "image/svg+xml")]);
  await expect(attached.getByRole("listitem")).toHaveCount(3);
  await accessible(reader);
  await field.fill("Look at it.");
  await send.click();
  const message = timeline.locator(".message[data-role=user]").filter({ hasText: "Look at it." });
  const image = message.getByAltText(`photo.png, ${PNG.length} bytes`);
  await decoded(image);
  await expect(attached).toBeHidden();
  await expect(field).toHaveValue("");
  // An SVG may contain script, so it is a document whatever its name is.
  await expect(message.locator("img")).toHaveCount(1);
  await expect(message.getByRole("listitem").filter({ hasText: "drawing.svg" })).toContainText(`${SVG.length} bytes`);
  await accessible(reader);

  const notes = message.getByRole("listitem").filter({ hasText: "notes.txt" });
  await expect(notes).toContainText("text/plain");
  const download = reader.waitForEvent("download");
  await notes.getByRole("button", { name: "Download notes.txt" }).click();
  const file = await download;
  expect(file.suggestedFilename()).toBe("notes.txt");
  expect(readFileSync((await file.path()) ?? "", "utf8")).toBe("two words\n");

  await image.click();
  const dialog = reader.getByRole("dialog", { name: "photo.png" });
  await decoded(dialog.locator("img"));
  await expect(dialog.getByRole("button", { name: "Download photo.png" })).toBeVisible();
  await accessible(reader);
  await reader.keyboard.press("Escape");
  await expect(dialog).toBeHidden();

  const { content } = (await messages(service, session)).at(-1)!.body;
  const files = content.filter(({ type }: Json) => type !== "text");
  expect(files.map(({ type, name }: Json) => [type, name])).toEqual([
    ["image", "photo.png"],
    ["document", "notes.txt"],
    ["document", "drawing.svg"],
  ]);
  expect(await reader.evaluate(() => (window as unknown as { hit?: number }).hit)).toBeUndefined();
});

test("an upload that fails loses neither the text nor the other files", async ({ reader, service }) => {
  const { session, timeline, field, send, attached } = await open(reader, service, "Damaged");
  await attach(reader, reader, [png("broken.png", PNG.subarray(0, 40)), png("whole.png"), text("empty.txt", "")]);
  await expect(reader.getByRole("alert")).toContainText("empty.txt is not attached: it is empty.");
  await field.fill("Both, please.");
  await send.click();
  const item = (name: string) => attached.getByRole("listitem").filter({ hasText: name });
  await expect(item("broken.png")).toContainText("Not uploaded:");
  await expect(item("whole.png")).toContainText("uploaded");
  await expect(reader.getByRole("alert")).toContainText("Nothing was sent, because 1 file was not uploaded.");
  await expect(field).toHaveValue("Both, please.");
  expect(await messages(service, session)).toHaveLength(1);
  await accessible(reader);

  await item("broken.png").getByRole("button", { name: "Remove broken.png" }).click();
  await attach(reader, reader, [text("late.txt", "late")]);
  // No connection for one upload.
  await reader.route("**/v3/files?*", (route) => route.abort(), { times: 1 });
  await send.click();
  await expect(item("late.txt")).toContainText("Not uploaded: The service cannot be reached.");
  await expect(field).toHaveValue("Both, please.");
  await send.click();
  const message = timeline.locator(".message[data-role=user]").filter({ hasText: "Both, please." });
  await decoded(message.getByAltText(/^whole\.png/));
  await expect(message.getByRole("listitem").filter({ hasText: "late.txt" })).toContainText("4 bytes");
  await expect(attached).toBeHidden();
  // The file that was stored before the failure is not uploaded again.
  const files: Json[] = (await service.call("GET", "/files?limit=500")).data;
  expect(files.filter(({ name }) => name === "whole.png")).toHaveLength(1);
});

test("a file that cannot be read is named with the reason", async ({ reader, service }) => {
  const { timeline, send } = await open(reader, service, "Unreadable");
  await reader.route("**/v3/files/*/content", (route) => route.fulfill({ status: 200, body: SVG, contentType: "image/svg+xml" }), { times: 1 });
  await attach(reader, reader, [png("other.png")]);
  await send.click();
  await expect(timeline.getByText(`other.png, ${PNG.length} bytes cannot be shown: The browser cannot decode it.`)).toBeVisible();
  await expect(timeline.locator("img")).toHaveCount(0);

  const error = { type: "not_found", message: "no such file", request_id: "req_1" };
  await reader.route("**/v3/files/*/content", (route) => route.fulfill({ status: 404, json: { error } }));
  await reader.reload();
  await expect(timeline.getByText(`other.png, ${PNG.length} bytes cannot be shown: no such file.`)).toBeVisible();
});

test("images are attached by drag and drop and from the clipboard", async ({ reader, service }) => {
  const { timeline, field, send, attached } = await open(reader, service, "Dropped");
  const transfer = await reader.evaluateHandle((base64) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
    return transfer;
  }, PNG.toString("base64"));
  await field.dispatchEvent("dragover", { dataTransfer: transfer });
  await field.dispatchEvent("drop", { dataTransfer: transfer });
  await expect(attached.getByRole("listitem")).toHaveCount(1);
  await field.evaluate((element, clipboardData) => {
    element.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  }, transfer);
  await expect(attached.getByRole("listitem")).toHaveCount(2);
  await attached.getByRole("button", { name: "Remove dropped.png" }).first().click();
  await expect(attached.getByRole("listitem")).toHaveCount(1);
  // A message may have files and no text.
  await send.click();
  await decoded(timeline.getByAltText(/^dropped\.png/));
});

test("a session is created with an image", async ({ reader, service }) => {
  await service.call("POST", "/agents", { name: "viewer", prompt: "Look.", model: "scripted/inline" });
  await reader.reload();
  await reader.getByRole("button", { name: "New session" }).first().click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByLabel("Agent").selectOption("viewer · scripted/inline");
  await dialog.getByRole("textbox", { name: "Input" }).fill("What is this?");
  await attach(dialog, reader, [png("first.png")]);
  await expect(dialog.getByRole("listitem").filter({ hasText: "first.png" })).toBeVisible();
  await accessible(reader);
  await dialog.getByRole("button", { name: "Create session" }).click();
  const message = reader.getByRole("region", { name: "Timeline" }).locator(".message[data-role=user]");
  await decoded(message.getByAltText(/^first\.png/));
  await expect(message).toContainText("What is this?");
});

test("an image that a tool read is shown, and one that the model refused is named", async ({ reader, service }) => {
  const { timeline, field, send } = await open(reader, service, "Refused");
  const command = `echo ${PNG.toString("base64")} | base64 -d > shot.png`;
  const script = [
    { tools: [{ tool: "bash", input: { command } }] },
    { tools: [{ tool: "read", input: { path: "shot.png" } }] },
    { fault: { kind: "file_refused" }, text: "I go on without it." },
  ];
  await field.fill(JSON.stringify({ script }));
  await send.click();
  await decoded(timeline.locator(".tool").filter({ hasText: "read" }).getByAltText(/^shot\.png/));
  const notice = timeline.locator(".notice");
  await expect(notice.filter({ hasText: "The model refused files" })).toBeVisible();
  await expect(notice.filter({ hasText: "1 file is not shown to the model any more" })).toContainText("shot.png");
  await expect(timeline.getByText("I go on without it.").first()).toBeVisible();
});
