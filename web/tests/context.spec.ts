// What a session remembers, repeats and returns: summaries, loops and outputs, and the fields of an agent for them.
import { expect, test } from "./fixtures";
import type { Json } from "./service";

const bash = (command: string) => ({ tools: [{ tool: "bash", input: { command } }] });

test("a history is summarized by a button, and the timeline says so", async ({ reader, service }) => {
  const long = "A line of a long answer. ".repeat(800);
  const session = await service.play([bash("seq 2000"), { text: long }], { title: "Long" });
  await service.until(session, "idle");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.locator(".end")).toContainText("completed");
  await reader.getByRole("button", { name: "Summarize" }).click();
  await expect(timeline.getByText("wants a summary of the history")).toBeVisible();
  await expect(timeline.getByText("History summarized")).toBeVisible();
  await expect(timeline.getByText(/^[\d,]+ to [\d,]+ tokens$/)).toBeVisible();
});

test("a loop asks a person, who lets it go on", async ({ reader, service }) => {
  const session = await service.play([bash("echo b"), bash("echo b"), bash("echo b"), { text: "Done." }], { title: "Again" });
  await service.until(session, "awaiting_input");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const card = reader.getByRole("region", { name: "Waits for you" }).getByRole("listitem");
  await expect(card).toContainText("The agent has made the same calls again and again.");
  await card.getByRole("button", { name: "Approve" }).click();
  await expect(reader.getByRole("region", { name: "Timeline" }).locator(".end")).toContainText("completed");
});

test("an output that does not fit is named, and the one that fits is the result", async ({ reader, service }) => {
  const submit = (total: unknown) => ({ tools: [{ tool: "submit_output", input: { total } }] });
  const output_schema = { type: "object", properties: { total: { type: "integer" } }, required: ["total"] };
  const session = await service.play([submit("many"), submit(3)], { title: "Sum", output_schema });
  await service.until(session, "idle");
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.getByText("The output does not fit its schema")).toBeVisible();
  await expect(timeline.getByLabel("Output", { exact: true })).toContainText('"total": 3');
});

test("the form of an agent keeps its environment, output and loops", async ({ reader, service }) => {
  const environment = await service.call("POST", "/environments", { name: "build", config: { memory: "512Mi" } });
  const made = await service.call("POST", "/agents", {
    name: "careful",
    prompt: "Sum.",
    model: "scripted/noop",
    environment: environment.id,
    output_schema: { type: "object", properties: { total: { type: "integer" } } },
    compaction: { auto: false },
    doom_loop: { repeats: 4, policy: "stop" },
  });
  await reader.goto(`${service.url}/#/agents/${made.id}`);
  await reader.getByRole("button", { name: "Edit" }).click();
  const dialog = reader.getByRole("dialog");
  await expect(dialog.getByLabel("Environment", { exact: true })).toHaveValue(environment.id);
  await dialog.getByRole("textbox", { name: "Prompt" }).fill("Sum up.");
  await dialog.getByRole("button", { name: "Save as a new revision" }).click();
  await expect(dialog).toBeHidden();
  const now = await service.call("GET", `/agents/${made.id}`);
  const kept = ({ environment, output_schema, compaction, doom_loop }: Json) => ({ environment, output_schema, compaction, doom_loop });
  expect(now.revision).toBe(2);
  expect(kept(now)).toEqual(kept(made));
});
