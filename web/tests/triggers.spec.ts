// Schedules, triggers and invoke tokens in a browser.
import { createHmac } from "node:crypto";
import { accessible, expect, test } from "./fixtures";

async function agent(service: { call(method: string, path: string, body?: object): Promise<Record<string, any>> }, name: string): Promise<string> {
  return (await service.call("POST", "/agents", { name, prompt: "Do it.", model: "scripted/noop" })).id;
}

test("a schedule is made, run by hand, changed, paused and deleted", async ({ reader, service }) => {
  const id = await agent(service, "scheduled");
  await reader.goto(`${service.url}/#/agents/${id}`);
  await reader.getByRole("link", { name: "Schedules" }).click();
  await expect(reader.getByRole("heading", { name: "No schedules yet" })).toBeVisible();
  await reader.getByRole("button", { name: "New schedule" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByRole("textbox", { name: "Times" }).fill("61 * * * *");
  await dialog.getByLabel("Input", { exact: true }).fill("Look around.");
  await dialog.getByLabel("Title").fill("Morning round");
  await dialog.getByRole("button", { name: "Create" }).click();
  await expect(dialog.getByRole("alert")).toContainText("cron");
  await dialog.getByRole("button", { name: "weekdays at 7" }).click();
  await dialog.getByLabel("Time zone").fill("Europe/Zurich");
  await dialog.getByText("Session, environment, limits").click();
  await dialog.getByLabel("Cost").fill("0.5");
  await accessible(reader);
  await dialog.getByRole("button", { name: "Create" }).click();
  const card = reader.getByRole("listitem").filter({ hasText: "Morning round" });
  await expect(card).toContainText("0 7 * * MON-FRI");
  await expect(card).toContainText("next in");
  const [made] = (await service.call("GET", `/agents/${id}/schedules`)).data;
  expect(made).toMatchObject({ time_zone: "Europe/Zurich", input: "Look around.", limits: { cost_micros: 500_000 } });

  await card.getByRole("button", { name: "Run now" }).click();
  const run = card.getByRole("list", { name: "Runs" }).getByRole("listitem");
  await expect(run).toContainText("completed");
  await expect(run).toContainText("manual");

  await card.getByRole("button", { name: "Edit" }).click();
  await dialog.getByLabel("Input", { exact: true }).fill("Look around twice.");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(card).toContainText("Look around twice.");
  await card.getByRole("button", { name: "Pause" }).click();
  await expect(card.getByText("paused")).toBeVisible();
  await card.getByRole("button", { name: "Resume" }).click();
  await expect(card).toContainText("next in");

  await run.getByRole("link", { name: "session" }).click();
  await expect(reader.getByRole("heading", { name: "Morning round" })).toBeVisible();
  await reader.goBack();
  await card.getByRole("button", { name: "Delete" }).click();
  await card.getByRole("button", { name: "Confirm delete" }).click();
  await expect(reader.getByRole("heading", { name: "No schedules yet" })).toBeVisible();
});

test("a trigger is made, starts a session with its secret, and is turned off", async ({ reader, service }) => {
  const id = await agent(service, "hooked");
  await reader.goto(`${service.url}/#/agents/${id}/triggers`);
  await expect(reader.getByRole("heading", { name: "No triggers yet" })).toBeVisible();
  await reader.getByRole("button", { name: "New trigger" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByLabel("Sender").selectOption("generic");
  await dialog.getByLabel("Title").fill("From outside");
  await dialog.getByRole("button", { name: "Create" }).click();
  const secret = (await dialog.getByRole("region", { name: "Trigger secret" }).textContent())?.trim() ?? "";
  const address = (await dialog.getByRole("region", { name: "Trigger address" }).textContent())?.trim() ?? "";
  await accessible(reader);
  await dialog.getByRole("button", { name: "Done" }).click();
  await expect(reader.getByText(secret)).toHaveCount(0);

  const send = async (message: string) => {
    const body = JSON.stringify({ text: "Somebody called." });
    const stamp = Math.floor(Date.now() / 1000);
    const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
    const signature = createHmac("sha256", key).update(`${message}.${stamp}.${body}`).digest("base64");
    const headers = { "content-type": "application/json", "webhook-id": message, "webhook-timestamp": `${stamp}`, "webhook-signature": `v1,${signature}` };
    return (await fetch(address, { method: "POST", headers, body })).status;
  };
  expect(await send("one")).toBe(202);
  const card = reader.getByRole("listitem").filter({ hasText: "From outside" });
  await card.getByRole("button", { name: "Turn off" }).click();
  await expect(card.getByText("off", { exact: true })).toBeVisible();
  expect(await send("two")).toBe(404);
  await card.getByRole("button", { name: "New secret" }).click();
  await card.getByRole("button", { name: "Confirm replace" }).click();
  await expect(reader.getByRole("region", { name: "Trigger secret" })).not.toHaveText(secret);
  await reader.keyboard.press("Escape");
  await reader.getByRole("link", { name: "Sessions", exact: true }).click();
  await expect(reader.getByRole("row").filter({ hasText: "From outside" })).toContainText("completed");
});

test("a trigger of GitHub says what starts a session, and refuses what it cannot read", async ({ reader, service }) => {
  const id = await agent(service, "mentioned");
  await reader.goto(`${service.url}/#/agents/${id}/triggers`);
  await reader.getByRole("button", { name: "New trigger" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByLabel("Mention").fill("@acme-bot");
  await dialog.getByLabel("Events").fill("issues opened");
  await dialog.getByRole("button", { name: "Create" }).click();
  await expect(dialog.getByRole("alert")).toContainText("Line 1 of the events");
  await dialog.getByLabel("Events").fill("issues: opened, labeled");
  await dialog.getByRole("button", { name: "Create" }).click();
  await dialog.getByRole("button", { name: "Done" }).click();
  const card = reader.getByRole("listitem").filter({ hasText: "@acme-bot in a comment" });
  await expect(card).toContainText("issues: opened, labeled");
  await card.getByRole("button", { name: "Edit" }).click();
  await dialog.getByLabel("Allowed authors").selectOption("anyone");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(card).toContainText("by anyone");
  const [stored] = (await service.call("GET", `/agents/${id}/hooks`)).data;
  expect(stored).toMatchObject({ mention: "acme-bot", authors: "anyone", react: [{ event: "issues", actions: ["opened", "labeled"] }] });
});

test("an invoke token is made, starts a session at the URL, and is revoked", async ({ reader, service }) => {
  const id = await agent(service, "invoked");
  await reader.goto(`${service.url}/#/agents/${id}/invoke`);
  await expect(reader.getByRole("heading", { name: "No invoke tokens yet" })).toBeVisible();
  await reader.getByRole("button", { name: "New token" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByLabel("Name").fill("the form");
  await dialog.getByText("Session, environment, limits").click();
  await dialog.getByLabel("Title").fill("From the form");
  await accessible(reader);
  await dialog.getByRole("button", { name: "Create" }).click();
  const token = (await dialog.getByRole("region", { name: "Invoke token" }).textContent())?.trim() ?? "";
  const address = (await dialog.getByRole("region", { name: "Invoke URL" }).textContent())?.trim() ?? "";
  await accessible(reader);
  await dialog.getByRole("button", { name: "Done" }).click();
  await expect(reader.getByText(token)).toHaveCount(0);

  const invoke = async () => {
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
    return (await fetch(address, { method: "POST", headers, body: JSON.stringify({ input: "Look around." }) })).status;
  };
  expect(await invoke()).toBe(201);
  const card = reader.getByRole("listitem").filter({ hasText: "the form" });
  await card.getByRole("button", { name: "Revoke" }).click();
  await card.getByRole("button", { name: "Confirm revoke" }).click();
  await expect(reader.getByRole("heading", { name: "No invoke tokens yet" })).toBeVisible();
  expect(await invoke()).toBe(401);
  await reader.getByRole("link", { name: "Sessions", exact: true }).click();
  await expect(reader.getByRole("row").filter({ hasText: "From the form" })).toContainText("completed");
});
