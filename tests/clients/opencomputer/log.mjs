// A session and its log: created, streamed through a cut connection, read in pages.

import assert from "node:assert/strict";

import { OpenComputer } from "@opencomputer/sdk";

import { everyId } from "./agents.mjs";
import { cutting } from "./cut.mjs";
import { follow, turnEnded } from "./follow.mjs";

// Larger than a body that is stored in its event (32 KiB).
const LONG_CHARS = 40_000;

/** Creates the main session and follows its first turn. */
export async function log(world) {
  const { check, client, run, agent } = world;
  // Keys in all spellings, which must be returned unchanged.
  const metadata = { thread_id: "T1", channelName: "general", nested: { someKey: [1, { a_b: null }] } };
  const params = {
    agent: agent.id,
    // The response is delayed, so that the stream is cut while it is live.
    input: { script: [{ thinking: "It is a script.", text: "first answer", delay_ms: 1500 }] },
    key: `main-${run}`,
    metadata,
    limits: { turnSeconds: 60, tokens: 1_000_000 },
  };

  world.session = await check("a session is created", async () => {
    const session = await client.sessions.create(params);
    assert.match(session.id, /^ses_[0-9a-z]{26}$/);
    assert.ok(["queued", "running", "idle"].includes(session.status), session.status);
    assert.equal(typeof session.clientToken, "string");
    assert.deepEqual(session.metadata, metadata);
    assert.equal(session.snapshot.limits.turnSeconds, 60);
    assert.equal(session.snapshot.limits.tokens, 1_000_000);
    assert.equal(session.snapshot.limits.turns, 50, "the agent's own limit applies");
    assert.equal(session.snapshot.agentSnapshot.model, "scripted/inline");
    return session;
  });
  world.metadata = metadata;

  await check("events are followed through a cut connection, each exactly once", () => throughACut(world));

  await check("one key creates one session, and so does one idempotency key", async () => {
    assert.equal((await client.sessions.create(params)).id, world.session.id);
    const keyless = { agent: agent.id, input: "hello", idempotencyKey: `create-${run}` };
    const first = await client.sessions.create(keyless);
    assert.notEqual(first.id, world.session.id);
    assert.equal((await client.sessions.create(keyless)).id, first.id);
    world.other = first;
  });

  await check("the result is the last message of the turn", async () => {
    const { lastTurn, result } = await world.session.result();
    assert.equal(lastTurn.state, "ok");
    assert.equal(lastTurn.yieldReason, "completed");
    assert.equal(lastTurn.resultEventId, result.id);
    assert.equal(result.type, "agent.message");
    assert.equal(result.level, "user");
    assert.equal(result.body.text, "first answer");
    assert.deepEqual(await world.session.event(result.id), result);
  });

  await check("an idle session has status idle", async () => {
    await world.session.refresh();
    assert.equal(world.session.status, "idle");
    assert.equal(world.session.lastTurn.state, "ok");
    const { head, inputCursor } = world.session.snapshot;
    assert.ok(Number.isInteger(head) && Number.isInteger(inputCursor) && inputCursor < head);
    assert.equal((await client.sessions.get(world.session.id)).snapshot.head, head);
  });
}

async function throughACut({ apiKey, baseUrl, session }) {
  const { fetch, streams } = cutting(2);
  const client = new OpenComputer({ apiKey, baseUrl, fetch });
  const followed = await client.sessions.get(session.id);
  const seen = await follow(followed, (event) => event.type === "turn.completed", { level: "progress" });

  assert.equal(streams.length, 2, "the stream was cut and reopened");
  assert.equal(streams[0].searchParams.get("after"), "0");
  assert.equal(streams[1].searchParams.get("after"), String(seen[1].seq), "resumed after the second frame");
  for (const [index, event] of seen.entries()) {
    assert.ok(Number.isInteger(event.seq), `${event.type} has no seq`);
    assert.ok(index === 0 || event.seq > seen[index - 1].seq, `${event.seq} is duplicated or out of order`);
    assert.equal(event.session, session.id);
    assert.ok(["user", "progress"].includes(event.level), `${event.type} is ${event.level}`);
  }
  const page = await session.listEvents({ level: "progress", limit: 500 });
  const until = page.data.filter((event) => event.seq <= seen.at(-1).seq);
  // Only the list has `processedAt`: the input had not been taken when it was streamed.
  const lasting = ({ processedAt, ...event }) => event;
  assert.deepEqual(seen.map(lasting), until.map(lasting), "the stream and the list are equal");
  const types = seen.map((event) => event.type);
  for (const type of ["user.message", "turn.started", "agent.thinking", "agent.message", "turn.completed"]) {
    assert.ok(types.includes(type), `${type} is missing in ${types}`);
  }
}

/** A body that is too large for its event is read separately. */
export async function spilled({ check, client, agent }) {
  await check("a long message is truncated in its event and complete in its content", async () => {
    const text = "x".repeat(LONG_CHARS);
    const session = await client.sessions.create({ agent: agent.id, input: { script: [{ text }] } });
    await turnEnded(session);
    const { result } = await session.result();
    assert.equal(result.bodyTruncated, true);
    assert.equal(typeof result.contentRef, "string");
    assert.ok(result.bodyBytes > LONG_CHARS);
    assert.ok((await session.eventContent(result.id)).includes(text));
  });
}

/** List operations. */
export async function lists({ check, client, session, other, agent, run }) {
  await check("sessions are listed by agent, status and key", async () => {
    const page = await client.sessions.list({ agent: agent.id, limit: 1 });
    assert.equal(page.data.length, 1);
    assert.equal(typeof page.nextCursor, "string");
    const ids = await everyId((cursor) => client.sessions.list({ agent: agent.id, limit: 1, cursor }));
    assert.equal(new Set(ids).size, ids.length, "a session is on one page only");
    assert.ok(ids.indexOf(other.id) < ids.indexOf(session.id) && ids.includes(other.id), "newest first");
    const byKey = await client.sessions.list({ key: `main-${run}` });
    assert.deepEqual(byKey.data.map(({ id }) => id), [session.id]);
    const archived = await client.sessions.list({ agent: agent.id, status: "archived" });
    assert.deepEqual(archived.data, []);
  });

  await check("events are listed by type, turn, level and sequence number", async () => {
    const all = (await session.listEvents()).data;
    assert.deepEqual(all.map(({ seq }) => seq), all.map((_, index) => index + 1), "gapless from 1");
    const turns = (await session.listEvents({ type: "turn.*" })).data.map(({ type }) => type);
    assert.deepEqual(turns, ["turn.started", "turn.completed"]);
    const after = (await session.listEvents({ after: 2, limit: 1 })).data.map(({ seq }) => seq);
    assert.deepEqual(after, [3]);
    const { lastTurn } = await session.result();
    const ofTurn = (await session.listEvents({ turnId: lastTurn.id })).data;
    assert.ok(ofTurn.length > 2 && ofTurn.every(({ turnId }) => turnId === lastTurn.id));
    const user = (await session.listEvents({ level: "user" })).data;
    assert.ok(user.every(({ level }) => level === "user"));
  });

  await check("messages are the input and output of the conversation", async () => {
    const types = (await session.messages()).data.map(({ type }) => type);
    assert.deepEqual(types, ["user.message", "agent.message"]);
  });
}
