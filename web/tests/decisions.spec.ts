// The path of a person from the sign-in page over the list of pending actions to the ends of the turns: a call is
// approved, another is rejected with words, a question is answered. With SOJOURN_SCREENSHOTS set, its steps are stored in
// docs/screenshots.
import type { Locator, Page } from "@playwright/test";
import { accessible, expect, test } from "./fixtures";
import type { Json, Service } from "./service";

const RELEASE = [
  {
    text: "The tests pass. Two commands are left before the release.",
    tools: ["echo 4.2.0 > VERSION", "rm -rfv build > removed.txt"].map((command) => ({ tool: "bash", input: { command } })),
  },
  { text: "`VERSION` is written, and `build` is still there." },
];

const QUESTION = {
  question: "Which customers get the new prices first?",
  header: "Prices",
  options: [{ label: "New customers", description: "The others keep their prices." }, { label: "All customers" }],
};

const WORDS = "Keep build: the auditors still read it.";
const ANSWER = "Begin on Monday.";

async function picture(page: Page, name: string): Promise<void> {
  await accessible(page);
  await page.evaluate(() => document.fonts.ready);
  if (process.env.SOJOURN_SCREENSHOTS) await page.screenshot({ path: `../docs/screenshots/${name}-light.png` });
}

/** Creates a session that waits for a person; returns its id. */
async function waits(service: Service, agent: string, title: string, script: Json[], more: Json): Promise<string> {
  const created = await service.call("POST", "/sessions", { agent, title, input: { script, text: `${title}.` }, ...more });
  await service.until(created.session.id, "awaiting_input");
  return created.session.id;
}

/** Opens a call in the timeline; returns the region with its output. */
async function opened(timeline: Locator, call: Locator): Promise<Locator> {
  await expect(timeline.locator(".end")).toContainText("completed");
  await call.getByRole("button").click();
  return call.getByRole("region", { name: /^Output of/ });
}

test("a person approves a call, rejects another with words, and answers a question", async ({ page, service }) => {
  const agent = await service.call("POST", "/agents", { name: "maintainer", prompt: "Prepare releases.", model: "scripted/inline" });
  const asks = [{ tools: [{ tool: "ask", input: { questions: [QUESTION] } }] }, { text: "New customers get them on Monday." }];
  const prices = await waits(service, agent.id, "Roll out the new prices", asks, { ask: { mode: "wait" } });
  const release = await waits(service, agent.id, "Prepare release 4.2", RELEASE, { permissions: [{ tool: "bash", policy: "ask" }] });
  const { key } = await service.call("POST", "/keys", { name: "Ada", scopes: ["sessions:*", "agents:read"] });

  await page.goto(service.url);
  await page.getByLabel("API key").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("link", { name: /^Pending/ }).click();
  const card = (...texts: string[]) => texts.reduce((cards, text) => cards.filter({ hasText: text }), page.getByRole("main").getByRole("listitem"));
  const write = card(release, "echo 4.2.0 > VERSION");
  const remove = card(release, "rm -rfv build");
  const question = card(prices, QUESTION.question);
  for (const open of [write, remove, question]) await expect(open).toHaveCount(1);
  await picture(page, "decision-pending");

  // Each decision removes its own card only.
  await write.getByRole("button", { name: "Approve" }).click();
  await expect(write).toHaveCount(0);
  await expect(remove).toHaveCount(1);
  await remove.getByLabel("Words for the agent, if bash is rejected").fill(WORDS);
  await remove.getByRole("button", { name: "Reject" }).click();
  await expect(card(release)).toHaveCount(0);
  await question.getByLabel("New customers").check();
  await question.getByLabel(`Your words for: ${QUESTION.question}`).fill(ANSWER);
  await question.getByRole("button", { name: "Answer" }).click();
  await expect(card(prices)).toHaveCount(0);

  const timeline = page.getByRole("region", { name: "Timeline" });
  const call = (text: string) => timeline.locator(".tool").filter({ hasText: text });
  await page.getByRole("link", { name: "Sessions", exact: true }).click();
  await page.getByRole("link", { name: "Prepare release 4.2" }).click();
  const rejected = call("rm -rfv build");
  await expect(await opened(timeline, rejected)).toContainText(WORDS);
  await expect(rejected).toContainText("rejected by Ada");
  await expect(rejected).toHaveAttribute("data-state", "not_run");
  const approved = call("echo 4.2.0 > VERSION");
  await expect(approved).toContainText("approved by Ada");
  await expect(approved).toHaveAttribute("data-state", "ok");
  await picture(page, "decision-denied");

  await page.getByRole("link", { name: "Sessions", exact: true }).click();
  await page.getByRole("link", { name: "Roll out the new prices" }).click();
  const answered = call("answered by Ada");
  const answer = await opened(timeline, answered);
  for (const text of ["New customers", ANSWER]) await expect(answer).toContainText(text);
  await expect(answered).toHaveAttribute("data-state", "ok");
  await timeline.locator(".turn").evaluate((row) => row.scrollIntoView());
  await picture(page, "question-answered");

  // The results are what the model reads.
  for (const [session, texts] of [[release, [WORDS]], [prices, ["New customers", ANSWER]]] as const) {
    const results: Json[] = (await service.call("GET", `/sessions/${session}/events?type=tool.result`)).data;
    for (const text of texts) expect(results.map(({ body }) => body.output).join("\n")).toContain(text);
  }
});

test("nobody decides about a part of a call", async ({ reader, service }) => {
  const rules = [{ tool: "bash", policy: "ask" }];
  const name = "large-calls";
  const agent = await service.call("POST", "/agents", { name, prompt: "", model: "scripted/inline", permissions: rules });
  const command = `echo begin # ${"x".repeat(40_000)}\necho unseen`;
  const script = [{ tools: [{ tool: "bash", input: { command } }] }, { text: "Done." }];
  const session = await waits(service, agent.id, "A long command", script, {});
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  await reader.route("**/content", async (route) => {
    await held;
    await route.continue();
  });
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const card = reader.getByRole("region", { name: "Waits for you" }).getByRole("listitem");
  await expect(card).toContainText("Reading the arguments");
  await expect(card.getByRole("button", { name: "Approve" })).toHaveCount(0);
  release();
  await expect(card).toContainText("echo unseen");
  await card.getByRole("button", { name: "Approve" }).click();
  await expect(reader.getByRole("region", { name: "Timeline" }).locator(".end")).toContainText("completed");
});

test("a granted rule is shown in its session, and revoked there", async ({ reader, service }) => {
  const rules = [{ tool: "bash", policy: "ask" }];
  const agent = await service.call("POST", "/agents", { name: "granting", prompt: "", model: "scripted/inline", permissions: rules });
  const script = [{ tools: [{ tool: "bash", input: { command: "echo deploy staging" } }] }, { text: "Done." }];
  const session = await waits(service, agent.id, "A deployment", script, {});
  const [action] = (await service.call("GET", `/sessions/${session}/pending`)).data;
  const decision = { type: "user.tool_confirmation", action_id: action.id, decision: "always", rule: action.always[0] };
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const section = reader.getByRole("complementary", { name: "Details" }).locator("section").filter({ hasText: "Permissions" });
  await expect(section).toContainText("ask bash");
  await service.call("POST", `/sessions/${session}/events`, { events: [{ ...decision, args_hash: action.args_hash }] });
  const grant = section.getByRole("list", { name: "Granted rules" }).getByRole("listitem");
  await expect(grant).toContainText("allow bash echo deploy");
  await accessible(reader);
  await grant.getByRole("button", { name: "Revoke" }).click();
  await expect(grant).toHaveCount(0);
  expect((await service.call("GET", `/sessions/${session}/permissions`)).granted).toEqual([]);
});
