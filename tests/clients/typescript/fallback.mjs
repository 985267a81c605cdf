// Fallback models with a service: while a model is not available, the next one answers until the end of the turn.
import assert from "node:assert/strict";
import { Sojourn, SojournError } from "../../../clients/typescript/dist/index.js";

const client = new Sojourn({ url: process.env.SOJOURN_URL, key: process.env.SOJOURN_API_KEY });
const agent = "fallback-ts";
const [inline, demo, noop] = ["scripted/inline", "scripted/demo", "scripted/noop"];
const fallback_models = [{ model: noop }];
await client.take(client.api.POST("/v3/agents", { body: { name: agent, prompt: "Repair it.", model: inline, fallback_models } }));

/** The models of failures and steps, in order. */
const models = async (session) => {
  const params = { path: { session_id: session }, query: { level: "internal", limit: 500 } };
  const { data } = await client.take(client.api.GET("/v3/sessions/{session_id}/events", { params }));
  return data.flatMap(({ type, body }) => {
    if (type === "error.model") return [[body.model, body.code]];
    return type === "step.completed" ? [`${body.provider}/${body.model}`] : [];
  });
};
const outputs = async (session) => {
  const params = { path: { session_id: session }, query: { type: "tool.result" } };
  return (await client.take(client.api.GET("/v3/sessions/{session_id}/events", { params }))).data.map(({ body }) => body.output);
};
/** An input that no other session has, because equal histories share their faults. */
const play = (...script) => ({ case: crypto.randomUUID(), script });
const create = async (input, fields = {}) => {
  const { session } = await client.create({ agent, input, ...fields });
  return { id: session.id, ...(await client.settled(session.id)) };
};
const next = async (session, ...script) => {
  await client.steer(session, JSON.stringify({ script }));
  return client.settled(session);
};
const fails = (kind, more = {}) => ({ text: "It is repaired.", fault: { kind, ...more } });
const unavailable = [inline, "model_unavailable"];

// An outage during a turn: another model reads the same history and ends the turn, at once although the provider wants
// its callers to wait. The next turn begins with the model of the agent.
const bash = { tools: [{ tool: "bash", input: { command: "echo looked" } }] };
const during = await create(play(bash, fails("overloaded", { retry_after_ms: 600_000 })));
assert.deepEqual([during.last_turn.yield_reason, during.result.body.text], ["completed", "done"]);
assert.deepEqual(await models(during.id), [inline, unavailable, noop]);
assert.ok(Date.parse(during.last_turn.completed_at) - Date.parse(during.last_turn.started_at) < 60_000);
assert.equal((await next(during.id, { text: "I am back." })).result.body.text, "I am back.");
assert.deepEqual((await models(during.id)).slice(3), [inline]);

// A session has models of its own. The one that answered does all of the work, with tools.
const first = [{ model: demo }, { model: noop }];
const working = await create(play(fails("rate_limited"), { text: "never" }), { fallback_models: first });
assert.match(working.result.body.text, /^The tests pass now\./);
const [failed, ...steps] = await models(working.id);
assert.deepEqual([failed, new Set(steps), steps.length], [unavailable, new Set([demo]), 7]);
const results = await outputs(working.id);
assert.match(results.find((output) => output.includes("FAILED")), /FAILED \(failures=\d\)/);
assert.match(results.at(-1), /\nOK\n/);

// Without fallback models the same model is called again.
const alone = await create(play(fails("unavailable", { times: 2 })), { fallback_models: [] });
assert.equal(alone.result.body.text, "It is repaired.");
assert.deepEqual(await models(alone.id), [unavailable, unavailable, inline]);

// Another model does not help with a request that is refused. A retry begins with the model of the agent.
const refused = await create(play(fails("refused")));
assert.deepEqual([refused.last_turn.state, refused.last_turn.error.code], ["error", "model_refused_request"]);
assert.deepEqual(await models(refused.id), [[inline, "model_refused_request"]]);
await client.retryTurn(refused.id, refused.last_turn.id);
const { last_turn, result } = await client.settled(refused.id);
assert.deepEqual([last_turn.id, last_turn.attempt, result.body.text], [refused.last_turn.id, 2, "It is repaired."]);
assert.deepEqual((await models(refused.id)).slice(1), [inline]);

// A list names each model once.
const twice = client.create({ agent, fallback_models: [{ model: noop }, { model: noop }] });
await assert.rejects(twice, (error) => error instanceof SojournError && error.param === "fallback_models[1].model");
console.log("the TypeScript client: fallback models answer during an outage");
