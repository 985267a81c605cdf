// Questions with a service: a turn waits until a form, a message or a function of this process answers, or it is canceled.
import assert from "node:assert/strict";
import { Sojourn, SojournError } from "../../../clients/typescript/dist/index.js";

const client = new Sojourn({ url: process.env.SOJOURN_URL, key: process.env.SOJOURN_API_KEY });
const agent = "questions-ts";
const body = { name: agent, prompt: "Deploy what you are told.", model: "scripted/inline", ask: { mode: "wait" } };
await client.take(client.api.POST("/v3/agents", { body }));

const at = (session) => ({ path: { session_id: session } });
const bodies = async (session, type) => {
  const params = { ...at(session), query: { type } };
  return (await client.take(client.api.GET("/v3/sessions/{session_id}/events", { params }))).data.map(({ body }) => body);
};
const outputs = async (session) => (await bodies(session, "tool.result")).map(({ output }) => output);
const pending = async (session) =>
  (await client.take(client.api.GET("/v3/sessions/{session_id}/pending", { params: at(session) }))).data;
const ask = (...questions) => ({ tool: "ask", input: { questions } });
const bash = (command) => ({ tool: "bash", input: { command } });
const create = async (...steps) => {
  const script = [...steps.map((tools) => ({ tools })), { text: "done" }];
  return (await client.create({ agent, input: { script } })).session.id;
};

const targets = [{ label: "staging" }, { label: "production" }];
const where = { question: "Where to?", header: "Target", options: targets, free_text: false };
const when = { question: "When?", options: [{ label: "now" }, { label: "at night" }, { label: "on Sunday" }], multiple: true };

// A form: each question is answered by its kind, and a call beside the questions has run before.
const deploying = await create([bash("echo built"), ask(where, when)], [ask({ question: "Which version?" })]);
const waiting = await client.settled(deploying);
assert.equal(waiting.last_turn.state, "waiting");
const [form] = await pending(deploying);
assert.deepEqual([form.kind, form.questions[0]], ["question", { ...where, multiple: false }]);
assert.deepEqual(await outputs(deploying), ["built\n"]);

const answer = (...answers) => {
  const events = [{ type: "user.answer", action_id: form.id, answers }];
  return client.take(client.api.POST("/v3/sessions/{session_id}/events", { params: at(deploying), body: { events } }));
};
const isError = (status, wanted) => (error) => {
  return error instanceof SojournError && error.status === status && [error.code, error.param].includes(wanted);
};
const later = { labels: ["at night", "on Sunday"], text: "not on Friday" };
await assert.rejects(answer({ labels: ["staging"] }), isError(400, "events[0].answers"));
await assert.rejects(answer({ labels: ["mars"] }, later), isError(400, "events[0].answers[0].labels"));
await assert.rejects(answer({ text: "elsewhere" }, later), isError(400, "events[0].answers[0].text"));
const taken = await answer({ labels: ["staging"] }, later);
assert.deepEqual(await answer({ labels: ["staging"] }, later).then(({ data }) => data), taken.data);
await assert.rejects(answer({ labels: ["production"] }, later), isError(409, "action_resolved"));

// A message is the answer to one question with a text.
await client.settled(deploying);
await client.steer(deploying, "the newest");
const ended = await client.settled(deploying);
assert.deepEqual([ended.last_turn.id, ended.last_turn.yield_reason], [waiting.last_turn.id, "completed"]);
assert.deepEqual(await outputs(deploying), ["built\n", "1. staging\n2. at night, on Sunday: not on Friday", "the newest"]);
assert.equal((await bodies(deploying, "user.answer")).length, 2);
assert.equal((await bodies(deploying, "user.message")).length, 1);

// A cancel withdraws a question, which the list of the organization has until then.
const left = await create([ask(where)]);
await client.settled(left);
const [question] = await pending(left);
const all = (await client.take(client.api.GET("/v3/pending", { params: { query: { kind: "question" } } }))).data;
assert.ok(all.some(({ id }) => id === question.id));
await client.cancel(left);
assert.equal((await client.settled(left)).last_turn.yield_reason, "canceled");
assert.deepEqual(await bodies(left, "action.closed"), [{ action_id: question.id, reason: "withdrawn" }]);
assert.deepEqual(await outputs(left), ["The turn was canceled before anybody ran this tool."]);

// The function of this process answers, until no turn runs.
const asked = [];
const onQuestion = ({ questions }) => {
  asked.push(questions.map(({ question }) => question));
  return questions.map(({ options }) => options[0]?.label ?? "version 2");
};
const answered = await create([ask(where, when)], [ask({ question: "Which version?" })]);
assert.equal((await client.run(answered, {}, { onQuestion })).last_turn.yield_reason, "completed");
assert.deepEqual(asked, [["Where to?", "When?"], ["Which version?"]]);
assert.deepEqual(await outputs(answered), ["1. staging\n2. now", "version 2"]);
console.log("the TypeScript client: questions work");
