// The pages of an organization: webhooks, keys, environments, usage, the audit log.
import { expect, test } from "./fixtures";
import { Receiver } from "./service";

test("a webhook is added, tested, and a failed delivery is sent again", async ({ reader, service }) => {
  const receiver = await Receiver.start();
  try {
    await reader.goto(`${service.url}/#/webhooks`);
    await expect(reader.getByRole("heading", { name: "No webhooks yet" })).toBeVisible();
    await reader.getByRole("button", { name: "Add a webhook" }).click();
    const dialog = reader.getByRole("dialog");
    await dialog.getByLabel("URL").fill(receiver.url);
    await dialog.getByLabel("Event types").fill("webhook.test, turn.completed");
    await dialog.getByRole("button", { name: "Add" }).click();
    await expect(dialog.getByRole("region", { name: "Signing secret" })).toContainText("whsec_");
    await dialog.getByRole("button", { name: "Done" }).click();

    await reader.getByRole("button", { name: "Send a test" }).click();
    const delivery = reader.getByRole("row").filter({ hasText: "webhook.test" });
    await expect(delivery.getByText("delivered")).toBeVisible();
    expect(receiver.deliveries.map(({ body }) => body.type)).toEqual(["webhook.test"]);
    await delivery.getByRole("button", { name: "webhook.test" }).click();
    await expect(reader.getByRole("list", { name: "Attempts" })).toContainText("attempt 1");

    receiver.fails = true;
    await service.play([{ text: "done" }]);
    const turn = reader.getByRole("row").filter({ hasText: "turn.completed" });
    await expect(turn.getByText("failed")).toBeVisible();
    receiver.fails = false;
    await reader.getByLabel("Status").selectOption("failed");
    await expect(delivery).toHaveCount(0);
    await turn.getByRole("button", { name: "Redeliver" }).click();
    await reader.getByLabel("Status").selectOption("delivered");
    await expect(turn.getByText("delivered")).toBeVisible();
    expect(new Set(receiver.deliveries.map(({ id }) => id)).size).toBe(2);

    await reader.getByRole("button", { name: "New secret" }).click();
    await reader.getByRole("button", { name: "Confirm replace" }).click();
    await expect(reader.getByRole("region", { name: "Signing secret" })).toContainText("whsec_");
    await reader.keyboard.press("Escape");
    await reader.getByRole("button", { name: "Turn off" }).click();
    await expect(reader.getByRole("button", { name: "Turn on" })).toBeVisible();
    await reader.getByRole("button", { name: "Delete" }).click();
    await reader.getByRole("button", { name: "Confirm delete" }).click();
    await expect(reader.getByRole("heading", { name: "No webhooks yet" })).toBeVisible();
  } finally {
    receiver.stop();
  }
});

test("an address that a webhook may not have is refused in words", async ({ reader, service }) => {
  await reader.goto(`${service.url}/#/webhooks`);
  await reader.getByRole("button", { name: "Add a webhook" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByLabel("URL").fill("http://169.254.169.254/latest");
  await dialog.getByRole("button", { name: "Add" }).click();
  await expect(dialog.getByRole("alert")).toContainText("Field: url");
});

test("a key is made, shown once, replaced and revoked", async ({ reader, service }) => {
  await reader.goto(`${service.url}/#/keys`);
  await reader.getByRole("button", { name: "New key" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByLabel("Name").fill("the back-end");
  await dialog.getByRole("button", { name: "read-only" }).click();
  await dialog.getByLabel("Expires after days").fill("30");
  await dialog.getByRole("button", { name: "Create key" }).click();
  const shown = dialog.getByRole("region", { name: "API key" });
  await expect(shown).toContainText("sjk_live_");
  const secret = (await shown.textContent())?.trim() ?? "";
  await dialog.getByRole("button", { name: "Done" }).click();
  await expect(reader.getByText(secret)).toHaveCount(0);
  const may = async () => (await fetch(`${service.url}/v3/sessions`, { headers: { "x-api-key": secret } })).status;
  expect(await may()).toBe(200);

  const card = reader.getByRole("listitem").filter({ hasText: "the back-end" });
  await expect(card).toContainText("sessions:read agents:read usage:read");
  await card.getByRole("button", { name: "Rotate" }).click();
  await card.getByRole("button", { name: "Confirm replace" }).click();
  await expect(reader.getByRole("region", { name: "API key" })).toContainText("sjk_live_");
  await reader.keyboard.press("Escape");
  await expect(card).toHaveCount(2);
  await card.last().getByRole("button", { name: "Revoke" }).click();
  await card.last().getByRole("button", { name: "Confirm revoke" }).click();
  await expect(card.last().getByText("revoked")).toBeVisible();
  await expect.poll(may).toBe(401);
});

test("an environment is made, its secret kept, and its network changed", async ({ reader, service }) => {
  await reader.goto(`${service.url}/#/environments`);
  await reader.getByRole("button", { name: "New environment" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByLabel("Name").fill("github");
  await dialog.getByLabel("Memory").fill("1Gi");
  await dialog.getByLabel("Network").fill("api.github.com GET,POST /repos/acme\nnot a rule at all");
  await dialog.getByRole("button", { name: "Create" }).click();
  await expect(dialog.getByRole("alert")).toContainText("Line 2 of the network");
  await dialog.getByLabel("Network").fill("api.github.com GET,POST /repos/acme\nregistry.example:8443");
  await dialog.getByRole("button", { name: "Add a secret" }).click();
  await dialog.getByLabel("Variable", { exact: true }).fill("GITHUB_TOKEN");
  await dialog.getByLabel("Allowed hosts").fill("api.github.com");
  await dialog.getByLabel("Value").fill("a-value-of-the-test");
  await dialog.getByRole("button", { name: "Create" }).click();
  const card = reader.getByRole("listitem").filter({ hasText: "github" });
  await expect(card).toContainText("secret GITHUB_TOKEN for api.github.com");
  await expect(card).toContainText("registry.example:8443");
  expect(await reader.content()).not.toContain("a-value-of-the-test");

  await card.getByRole("button", { name: "Edit" }).click();
  await expect(dialog.getByLabel("Network")).toHaveValue("api.github.com GET,POST /repos/acme\nregistry.example:8443");
  await dialog.getByLabel("Network").fill("api.github.com");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(card).not.toContainText("registry.example");
  const stored = (await service.call("GET", "/environments")).data.find(({ name }: { name: string }) => name === "github");
  expect(stored.secrets).toEqual([
    { name: "GITHUB_TOKEN", hosts: ["api.github.com"], headers: ["authorization"], query_parameters: [] },
  ]);
  expect(stored.config).toMatchObject({ memory: "1Gi", network: { allow: [{ host: "api.github.com" }] } });
});

test("usage is summed up by model, and the audit log says who did what", async ({ reader, service }) => {
  const session = await service.play([{ text: "one" }]);
  await service.until(session, "idle");
  await reader.goto(`${service.url}/#/usage`);
  await expect(reader.getByRole("img", { name: /Tokens by day, 28 days/ })).toBeVisible();
  await expect(reader.getByRole("cell", { name: "scripted/inline" })).toBeVisible();
  await reader.getByRole("combobox", { name: "By", exact: true }).selectOption("agent");
  await expect(reader.getByRole("cell", { name: "inline", exact: true })).toBeVisible();
  await reader.getByLabel("Measure").selectOption("cost");
  await expect(reader.getByRole("img", { name: /Cost by day/ })).toBeVisible();

  await service.call("POST", "/keys", { name: "for the audit", scopes: ["sessions:read"] });
  await reader.getByRole("link", { name: "Audit" }).click();
  const act = reader.getByRole("row").filter({ hasText: "for the audit" });
  await expect(act).toContainText("key.created");
  await expect(act).toContainText("bootstrap key");
  await reader.getByLabel("Action").fill("environment.*");
  await reader.getByLabel("Action").press("Enter");
  await expect(act).toHaveCount(0);
});

test("the list of sessions is live, by itself and through a restart", async ({ reader, service }) => {
  const mark = reader.locator(".head").getByRole("status");
  await expect(mark).toHaveText("Live");
  const asked: string[] = [];
  reader.on("request", (request) => asked.push(request.url()));
  const session = await service.play([{ text: "slow", delay_ms: 1_500 }], { title: "Seen at once" });
  const row = reader.getByRole("row").filter({ hasText: "Seen at once" });
  await expect(row.getByText("running")).toBeVisible();
  await expect(row.getByText("idle")).toBeVisible();
  expect(asked.filter((url) => url.includes("/v3/sessions"))).toEqual([]);

  await service.down();
  await expect(mark).toHaveText("Reconnecting…");
  await service.up();
  await service.call("PATCH", `/sessions/${session}`, { title: "Changed meanwhile" });
  await expect(reader.getByRole("link", { name: "Changed meanwhile" })).toBeVisible();
  await expect(mark).toHaveText("Live");
  await service.call("DELETE", `/sessions/${session}`);
  await expect(reader.getByRole("link", { name: "Changed meanwhile" })).toHaveCount(0);
});
