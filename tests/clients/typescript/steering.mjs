// Steering with a service: what the running turn reads, what waits for the next one, and what ends the running one.
import assert from "node:assert/strict";
import { Sojourn } from "../../../clients/typescript/dist/index.js";

const client = new Sojourn({ url: process.env.SOJOURN_URL, key: process.env.SOJOURN_API_KEY });
const agent = "steering-ts";
await client.take(client.api.POST("/v3/agents", { body: { name: agent, prompt: "Do it.", model: "scripted/inline" } }));

const bash = (command) => ({ tools: [{ tool: "bash", input: { command } }] });
const play = (...steps) => JSON.stringify({ script: steps });
const log = async (session, type) => {
  const params = { path: { session_id: session }, query: { type, limit: 500 } };
  return (await client.take(client.api.GET("/v3/sessions/{session_id}/events", { params }))).data;
};
const turns = async (session) => {
  const params = { path: { session_id: session } };
  return (await client.take(client.api.GET("/v3/sessions/{session_id}/turns", { params }))).data.reverse();
};
const said = async (session) => (await log(session, "agent.message")).map(({ turn_id, body }) => [turn_id, body.text]);

// While a command runs, one message is for the next turn, and two steer the running one. No call is cut.
const command = "echo started; touch begun; until [ -e go ]; do sleep 0.05; done; echo went";
const input = { script: [bash(command), { text: "never" }] };
const id = (await client.create({ agent, input })).session.id;
const begun = (file) => client.exec(id, `until [ -e ${file} ]; do sleep 0.05; done`);
await begun("begun");
const queued = (await client.steer(id, play({ text: "And now that." }), "queue")).event;
const words = (await client.steer(id, "Rather this.", "steer")).event;
const script = (await client.steer(id, play(bash("echo steered"), { text: "As you say." }), { mode: "steer" })).event;
assert.deepEqual([queued, words, script].map(({ processed_at }) => processed_at), [null, null, null]);
await client.writeFile(id, "go", "");
assert.equal((await client.settled(id)).last_turn.yield_reason, "completed");

// The running turn reads both in order behind the result of the call, and goes on with the newest.
const [first, second, ...others] = await turns(id);
assert.deepEqual([first.yield_reason, second.yield_reason, others], ["completed", "completed", []]);
assert.deepEqual(await said(id), [[first.id, "As you say."], [second.id, "And now that."]]);
assert.deepEqual((await log(id, "tool.result")).map(({ body }) => body.output), ["started\nwent\n", "steered\n"]);
const [steered, ...more] = await log(id, "turn.steered");
assert.deepEqual([steered.body, more], [{ turn_id: first.id, from_turn_id: second.id, seqs: [words.seq, script.seq] }, []]);
const [went] = await log(id, "tool.result");
assert.ok(went.seq < steered.seq);

// Each message was read once, by the turn that it was for.
const messages = await log(id, "user.message");
const started = (await log(id, "turn.started")).map(({ ts }) => ts);
assert.deepEqual(messages.map(({ processed_at }) => processed_at), [started[0], started[1], steered.ts, steered.ts]);

// An interrupt ends the running command; the next turn reads it.
await client.steer(id, play(bash("touch again; sleep 3600"), { text: "never" }));
await begun("again");
await client.steer(id, play(bash("ls"), { text: "Stopped." }), { mode: "interrupt" });
assert.equal((await client.settled(id)).result.body.text, "Stopped.");
const [, , canceled, next] = await turns(id);
assert.deepEqual([canceled.state, canceled.yield_reason, next.state, next.yield_reason], ["ok", "canceled", "ok", "completed"]);
const results = (await log(id, "tool.result")).slice(2).map(({ turn_id, body }) => [turn_id, body.outcome, body.output]);
const stopped = "The turn was canceled before this tool finished; everything it started was stopped.";
assert.deepEqual(results, [[canceled.id, "unknown", stopped], [next.id, "ran", "again\nbegun\ngo\n"]]);
assert.equal((await client.exec(id, "cat /proc/[0-9]*/comm | grep -cx sleep")).stdout, "0\n");
assert.deepEqual((await log(id, "turn.cancel_requested")).map(({ body }) => body), [{ turn_id: canceled.id, mode: "interrupt" }]);

// When no turn runs, all three are ordinary messages.
for (const mode of ["queue", "steer", "interrupt"]) {
  await client.steer(id, play({ text: `Read: ${mode}.` }), mode);
  assert.equal((await client.settled(id)).result.body.text, `Read: ${mode}.`);
}
assert.deepEqual((await turns(id)).slice(4).map(({ yield_reason }) => yield_reason), ["completed", "completed", "completed"]);
console.log("the TypeScript client: messages steer, wait and interrupt");
