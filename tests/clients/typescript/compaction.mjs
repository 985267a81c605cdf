// Compaction with a service: a history is summarized when it is almost too long, on request, and after a refusal.
import assert from "node:assert/strict";
import { Sojourn, SojournError } from "../../../clients/typescript/dist/index.js";

const client = new Sojourn({ url: process.env.SOJOURN_URL, key: process.env.SOJOURN_API_KEY });
const agent = "compaction-ts";
const [context_tokens, max_tokens, threshold] = [12_000, 1_000, 0.8];
const model_options = { context_tokens, max_tokens };
const body = { name: agent, prompt: "Count.", model: "scripted/inline", model_options, compaction: { threshold } };
await client.take(client.api.POST("/v3/agents", { body }));

const create = async (fields = {}) => (await client.create({ agent, ...fields })).session.id;
const log = async (session, type) => {
  const params = { path: { session_id: session }, query: { type, level: "internal", limit: 500 } };
  return (await client.take(client.api.GET("/v3/sessions/{session_id}/events", { params }))).data;
};
const bodies = async (session, type) => (await log(session, type)).map(({ body }) => body);
const isSummary = ({ purpose }) => purpose === "compaction";
/** Sends a script and waits for the end of its turn. `case` differs, because equal histories share their faults. */
const turn = async (session, ...script) => {
  await client.steer(session, JSON.stringify({ case: session, script }));
  return client.settled(session);
};
/** A response of this many bytes; so many are in the message with the script, too. */
const long = (bytes) => ({ text: "w".repeat(bytes) });

// Automatic: a session has more turns than its window has space for. Each command runs once.
const counting = await create();
const numbers = Array.from({ length: 12 }, (_, at) => `${at + 1}`);
for (const number of numbers) {
  const call = { tool: "bash", input: { command: `echo ${number}` } };
  const { last_turn, result } = await turn(counting, { ...long(4_000), tools: [call] }, { text: `Number ${number}.` });
  assert.deepEqual([last_turn.yield_reason, result.body.text], ["completed", `Number ${number}.`]);
}
assert.deepEqual((await bodies(counting, "tool.result")).map(({ output }) => output), numbers.map((number) => `${number}\n`));
const compacted = await bodies(counting, "history.compacted");
const steps = await bodies(counting, "step.completed");
assert.ok(compacted.length >= 2, `${compacted.length} summaries`);
assert.equal(steps.filter(isSummary).length, compacted.length);
for (const { trigger, summary, before_tokens, after_tokens } of compacted) {
  assert.deepEqual([trigger, summary], ["auto", "done"]);
  assert.ok(before_tokens > threshold * (context_tokens - max_tokens), `${before_tokens} before`);
  assert.ok(after_tokens < before_tokens / 2, `${after_tokens} of ${before_tokens} are left`);
}
for (const [at, { usage }] of steps.entries()) {
  assert.ok(usage.input_tokens < context_tokens, `${usage.input_tokens} tokens`);
  // The call after a summary reads less than the one before it.
  if (isSummary(steps[at - 1] ?? {})) assert.ok(usage.input_tokens < steps[at - 2].usage.input_tokens / 2);
}

// On request: an idle session gets a turn for it, which has no result.
const asked = await create();
const isConflict = (error) => error instanceof SojournError && error.status === 409 && error.code === "nothing_to_compact";
await assert.rejects(client.compact(asked), isConflict);
for (let at = 0; at < 3; at++) await turn(asked, long(4_000));
const instructions = "Keep the numbers.";
const { event } = await client.compact(asked, instructions);
const { last_turn, result } = await client.settled(asked);
assert.deepEqual([last_turn.yield_reason, last_turn.usage.steps, result], ["completed", 1, null]);
const [request, summary, ...more] = await log(asked, "history.*");
assert.deepEqual([request.seq, request.type, request.body], [event.seq, "history.compaction_requested", { instructions }]);
assert.deepEqual([summary.type, summary.body.trigger, summary.turn_id, more], ["history.compacted", "manual", last_turn.id, []]);
assert.equal((await turn(asked, { text: "The numbers." })).result.body.text, "The numbers.");

// After a refusal of the provider, without summaries by themselves: the turn fails until a caller wants one.
const tooLong = [{ text: "It fits.", fault: { kind: "context_too_long" } }];
const manual = await create({ compaction: { auto: false } });
for (let at = 0; at < 3; at++) await turn(manual, long(4_000));
const refused = (await turn(manual, ...tooLong)).last_turn;
assert.deepEqual([refused.state, refused.error.code, await log(manual, "history.*")], ["error", "context_exhausted", []]);
await client.compact(manual);
assert.equal((await client.settled(manual)).last_turn.yield_reason, "completed");
assert.equal((await turn(manual, { text: "It fits again." })).result.body.text, "It fits again.");

// With them: the history is summarized, and the turn asks again. This script refuses once more, so a caller retries it.
const automatic = await create();
for (let at = 0; at < 3; at++) await turn(automatic, long(4_000));
const failed = (await turn(automatic, ...tooLong)).last_turn;
assert.equal(failed.error.code, "context_exhausted");
assert.deepEqual((await bodies(automatic, "history.*")).map(({ trigger }) => trigger), ["refused"]);
await client.retryTurn(automatic, failed.id);
const retried = await client.settled(automatic);
assert.deepEqual([retried.last_turn.id, retried.last_turn.attempt, retried.result.body.text], [failed.id, 2, "It fits."]);
console.log("the TypeScript client: long histories are summarized");
