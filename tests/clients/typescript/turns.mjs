// Turns with a service: a failed one is retried, and those of a tree are canceled.
import assert from "node:assert/strict";
import { Sojourn, SojournError } from "../../../clients/typescript/dist/index.js";

const client = new Sojourn({ url: process.env.SOJOURN_URL, key: process.env.SOJOURN_API_KEY });
const agent = "turns";
await client.take(client.api.POST("/v3/agents", { body: { name: agent, prompt: "", model: "scripted/inline" } }));

const input = { script: [{ text: "typescript is done", fault: { kind: "refused" } }] };
const session = (await client.create({ agent, input })).session.id;
const failed = (await client.settled(session)).last_turn;
assert.equal(failed.error.code, "model_refused_request");
assert.equal((await client.retryTurn(session, failed.id)).session.id, session);
const turn = (await client.settled(session)).last_turn;
assert.deepEqual([turn.id, turn.attempt, turn.state], [failed.id, 2, "ok"]);
await assert.rejects(
  client.retryTurn(session, failed.id),
  (error) => error instanceof SojournError && error.status === 409 && error.code === "turn_not_failed",
);

const top = (await client.create({ agent })).session.id;
const slow = { script: [{ text: "slow", delay_ms: 60_000 }] };
const low = (await client.create({ agent, input: slow, parent_session_id: top })).session.id;
await client.cancel(top, { children: true });
assert.equal((await client.settled(low)).last_turn.yield_reason, "canceled");
assert.equal((await client.archive(top, { children: true })).status, "archived");
const path = { session_id: low };
assert.equal((await client.take(client.api.GET("/v3/sessions/{session_id}", { params: { path } }))).status, "archived");
console.log("the TypeScript client: a failed turn is retried, a tree is canceled");
