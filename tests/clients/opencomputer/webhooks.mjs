// Destinations: signed deliveries that the client's own verifier accepts.

import assert from "node:assert/strict";

import { NotFoundError, WebhookVerificationError, verifyWebhook } from "@opencomputer/sdk";

import { eventually, turnEnded } from "./follow.mjs";
import { receiver } from "./receiver.mjs";

/** Adds destinations to the session, and verifies their deliveries. */
export async function webhooks({ check, session, metadata, run }) {
  const endpoint = await receiver();
  // Not base64: a secret that the caller chose is used for signatures as it is.
  const own = `own secret of ${run}`;
  const wanted = { level: "user", types: ["turn.completed"], includeRaw: false };

  const made = await check("a generated secret is returned once, a given one never", async () => {
    const drawn = await session.destinations.create({ url: endpoint.url("/drawn"), ...wanted });
    const brought = await session.destinations.create({ url: endpoint.url("/own"), secret: own, ...wanted });
    assert.match(drawn.id, /^dst_[0-9a-z]{26}$/);
    assert.match(drawn.secret, /^whsec_/);
    assert.ok(!JSON.stringify(brought).includes(own), "the secret was returned");
    const listed = await session.destinations.list();
    assert.deepEqual(listed.map(({ id }) => id).sort(), [drawn.id, brought.id].sort());
    for (const destination of listed) {
      assert.equal(destination.secret, undefined);
      assert.equal(destination.hasSecret, true);
      assert.equal(destination.session, session.id);
      assert.equal(destination.level, "user");
      assert.deepEqual(destination.types, ["turn.completed"]);
      assert.equal(destination.enabled, true);
      assert.deepEqual(await session.destinations.get(destination.id), destination);
    }
    return { drawn, brought };
  });

  const ended = await check("a delivery verifies and contains the event of the log", async () => {
    const { seq } = await session.steer("tell the receivers");
    const ended = await turnEnded(session, seq);
    for (const [path, secret] of [["/drawn", made.drawn.secret], ["/own", own]]) {
      const [delivery] = await endpoint.arrived(path, 1);
      await verifies(delivery, secret, { session, metadata, ended });
    }
    return ended;
  });

  await check("deliveries are listed, read and redelivered under the same id", async () => {
    const delivered = (list) => list.length === 1 && list[0].status === "delivered";
    const list = () => session.deliveries.list({ destination: made.drawn.id });
    const [delivery] = await eventually("the delivery's status", list, delivered);
    assert.equal(delivery.eventId, ended.id);
    assert.equal(delivery.destination, made.drawn.id);
    assert.equal(delivery.attempts, 1);
    assert.equal(delivery.responseCode, 200);
    assert.equal((await session.deliveries.get(delivery.id)).status, "delivered");
    await session.deliveries.redeliver(delivery.id);
    const deliveries = await endpoint.arrived("/drawn", 2);
    assert.equal(new Set(deliveries.map(({ headers }) => headers["webhook-id"])).size, 1);
    await verifies(deliveries[1], made.drawn.secret, { session, metadata, ended });
  });

  await check("a destination is changed, disabled and deleted", async () => {
    const changed = await session.destinations.update(made.drawn.id, { types: null, enabled: false });
    assert.equal(changed.types, null);
    assert.equal(changed.enabled, false);
    await session.destinations.delete(made.drawn.id);
    await assert.rejects(session.destinations.get(made.drawn.id), NotFoundError);
    const { seq } = await session.steer("tell the one that is left");
    await turnEnded(session, seq);
    await endpoint.arrived("/own", 2);
    assert.equal(endpoint.at("/drawn").length, 2);
    await session.destinations.delete(made.brought.id);
    assert.deepEqual(await session.destinations.list(), []);
  });
  endpoint.stop();
}

async function verifies(request, secret, { session, metadata, ended }) {
  const delivery = await verifyWebhook(request.body, request.headers, secret);
  assert.equal(request.method, "POST");
  assert.equal(delivery.type, "turn.completed");
  assert.equal(delivery.sessionId, session.id);
  assert.equal(delivery.eventId, ended.id);
  assert.equal(delivery.dedupeId, ended.id);
  assert.match(delivery.deliveryId, /^dlv_[0-9a-z]{26}$/);
  assert.deepEqual(delivery.metadata, metadata);
  assert.deepEqual(delivery.event, ended);
  const refuses = (body, key) => assert.rejects(verifyWebhook(body, request.headers, key), WebhookVerificationError);
  await refuses(request.body, "whsec_c29tZW9uZSBlbHNl");
  await refuses(request.body.replace("turn.completed", "turn.forged"), secret);
}
