// An agent asks a question and gets an answer, a webhook reports the end; another calls tools of this
// process; then a sandbox without an agent. tests/clients runs this.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { Sojourn, SojournError, verifyWebhook, WebhookError } from "sojourn-client";

const client = new Sojourn({ url: process.env.SOJOURN_URL, key: process.env.SOJOURN_API_KEY });

// A webhook receiver; verification needs the raw body.
const deliveries = [];
const server = createServer(async (request, response) => {
  let body = "";
  for await (const chunk of request) body += chunk;
  deliveries.push({ body, headers: request.headers });
  response.writeHead(204).end();
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const webhook = `http://127.0.0.1:${server.address().port}/hook`;

await client.take(
  client.api.POST("/v3/agents", {
    body: { name: "example", prompt: "Play the script.", model: "scripted/inline" },
  }),
);
const ask = { tool: "ask", input: { question: "Which colour?", options: ["blue", "green"] } };
const { session, destinations } = await client.create({
  agent: "example",
  input: { script: [{ text: "I ask first.", tools: [ask] }] },
  destinations: [{ url: webhook, types: ["turn.completed"] }],
});
const { secret } = destinations[0];

// Follow until the agent asks, answer, wait for the end.
let last = 0;
for await (const event of client.follow(session.id)) {
  last = event.seq;
  if (event.type === "turn.completed") break;
}
assert.equal((await client.result(session.id)).last_turn.yield_reason, "needs_input");
await client.steer(session.id, "green");
const { last_turn } = await client.settled(session.id);
assert.equal(last_turn.yield_reason, "completed");

// A stream of level `internal` has each event of the log once.
const seen = [];
for await (const event of client.follow(session.id, { level: "internal" })) {
  seen.push(event.seq);
  if (event.type === "turn.completed" && event.seq > last) break;
}
assert.deepEqual(seen, seen.map((_, at) => at + 1));

// A delivery verifies; a changed one does not.
for (let tries = 0; deliveries.length < 2 && tries < 200; tries++) await new Promise((done) => setTimeout(done, 100));
const [delivery] = deliveries;
const read = await verifyWebhook(delivery.body, delivery.headers, secret);
assert.deepEqual([read.type, read.sessionId], ["turn.completed", session.id]);
const refused = (error) => error instanceof WebhookError;
await assert.rejects(verifyWebhook(`${delivery.body} `, delivery.headers, secret), refused);
await assert.rejects(verifyWebhook(delivery.body, delivery.headers, `${secret}x`), refused);
await assert.rejects(verifyWebhook(delivery.body, { ...delivery.headers, "webhook-timestamp": "1" }, secret), refused);

// An error has a stable type.
const params = { path: { session_id: "ses_01hzzzzzzzzzzzzzzzzzzzzzzz" } };
await assert.rejects(client.take(client.api.GET("/v3/sessions/{session_id}", { params })), (error) => {
  return error instanceof SojournError && error.status === 404 && error.type === "not_found";
});

// An invoke token starts sessions of its agent until it is revoked.
const agent = { agent_id: "example" };
const made = await client.take(
  client.api.POST("/v3/agents/{agent_id}/invoke-tokens", { params: { path: agent }, body: { name: "example" } }),
);
const outside = new Sojourn({ url: process.env.SOJOURN_URL, key: made.token });
const invoked = await outside.invoke("example", { input: { script: [{ text: "done" }] } });
assert.equal((await client.settled(invoked.session.id)).last_turn.yield_reason, "completed");
const path = { ...agent, invoke_token_id: made.id };
await client.take(client.api.DELETE("/v3/agents/{agent_id}/invoke-tokens/{invoke_token_id}", { params: { path } }));
await assert.rejects(outside.invoke("example", { input: "x" }), (error) => error.status === 401);

// Tools that run in this process. Another process has claimed one of two calls, and died.
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = ["weather", "time"].map((name) => ({ type: "custom", name, description: `${name} of a city`, input_schema }));
const calls = tools.map(({ name }) => ({ tool: name, input: { city: "Paris" } }));
const script = [{ tools: calls }, { text: "done" }];
const asking = (await client.create({ agent: "example", tools, input: { script } })).session.id;
assert.equal((await client.settled(asking)).last_turn.state, "waiting");
const of = { session_id: asking };
const open = await client.take(client.api.GET("/v3/sessions/{session_id}/pending", { params: { path: of } }));
const claimed = { params: { path: { ...of, action_id: open.data[0].id } }, body: { seconds: 2 } };
await client.take(client.api.POST("/v3/sessions/{session_id}/pending/{action_id}/claim", claimed));
const ids = [];
const handlers = {
  weather: async ({ city }, callId) => (ids.push(callId), { city, sky: "\u2028\n\u0001".repeat(8_000) }),
  time: (_, callId) => {
    ids.push(callId);
    throw new RangeError("no clock");
  },
};
const both = await Promise.all([client.run(asking, handlers), client.run(asking, handlers)]);
assert.deepEqual(both.map(({ last_turn }) => last_turn.yield_reason), ["completed", "completed"]);
assert.deepEqual([ids.length, new Set(ids).size], [2, 2]);
const answered = { params: { path: of, query: { type: "user.custom_tool_result", level: "progress" } } };
const sent = (await client.take(client.api.GET("/v3/sessions/{session_id}/events", answered))).data.map(({ body }) => body);
const [failed] = sent.filter(({ is_error }) => is_error);
const [sky] = sent.filter(({ is_error }) => !is_error);
assert.equal(failed.content[0].text, "RangeError: no clock");
assert.match(sky.content[0].text, /^{"city":"Paris".*\[the rest was cut\]$/s);

// The agent asks before it runs a command.
const permissions = [{ tool: "bash", policy: "ask" }];
const commands = ["echo yes", "echo no"].map((command) => ({ tool: "bash", input: { command } }));
const asks = { agent: "example", permissions, input: { script: [{ tools: commands }, { text: "done" }] } };
const careful = (await client.create(asks)).session.id;
const onConfirmation = ({ input }) =>
  input.command === "echo yes" ? "once" : { decision: "reject", message: "Not that one." };
await client.run(careful, {}, { onConfirmation });
const ended = { params: { path: { session_id: careful }, query: { type: "tool.result", level: "progress" } } };
const replies = (await client.take(client.api.GET("/v3/sessions/{session_id}/events", ended))).data.map(({ body }) => body.output);
assert.match(replies.sort()[0], /They wrote: Not that one\.$/);
assert.equal(replies[1], "yes\n");

// The agent asks within its turn.
const options = [{ label: "staging" }, { label: "production" }];
const questions = [{ question: "Where to?", options }, { question: "When?", options: [{ label: "now" }] }];
const asked = [questions, questions.slice(0, 1)].map((questions) => ({ tools: [{ tool: "ask", input: { questions } }] }));
const wondering = { agent: "example", ask: { mode: "wait" }, input: { script: [...asked, { text: "done" }] } };
const deploying = (await client.create(wondering)).session.id;
await client.run(deploying, {}, { onQuestion: ({ questions }) => (questions.length > 1 ? ["staging", "at noon"] : "staging") });
const outputs = { params: { path: { session_id: deploying }, query: { type: "tool.result", level: "progress" } } };
const answers = (await client.take(client.api.GET("/v3/sessions/{session_id}/events", outputs))).data.map(({ body }) => body.output);
assert.deepEqual(answers, ["1. staging\n2. at noon", "staging"]);

// A sandbox without an agent: files in, a command, files out.
const sandbox = (await client.create({})).session.id;
const text = "green \u2028\r\n";
const written = await client.writeFile(sandbox, "notes/a.txt", text);
assert.deepEqual([written.path, written.bytes], ["/workspace/notes/a.txt", 11]);
const ran = await client.exec(sandbox, "wc -c < notes/a.txt; echo late >&2; exit 3", { timeout_seconds: 30 });
assert.deepEqual([ran.exit_code, ran.stdout.trim(), ran.stderr], [3, "11", "late\n"]);
const said = [];
for await (const frame of client.followExec(sandbox, "echo first; sleep 1; echo late >&2; exit 3")) said.push(frame);
assert.deepEqual(said.slice(0, -1).map(({ stream, text }) => [stream, text]), [["stdout", "first\n"], ["stderr", "late\n"]]);
assert.deepEqual([said.at(-1).type, said.at(-1).exit_code], ["exec.ended", 3]);
assert.deepEqual((await client.listFiles(sandbox, "notes")).entries.map(({ name }) => name), ["a.txt"]);
assert.equal(await (await client.readFile(sandbox, "notes/a.txt")).text(), text);
assert.equal((await client.exec(sandbox, ["truncate", "-s", "0", "notes/a.txt"])).exit_code, 0);
assert.equal((await client.readFile(sandbox, "notes/a.txt")).size, 0);
await assert.rejects(client.readFile(sandbox, "none"), (error) => error instanceof SojournError && error.type === "not_found");
assert.equal((await client.archive(sandbox)).status, "archived");
server.closeAllConnections();
server.close();
console.log("the TypeScript client: streams, answers, custom tools, webhooks, files, commands and errors work");
