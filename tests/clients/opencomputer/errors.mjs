// Error responses, as the client's typed errors.

import assert from "node:assert/strict";

import { AuthError, NotFoundError, OpenComputer, ValidationError } from "@opencomputer/sdk";

const UNKNOWN = "0".repeat(26);

/** Every error has a message and the same format. */
export async function errors({ check, client, session, baseUrl, run }) {
  const fails = (promise, type, status, word) =>
    assert.rejects(promise, (error) => {
      assert.ok(error instanceof type, `${error.name}: ${error.message}`);
      assert.equal(error.status, status);
      assert.ok([error.type, error.code].includes(word), `${error.type} ${error.code} is not ${word}`);
      assert.ok(error.message.length > 0);
      assert.match(error.requestId, /^req_/);
      return true;
    });

  await check("an unknown id is a NotFoundError", async () => {
    await fails(client.sessions.get(`ses_${UNKNOWN}`), NotFoundError, 404, "not_found");
    await fails(client.agents.get(`agt_${UNKNOWN}`), NotFoundError, 404, "not_found");
    await fails(session.event(`evt_${UNKNOWN}`), NotFoundError, 404, "not_found");
    await fails(session.turn(`trn_${UNKNOWN}`), NotFoundError, 404, "not_found");
    await fails(session.watches.list(), NotFoundError, 404, "not_found");
  });

  await check("an invalid key is an AuthError", async () => {
    const stranger = new OpenComputer({ apiKey: "sjk_live_0000", baseUrl });
    await fails(stranger.agents.list(), AuthError, 401, "unauthorized");
    await fails(stranger.sessions.get(session.id), AuthError, 401, "unauthorized");
  });

  await check("a session whose provider has no key is a ValidationError", async () => {
    const params = { name: `keyless-${run}`, prompt: "Say hello.", model: "openai/gpt-5" };
    const agent = await client.agents.create(params);
    const creating = client.sessions.create({ agent: agent.id, input: "hello" });
    await fails(creating, ValidationError, 422, "no_credential");
  });

  await check("an unknown field is rejected with its name", async () => {
    const params = { name: `odd-${run}`, prompt: "Say hello.", model: "scripted/noop", colour: "green" };
    const creating = client.agents.create(params);
    await assert.rejects(creating, (error) => {
      assert.equal(error.status, 400);
      assert.equal(error.type, "invalid");
      assert.ok(`${error.param} ${error.message}`.includes("colour"), error.message);
      return true;
    });
  });
}
