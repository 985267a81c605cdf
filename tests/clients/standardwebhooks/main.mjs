// Collects deliveries of every kind, verifies them with the npm library, and writes
// them to a file for the PyPI library.

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { createServer } from "node:http";

import { Webhook, WebhookVerificationError } from "standardwebhooks";

const deliveries = [];
const waiting = [];
const server = createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    deliveries.push({ headers: request.headers, body: Buffer.concat(chunks).toString("utf8") });
    response.writeHead(200).end();
    waiting.splice(0).forEach((wake) => wake());
  });
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const url = `http://127.0.0.1:${server.address().port}/hook`;

/** Waits until `count` deliveries have arrived, at most 30 s. */
async function arrived(count) {
  const late = setTimeout(() => assert.fail(`only ${deliveries.length} of ${count} deliveries arrived`), 30_000);
  while (deliveries.length < count) await new Promise((wake) => waiting.push(wake));
  clearTimeout(late);
  return deliveries[count - 1];
}

async function call(method, path, body) {
  const headers = { authorization: `Bearer ${process.env.SOJOURN_API_KEY}`, "content-type": "application/json" };
  const answer = await fetch(process.env.SOJOURN_URL + path, { method, headers, body: JSON.stringify(body ?? {}) });
  const text = await answer.text();
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
  return JSON.parse(text);
}

const checked = [];
/** Asserts that each of these secrets verifies the delivery, and another one does not. */
function verify(delivery, secrets) {
  for (const secret of secrets) {
    const body = new Webhook(secret).verify(delivery.body, delivery.headers);
    assert.deepEqual(body, JSON.parse(delivery.body));
  }
  const other = new Webhook("whsec_c29tZW9uZSBlbHNl");
  assert.throws(() => other.verify(delivery.body, delivery.headers), WebhookVerificationError);
  const forged = delivery.body.replace('"type"', '"tyqe"');
  assert.throws(() => new Webhook(secrets[0]).verify(forged, delivery.headers), WebhookVerificationError);
  checked.push({ ...delivery, secrets });
}

const made = await call("POST", "/webhooks", { url });
const path = `/webhooks/${made.id}`;
await call("POST", `${path}/test`);
verify(await arrived(1), [made.secret]);

const rotated = await call("POST", `${path}/rotate-secret`);
await call("POST", `${path}/test`);
verify(await arrived(2), [rotated.secret, made.secret]);

const brought = "whsec_c29qb3Vybi13ZWJob29rLXNlY3JldC1vZi0zMi1ieXQ=";
await call("POST", `${path}/rotate-secret`, { secret: brought, overlap_seconds: 0 });
await call("POST", "/sessions", { title: "Zürich → 東京" });
const created = await arrived(3);
verify(created, [brought]);
assert.equal(JSON.parse(created.body).type, "session.created");

await writeFile(process.argv[2], JSON.stringify(checked));
server.close();
server.closeAllConnections();
console.log(`${checked.length} deliveries verified by standardwebhooks of npm`);
