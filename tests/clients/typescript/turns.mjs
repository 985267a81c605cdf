// Turns with a service: a failed one is retried.
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
console.log("the TypeScript client: a failed turn is retried");
