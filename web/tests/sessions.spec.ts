// Sessions in a browser: watched, steered, asked, answered, canceled, delivered to webhooks.
import { expect, test } from "./fixtures";
import { Receiver } from "./service";

test("a session is watched live through a restart of the service", async ({ reader, service }) => {
  const steps = Array.from({ length: 12 }, (_, at) => ({
    text: `working on part ${at + 1}`,
    tools: [{ tool: "glob", input: { pattern: `part-${at + 1}` } }],
    delay_ms: 400,
  }));
  const session = await service.play([...steps, { text: "all parts are done" }], { title: "Through a restart" });
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.getByText("working on part 2", { exact: true })).toBeVisible();
  await expect(reader.getByText("Live", { exact: true })).toBeVisible();

  await service.down();
  await expect(reader.getByText("Reconnecting…")).toBeVisible();
  await service.up();
  await expect(reader.getByText("Live", { exact: true })).toBeVisible();
  await expect(timeline.getByText("all parts are done").first()).toBeVisible();
  await service.until(session, "idle");

  // The page shows exactly the log: no event twice, none missing, in order.
  const log = await service.call("GET", `/sessions/${session}/events?limit=500`);
  await reader.getByRole("link", { name: "Events" }).click();
  await expect(reader.getByText(`${log.data.length} of ${log.data.length} events`)).toBeVisible();
});

test("a running session is steered, and its turn is canceled", async ({ reader, service }) => {
  const session = await service.play([{ text: "slow", delay_ms: 60_000 }], { title: "Slow one" });
  await reader.goto(`${service.url}/#/sessions/${session}`);
  await expect(reader.getByText("The agent is working")).toBeVisible();
  const field = reader.getByLabel("Message to the agent");
  await field.fill("Please hurry.");
  await field.press("Enter");
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.getByText("Please hurry.")).toBeVisible();
  await expect(field).toHaveValue("");

  await reader.getByRole("button", { name: "Cancel the turn" }).click();
  await expect(timeline.locator(".end").first()).toContainText("canceled");
  // This ended the turn of the message as well; the next message starts a new turn, without a script.
  await service.until(session, "idle");
  await field.fill("Now then.");
  await reader.getByRole("button", { name: "Send" }).click();
  await expect(timeline.locator(".end").last()).toContainText("completed");

  await reader.getByRole("button", { name: "Archive" }).click();
  await reader.getByRole("button", { name: "Confirm archive" }).click();
  await expect(reader.getByText("This session is archived.")).toBeVisible();
});

test("a failed turn is retried", async ({ reader, service }) => {
  const session = await service.play([{ text: "It is done.", fault: { kind: "refused" } }], { title: "Refused once" });
  await service.until(session, "failed");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.locator(".end")).toContainText("error");
  await reader.getByRole("button", { name: "Retry the turn" }).click();
  await expect(timeline.getByText("retried the turn")).toBeVisible();
  await expect(timeline.locator(".end").last()).toContainText("completed");
  await expect(timeline.getByText("It is done.").first()).toBeVisible();
  await expect(reader.getByRole("button", { name: "Retry the turn" })).toBeHidden();
  // It is one turn, also in the count.
  await expect(reader.getByText("1 turn", { exact: true })).toBeVisible();
});

test("what a sandbox asked of the network is shown with its reason", async ({ reader, service }) => {
  const command = "for at in 1 2 3; do curl -s https://refused.example/ || true; done";
  const session = await service.play([{ tools: [{ tool: "bash", input: { command } }] }, { text: "done" }], { title: "Refused" });
  await service.until(session, "idle");
  await reader.goto(`${service.url}/#/sessions/${session}/network`);
  const line = reader.getByRole("row", { name: /refused\.example/ });
  await expect(line).toContainText("host not allowed");
  await expect(line).toContainText("3");
});

test("a question is answered with one of its suggestions", async ({ reader, service }) => {
  const ask = { tool: "ask", input: { question: "Which colour?", options: ["Blue", "Green"] } };
  const session = await service.play([{ tools: [ask] }], { title: "It asks" });
  await service.until(session, "awaiting_input");
  await reader.goto(service.url);
  await reader.getByLabel("Status").selectOption("awaiting_input");
  await reader.getByRole("link", { name: "It asks" }).click();
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.getByText("The agent asks")).toBeVisible();
  await reader.getByRole("group", { name: "Suggested answers" }).getByRole("button", { name: "Green" }).click();
  await expect(timeline.locator(".message[data-role=user]").last()).toContainText("Green");
  await expect(reader.getByRole("group", { name: "Suggested answers" })).toBeHidden();
  await service.until(session, "idle");
});

test("a limit that ended a turn is shown, raised, removed, and the session goes on", async ({ reader, service }) => {
  const usage = { input_tokens: 900, output_tokens: 200 };
  const session = await service.play([{ text: "too much", tools: [{ tool: "glob", input: { pattern: "*" } }], usage }, { text: "never" }], {
    title: "Bounded",
    limits: { tokens: 1000 },
  });
  await service.until(session, "idle");
  await reader.goto(`${service.url}/#/sessions/${session}/details`);
  await expect(reader.getByText(/of 1,000/)).toBeVisible();
  await reader.getByRole("button", { name: "Change title or limits" }).click();
  await reader.getByRole("textbox", { name: "Tokens" }).fill("100000");
  await reader.getByRole("button", { name: "Save" }).click();
  await expect(reader.getByText(/of 100,000/)).toBeVisible();
  await reader.getByRole("button", { name: "Change title or limits" }).click();
  await reader.getByRole("textbox", { name: "Tokens" }).fill("");
  await reader.getByRole("button", { name: "Save" }).click();
  await expect(reader.getByText(/of 100,000/)).toBeHidden();
  expect((await service.call("GET", `/sessions/${session}`)).limits).toEqual({});
  await reader.getByRole("link", { name: "Timeline" }).click();
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.locator(".end").first()).toContainText("budget exceeded");
  await reader.getByLabel("Message to the agent").fill("Go on.");
  await reader.getByRole("button", { name: "Send" }).click();
  await expect(timeline.locator(".end").last()).toContainText("completed");
});

test("a webhook's deliveries are seen and sent again", async ({ reader, service }) => {
  const receiver = await Receiver.start();
  const session = await service.play([{ text: "first" }], { title: "Told" });
  await service.until(session, "idle");
  await reader.goto(`${service.url}/#/sessions/${session}/deliveries`);
  await expect(reader.getByText("No destinations yet")).toBeVisible();
  await reader.getByRole("button", { name: "Add a destination" }).click();
  await reader.getByLabel("URL").fill(receiver.url);
  await reader.getByRole("button", { name: "Add", exact: true }).click();
  await expect(reader.getByRole("region", { name: "Signing secret" })).toContainText("whsec_");
  await reader.getByRole("button", { name: "Done" }).click();
  await expect(reader.getByText("No deliveries yet.")).toBeVisible();

  await service.call("POST", `/sessions/${session}/messages`, { text: "again" });
  const delivered = reader.getByRole("row").filter({ hasText: "delivered" });
  await expect(delivered.first()).toBeVisible();
  // The message, the answer, the end of the turn.
  await expect.poll(() => receiver.deliveries.length).toBeGreaterThanOrEqual(3);
  const before = receiver.deliveries.length;
  await delivered.first().getByRole("button", { name: "Redeliver" }).click();
  // At least once: a delivery whose answer came too late is sent again too.
  await expect.poll(() => receiver.deliveries.length).toBeGreaterThan(before);
  const events = receiver.deliveries.map(({ body }) => body.eventId);
  expect(events.slice(0, before)).toContain(events[before]);
  receiver.stop();
});
