// Operations on an existing session: client tokens, steers, turns, cancel, archive.

import assert from "node:assert/strict";

import { AuthError, ConflictError, OpenComputer, connectSession } from "@opencomputer/sdk";

import { follow, turnEnded } from "./follow.mjs";

/** Input of a turn whose model call outlasts the test. */
const ENDLESS = JSON.stringify({ script: [{ text: "too late", delay_ms: 60_000 }] });
const CANCEL_MS = 10_000;

/** Steers with the client token of the session, as a browser would. */
export async function steering({ check, client, session, baseUrl }) {
  const { id: sessionId, clientToken } = session;
  const browser = await connectSession({ sessionId, clientToken, baseUrl });

  await check("a client token steers and follows its session", async () => {
    const text = JSON.stringify({ script: [{ text: "second answer" }] });
    const event = await browser.steer(text, { idempotencyKey: "second" });
    assert.match(event.id, /^evt_[0-9a-z]{26}$/);
    assert.ok(Number.isInteger(event.seq));
    assert.deepEqual(await browser.steer(text, { idempotencyKey: "second" }), event, "a repeated request returns the same event");
    const ended = await turnEnded(browser, event.seq);
    assert.equal(ended.body.yieldReason, "completed");
    const said = await browser.event(ended.body.resultEventId);
    assert.equal(said.body.text, "second answer");
  });

  await check("input that is not a script completes its turn, too", async () => {
    const { seq } = await browser.steer("thank you");
    assert.equal((await turnEnded(browser, seq)).body.yieldReason, "completed");
  });

  await check("a client token gives access only to its session", async () => {
    const stranger = new OpenComputer({ apiKey: clientToken, baseUrl });
    await assert.rejects(stranger.sessions.get(sessionId), AuthError);
    await assert.rejects(stranger.sessions.list(), AuthError);
    await assert.rejects(stranger.agents.list(), AuthError);
  });

  await check("a minted token has the requested scopes", async () => {
    const token = await session.mintClientToken({ scopes: ["read"], ttlSeconds: 120 });
    assert.equal(typeof token, "string");
    assert.notEqual(token, clientToken);
    const reader = await connectSession({ sessionId, clientToken: token, baseUrl });
    assert.ok((await reader.listEvents({ level: "progress" })).data.length > 0);
    await assert.rejects(reader.steer("may I?"), AuthError);
    const both = await session.mintClientToken();
    const writer = await connectSession({ sessionId, clientToken: both, baseUrl });
    const { seq } = await writer.steer("I may.");
    await turnEnded(writer, seq);
  });

  await check("turns are listed, newest first, and read", async () => {
    const { data } = await session.turns({ limit: 10 });
    assert.equal(data.length, 4);
    for (const turn of data) {
      assert.match(turn.id, /^trn_[0-9a-z]{26}$/);
      assert.equal(turn.state, "ok");
      assert.equal(turn.yieldReason, "completed");
      assert.ok(Date.parse(turn.startedAt) <= Date.parse(turn.completedAt));
    }
    assert.equal(data[0].id, (await session.result()).lastTurn.id);
    assert.deepEqual(await session.turn(data[3].id), data[3]);
  });
}

/** Cancels a running turn. */
export async function cancel({ check, session }) {
  await check("a running turn is canceled", async () => {
    const { seq } = await session.steer(ENDLESS);
    await follow(session, (event) => event.type === "turn.started", { after: seq });
    const began = Date.now();
    await session.cancel();
    const ended = await turnEnded(session, seq);
    assert.equal(ended.body.yieldReason, "canceled");
    assert.ok(Date.now() - began < CANCEL_MS, `took ${Date.now() - began} ms`);
    await session.refresh();
    assert.equal(session.status, "idle");
    assert.equal(session.lastTurn.yieldReason, "canceled");
  });

  await check("canceling an idle session changes nothing", async () => {
    const { head } = session.snapshot;
    await session.cancel();
    await session.refresh();
    assert.equal(session.snapshot.head, head);
  });
}

/** Archives the session. */
export async function archive({ check, client, session, agent, baseUrl }) {
  await check("an archived session is read-only", async () => {
    await session.archive();
    await session.refresh();
    assert.equal(session.status, "archived");
    await assert.rejects(session.steer("are you there?"), (error) => {
      assert.ok(error instanceof ConflictError);
      assert.equal(error.status, 409);
      assert.equal(error.code, "archived");
      return true;
    });
    assert.ok((await session.listEvents()).data.length > 0);
    const archived = await client.sessions.list({ agent: agent.id, status: "archived" });
    assert.deepEqual(archived.data.map(({ id }) => id), [session.id]);
  });

  await check("a client token ends with its session", async () => {
    const browser = await connectSession({ sessionId: session.id, clientToken: session.clientToken, baseUrl });
    await assert.rejects(browser.listEvents(), AuthError);
  });
}
