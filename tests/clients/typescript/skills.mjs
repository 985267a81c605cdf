// Skills with a service: a folder is uploaded, listed, read back, used by an agent, and deleted.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Sojourn, SojournError } from "../../../clients/typescript/dist/index.js";

const client = new Sojourn({ url: process.env.SOJOURN_URL, key: process.env.SOJOURN_API_KEY });
const isError = (status, code) => (error) => error instanceof SojournError && error.status === status && error.code === code;
const instructions = (name, body) => `---\nname: ${name}\ndescription: Says ${body}.\n---\n${body}\n`;
const all = async (query) => {
  const skills = [];
  for await (const skill of client.skills.pages(query)) skills.push(skill);
  return skills;
};
const ids = (skills) => skills.map(({ id }) => id);

// A folder that is uploaded again is the same version; a changed one is the next version.
const folder = await mkdtemp(join(tmpdir(), "sojourn-skills-"));
await mkdir(join(folder, "bin"));
await writeFile(join(folder, "SKILL.md"), instructions("greet-ts", "one"));
await writeFile(join(folder, "bin/say.sh"), "#!/bin/sh\necho hello\n");
await chmod(join(folder, "bin/say.sh"), 0o755);
const first = await client.skills.upload(folder);
assert.deepEqual([first.name, first.version, first.description, first.files], ["greet-ts", 1, "Says one.", 2]);
assert.deepEqual(await client.skills.upload(folder), first);
await writeFile(join(folder, "SKILL.md"), instructions("greet-ts", "two"));
const second = await client.skills.upload(folder);
assert.deepEqual([second.name, second.version], ["greet-ts", 2]);
await writeFile(join(folder, "SKILL.md"), instructions("other-ts", "three"));
const other = await client.skills.upload(folder);
await rm(folder, { recursive: true });

assert.deepEqual(await client.skills.get(first.id), first);
assert.deepEqual((await client.skills.list({ limit: 1 })).data, [other]);
assert.deepEqual((await client.skills.list({ name: "greet-ts" })).data, [second, first]);
assert.deepEqual(ids(await all({ name: "greet-ts" })), ids([second, first]));
assert.deepEqual(ids(await all()).slice(0, 3), ids([other, second, first]));

// What is read can be uploaded again.
const content = await client.skills.content(first.id);
assert.equal(content.size, first.bytes);
const input = new Uint8Array(await content.arrayBuffer());
const tar = (...args) => execFileSync("tar", [...args, "-f", "-"], { input, encoding: "utf8" });
assert.deepEqual(tar("-t").trim().split("\n"), ["greet-ts/SKILL.md", "greet-ts/bin/say.sh"]);
assert.equal(tar("-xO", "greet-ts/SKILL.md"), instructions("greet-ts", "one"));
const third = await client.skills.upload(content);
assert.deepEqual([third.version, third.sha256], [3, first.sha256]);
await assert.rejects(client.skills.upload(new Blob(["no archive"])), isError(400));

// A session pins the newest version, runs its script, and keeps the version from deletion.
const body = { name: "skilled-ts", prompt: "", model: "scripted/inline", skills: [{ skill: "greet-ts" }, { skill: "other-ts", version: 1 }] };
const agent = await client.take(client.api.POST("/v3/agents", { body }));
assert.deepEqual(agent.skills, [{ skill: "greet-ts", version: "latest" }, { skill: "other-ts", version: 1 }]);
const run = { script: [{ tools: [{ tool: "bash", input: { command: "/skills/greet-ts/bin/say.sh" } }] }, { text: "done" }] };
const { session } = await client.create({ agent: agent.name, input: run });
const pinned = session.agent_snapshot.pinned_skills.map(({ skill_id, name, version }) => [skill_id, name, version]);
assert.deepEqual(pinned, [[third.id, "greet-ts", 3], [other.id, "other-ts", 1]]);
assert.equal((await client.settled(session.id)).last_turn.yield_reason, "completed");
const path = { session_id: session.id };
const events = client.api.GET("/v3/sessions/{session_id}/events", { params: { path, query: { type: "tool.result" } } });
assert.equal((await client.take(events)).data[0].body.output, "hello\n");

await assert.rejects(client.skills.delete(third.id), isError(409, "in_use"));
await assert.rejects(client.skills.delete(other.id), isError(409, "in_use"));
await client.skills.delete(first.id);
await assert.rejects(client.skills.get(first.id), isError(404));
await assert.rejects(client.skills.content(first.id), isError(404));
await client.take(client.api.DELETE("/v3/sessions/{session_id}", { params: { path } }));
await client.skills.delete(third.id);
// The agent names this version.
await assert.rejects(client.skills.delete(other.id), isError(409, "in_use"));
await client.take(client.api.DELETE("/v3/agents/{agent_id}", { params: { path: { agent_id: agent.id } } }));
for (const { id } of [second, other]) await client.skills.delete(id);
assert.deepEqual(await all({ name: "greet-ts" }), []);
console.log("the TypeScript client: skills work");
