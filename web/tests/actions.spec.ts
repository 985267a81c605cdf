// Custom tools in a browser: results from the timeline and from the list of pending actions.
// With SOJOURN_SCREENSHOTS set, the forms are stored in docs/screenshots.
import type { Page } from "@playwright/test";
import type { Json } from "./service";
import { accessible, expect, test } from "./fixtures";

async function picture(page: Page, name: string): Promise<void> {
  if (process.env.SOJOURN_SCREENSHOTS) await page.screenshot({ path: `../docs/screenshots/action-${name}-light.png` });
}

const TOOL = {
  type: "custom",
  name: "ask_weather",
  description: "The weather of a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

const SCRIPT = [
  { text: "I ask for both.", tools: ["Paris", "Rome"].map((city) => ({ tool: "ask_weather", input: { city } })) },
  { text: "Take an umbrella to Rome." },
];

test("a turn that waits is answered in its timeline and in the list of all", async ({ reader, service }) => {
  const session = await service.play(SCRIPT, { title: "Umbrella", tools: [TOOL] });
  await service.until(session, "awaiting_input");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const open = reader.getByRole("region", { name: "Waits for you" });
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(open.getByRole("listitem")).toHaveCount(2);
  await expect(timeline.getByText("Waits for 2 answers")).toBeVisible();
  await expect(timeline.locator(".tool[data-state=waiting]")).toHaveCount(2);
  await accessible(reader);

  const rome = open.getByRole("listitem").filter({ hasText: "Rome" });
  await rome.getByLabel("Result of ask_weather").fill("Rain.");
  await rome.getByRole("button", { name: "Send result" }).click();
  await expect(open.getByRole("listitem")).toHaveCount(1);

  const link = reader.getByRole("link", { name: /^Pending/ });
  await expect(link).toHaveText("Pending1");
  await link.click();
  const paris = reader.getByRole("listitem").filter({ hasText: session });
  await paris.getByLabel("Result of ask_weather").fill("The service is away.");
  await paris.getByLabel("The call failed").check();
  await accessible(reader);
  await paris.getByRole("button", { name: "Send result" }).click();
  await expect(reader.getByText("Nothing waits for you")).toBeVisible();

  await reader.goto(`${service.url}/#/sessions/${session}`);
  await expect(timeline.locator(".end")).toContainText("completed");
  await expect(timeline.getByText("Take an umbrella to Rome.", { exact: true })).toBeVisible();
  await expect(timeline.locator(".tool[data-state=failed]")).toHaveCount(1);
  await expect(timeline.locator(".tool[data-state=ok]")).toHaveCount(1);
  const results: Json[] = (await service.call("GET", `/sessions/${session}/events?type=tool.result`)).data;
  expect(results.map(({ body }) => body.output).sort()).toEqual(["Rain.", "The service is away."]);
});

test("a turn that waits is canceled", async ({ reader, service }) => {
  const session = await service.play(SCRIPT, { title: "No answer", tools: [TOOL] });
  await service.until(session, "awaiting_input");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  await reader.getByRole("button", { name: "Cancel the turn" }).click();
  await expect(reader.getByRole("region", { name: "Timeline" }).locator(".end")).toContainText("canceled");
  await expect(reader.getByRole("region", { name: "Waits for you" })).toBeHidden();
});

test("the form of an agent keeps its custom tools and refuses what is no list", async ({ reader, service }) => {
  const tools = ["bash", TOOL];
  const made = await service.call("POST", "/agents", { name: "forecaster", prompt: "Play.", model: "scripted/inline", tools });
  await reader.goto(`${service.url}/#/agents/${made.id}`);
  await expect(reader.getByText("bash, ask_weather (custom)")).toBeVisible();
  await reader.getByRole("button", { name: "Edit" }).click();
  await reader.getByText("Tools, options and limits").click();
  const custom = reader.getByRole("textbox", { name: "Custom tools" });
  const written = await custom.inputValue();
  await custom.fill("weather");
  await reader.getByRole("button", { name: "Save as a new revision" }).click();
  await expect(reader.getByRole("alert")).toContainText("not a JSON list");
  await custom.fill(written.replace("The weather of a city.", "The weather of a city, now."));
  await reader.getByRole("button", { name: "Save as a new revision" }).click();
  await expect(reader.getByRole("dialog")).toBeHidden();
  const now = await service.call("GET", `/agents/${made.id}`);
  expect(now.tools).toEqual(["bash", { ...now.tools[1], ...TOOL, description: "The weather of a city, now." }]);
});

test("a call is approved, allowed for the session, and denied with words", async ({ reader, service }) => {
  const command = (command: string) => ({ tools: [{ tool: "bash", input: { command } }] });
  const script = [command("echo one"), command("echo two"), command("echo two"), command("rm -rf x"), { text: "Done." }];
  const permissions = [{ tool: "bash", policy: "ask" }];
  const session = await service.play(script, { title: "Careful", permissions });
  await service.until(session, "awaiting_input");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const open = reader.getByRole("region", { name: "Waits for you" });
  const card = (text: string) => open.getByRole("listitem").filter({ hasText: text });
  await expect(card("echo one")).toContainText("Asked by the rule: ask bash");
  // The timeline stays at its end when it becomes smaller, as it does when the form appears.
  const timeline = reader.getByRole("region", { name: "Timeline" });
  const end = timeline.getByText("Waits for an answer");
  await expect(end).toBeInViewport();
  await reader.setViewportSize({ width: 1280, height: 700 });
  await expect(end).toBeInViewport({ ratio: 1 });
  await reader.setViewportSize({ width: 1280, height: 800 });
  await expect(end).toBeInViewport({ ratio: 1 });
  await accessible(reader);
  await picture(reader, "approve");
  await card("echo one").getByRole("button", { name: "Approve" }).click();
  await card("echo two").getByLabel("Allow").selectOption({ label: "for the rest of the session: allow bash echo two" });
  await card("echo two").getByRole("button", { name: "Approve" }).click();
  const last = card("rm -rf x");
  await last.getByLabel("Words for the agent, if bash is rejected").fill("Keep the files.");
  await last.getByRole("button", { name: "Reject" }).click();
  await expect(timeline.locator(".end")).toContainText("completed");
  await expect(timeline.locator(".tool[data-state=ok]")).toHaveCount(3);
  await expect(timeline.locator(".tool").last()).toContainText("rejected by");
  await accessible(reader);
  const results: Json[] = (await service.call("GET", `/sessions/${session}/events?type=tool.result`)).data;
  expect(results.map(({ body }) => body.outcome)).toEqual(["ran", "ran", "ran", "not_run"]);
  expect(results[3]!.body.output).toContain("Keep the files.");
});

test("questions are answered with options and words", async ({ reader, service }) => {
  const options = [{ label: "staging", description: "Nobody sees it." }, { label: "production" }];
  const questions = [{ question: "Where to?", header: "Target", options }, { question: "When?" }];
  const script = [{ tools: [{ tool: "ask", input: { questions } }] }, { text: "Done." }];
  const session = await service.play(script, { title: "Asking", ask: { mode: "wait" } });
  await service.until(session, "awaiting_input");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const open = reader.getByRole("region", { name: "Waits for you" });
  const answer = open.getByRole("button", { name: "Answer" });
  await expect(answer).toBeDisabled();
  await open.getByLabel("production").check();
  await open.getByLabel("staging").check();
  await expect(open.getByLabel("production")).not.toBeChecked();
  await open.getByLabel("Your words for: When?").fill("At noon.");
  await accessible(reader);
  await picture(reader, "questions");
  await answer.click();
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.locator(".end")).toContainText("completed");
  await expect(timeline.locator(".tool")).toContainText("answered by");
  const [result]: Json[] = (await service.call("GET", `/sessions/${session}/events?type=tool.result`)).data;
  expect(result!.body.output).toBe("1. staging\n2. At noon.");
});

test("the form of an agent keeps how it asks", async ({ reader, service }) => {
  const ask = { mode: "wait", expires_seconds: 3_600 };
  const made = await service.call("POST", "/agents", { name: "asker", prompt: "Play.", model: "scripted/inline", ask });
  await reader.goto(`${service.url}/#/agents/${made.id}`);
  await reader.getByRole("button", { name: "Edit" }).click();
  await reader.getByText("Tools, options and limits").click();
  await expect(reader.getByRole("combobox", { name: "Questions" })).toHaveValue("wait");
  await reader.getByRole("textbox", { name: "Prompt" }).fill("Play on.");
  await reader.getByRole("button", { name: "Save as a new revision" }).click();
  await expect(reader.getByRole("dialog")).toBeHidden();
  expect((await service.call("GET", `/agents/${made.id}`)).ask).toEqual(ask);
});

test("a message is read by the running turn", async ({ reader, service }) => {
  const session = await service.play([{ tools: [{ tool: "bash", input: { command: "sleep 8" } }] }, { text: "Never." }], { title: "Steered" });
  await service.until(session, "running");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  await reader.getByLabel("The running turn").selectOption("steer");
  await accessible(reader);
  await reader.getByLabel("Message to the agent").fill(JSON.stringify({ script: [{ text: "I have read it." }] }));
  await reader.getByRole("button", { name: "Send" }).click();
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.getByText("Read a message")).toBeVisible();
  await expect(timeline.getByText("I have read it.", { exact: true })).toBeVisible();
  await expect(timeline.locator(".end")).toHaveCount(1);
});
