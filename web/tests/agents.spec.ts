// Agents and credentials in a browser.
import { expect, test } from "./fixtures";

test("an agent is edited, its revisions are compared, and an old one comes back", async ({ reader, service }) => {
  const made = await service.call("POST", "/agents", {
    name: "writer",
    prompt: "Write short sentences.\nBe kind.",
    model: "scripted/noop",
    limits: { tokens: 5000 },
  });
  await reader.goto(`${service.url}/#/agents/${made.id}`);
  await reader.getByRole("button", { name: "Edit" }).click();
  await reader.getByRole("textbox", { name: "Prompt" }).fill("Write long sentences.\nBe kind.");
  await reader.getByRole("button", { name: "Save as a new revision" }).click();
  await expect(reader.getByRole("listitem").filter({ hasText: "Revision 2" })).toContainText("active");
  const difference = reader.getByRole("region", { name: "Difference between the revisions" });
  await expect(difference.locator("[data-diff=cut]")).toHaveText("- Write short sentences.\n");
  await expect(difference.locator("[data-diff=add]")).toHaveText("+ Write long sentences.\n");

  await reader.getByRole("button", { name: "Activate" }).click();
  await expect(reader.getByRole("listitem").filter({ hasText: "Revision 1" })).toContainText("active");
  const now = await service.call("GET", `/agents/${made.id}`);
  expect([now.revision, now.limits.tokens]).toEqual([1, 5000]);
});

test("a refused agent says which field is wrong and keeps what was typed", async ({ reader, service }) => {
  await reader.goto(`${service.url}/#/agents`);
  await reader.getByRole("button", { name: "New agent" }).click();
  await reader.getByLabel("Name").fill("wrong");
  await reader.getByRole("textbox", { name: "Prompt" }).fill("Anything.");
  await reader.getByLabel("Model", { exact: true }).fill("no-provider");
  await reader.getByRole("button", { name: "Create agent" }).click();
  await expect(reader.getByRole("alert")).toContainText("Field: model");
  await expect(reader.getByRole("textbox", { name: "Prompt" })).toHaveValue("Anything.");
  await reader.keyboard.press("Escape");
  await expect(reader.getByRole("dialog")).toBeHidden();
});

test("a provider key is added, rotated and deleted, and never shown again", async ({ reader, service }) => {
  await reader.goto(`${service.url}/#/credentials`);
  await expect(reader.getByText("No provider keys yet")).toBeVisible();
  await reader.getByRole("button", { name: "Add a key" }).click();
  await reader.getByRole("textbox", { name: "Key" }).fill("sk-first-key-abcd");
  await reader.getByLabel("Name").fill("main");
  await reader.getByLabel("Further headers").fill("Anthropic-Beta: files-api\nx-gateway: secret-of-the-gateway\n");
  await reader.getByRole("button", { name: "Add the key" }).click();
  const card = reader.getByRole("listitem").filter({ hasText: "main" });
  await expect(card).toContainText("…abcd");
  await expect(card).toContainText("default");
  await expect(card).toContainText("headers: anthropic-beta, x-gateway");
  expect(await reader.content()).not.toContain("secret-of-the-gateway");
  await card.getByRole("button", { name: "Rotate" }).click();
  await reader.getByRole("textbox", { name: "Key" }).fill("sk-second-key-wxyz");
  await reader.getByRole("dialog").getByRole("button", { name: "Rotate" }).click();
  await expect(card).toContainText("…wxyz");
  expect(await reader.content()).not.toContain("sk-second-key");
  await card.getByRole("button", { name: "Delete" }).click();
  await card.getByRole("button", { name: "Confirm delete" }).click();
  await expect(card).toBeHidden();
});
