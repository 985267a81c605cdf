// Agents and the credentials that they run on.

import assert from "node:assert/strict";

import { ConflictError } from "@opencomputer/sdk";

/** Creates the agents that the other chapters use. */
export async function agents(world) {
  const { check, client, run } = world;
  const name = `client-${run}`;
  const wanted = { name, prompt: "Do as the script says.", model: "scripted/inline", limits: { turns: 50 } };

  world.agent = await check("an agent is created", async () => {
    const agent = await client.agents.create(wanted);
    assert.match(agent.id, /^agt_[0-9a-z]{26}$/);
    assert.equal(agent.name, name);
    assert.equal(agent.model, "scripted/inline");
    assert.equal(agent.limits.turns, 50);
    return agent;
  });

  await check("creating an equal agent of that name returns it, a different one is a conflict", async () => {
    const again = await client.agents.create(wanted);
    assert.equal(again.id, world.agent.id);
    await assert.rejects(client.agents.create({ ...wanted, prompt: "Something else." }), ConflictError);
  });

  await check("an agent is created with a provider key, which is not returned again", async () => {
    const key = `sk-ant-not-a-key-${run}`;
    const agent = await client.agents.create({
      name: `keyed-${run}`,
      prompt: "Say hello.",
      model: "anthropic/claude-sonnet-4-5",
      key,
    });
    assert.match(agent.credentialId, /^cred_[0-9a-z]{26}$/);
    assert.ok(!JSON.stringify(agent).includes(key), "the key was returned");
  });

  await check("an agent is read and found in the list", async () => {
    const agent = await client.agents.get(world.agent.id);
    assert.equal(agent.id, world.agent.id);
    assert.equal(agent.name, name);
    const first = await client.agents.list({ limit: 1 });
    assert.equal(first.data.length, 1);
    assert.equal(typeof first.nextCursor, "string", "there are two agents at least");
    const ids = await everyId((cursor) => client.agents.list({ limit: 100, cursor }));
    assert.ok(ids.includes(world.agent.id));
  });

  await check("a new prompt creates a new revision", async () => {
    const before = await client.agents.get(world.agent.id);
    const after = await client.agents.update(world.agent.id, { prompt: "Do exactly as the script says." });
    assert.equal(after.id, world.agent.id);
    assert.equal(after.revision, before.revision + 1);
    assert.notEqual(after.promptHash, before.promptHash);
  });
}

/** Provider keys: write-only, rotated, made the default, deleted. */
export async function credentials(world) {
  const { check, client, run } = world;
  const key = (word) => `sk-ant-${word}-${run}`;
  const shows = (credential, secret) => {
    assert.equal(credential.last4, secret.slice(-4));
    assert.ok(!JSON.stringify(credential).includes(secret), "the key was returned");
  };
  const list = async (id) => (await client.credentials.list()).find((credential) => credential.id === id);

  const made = await check("credentials are created and listed", async () => {
    const create = (word) =>
      client.credentials.create({ provider: "anthropic", key: key(word), name: `${word}-${run}` });
    const [first, second] = [await create("first"), await create("second")];
    for (const [credential, word] of [[first, "first"], [second, "second"]]) {
      assert.match(credential.id, /^cred_[0-9a-z]{26}$/);
      assert.equal(credential.provider, "anthropic");
      shows(credential, key(word));
      shows(await list(credential.id), key(word));
    }
    return { first, second };
  });

  await check("a credential is rotated in place", async () => {
    const rotated = await client.credentials.rotate(made.first.id, `sk-ant-rotated-${run}-9876`);
    assert.equal(rotated.id, made.first.id);
    assert.equal(rotated.last4, "9876");
  });

  await check("one credential of a provider is the default", async () => {
    for (const credential of [made.first, made.second]) {
      await client.credentials.setDefault({ credential: credential.id, provider: "anthropic" });
    }
    assert.equal((await list(made.first.id)).isDefault, false);
    assert.equal((await list(made.second.id)).isDefault, true);
  });

  await check("a credential is deleted", async () => {
    await client.credentials.delete(made.first.id);
    assert.equal(await list(made.first.id), undefined);
  });
}

/** The ids of all pages. */
export async function everyId(page) {
  const ids = [];
  let cursor;
  do {
    const { data, nextCursor } = await page(cursor);
    ids.push(...data.map((item) => item.id));
    cursor = nextCursor ?? undefined;
  } while (cursor);
  return ids;
}
