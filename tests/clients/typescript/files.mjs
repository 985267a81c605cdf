// Files with a service: upload, send, read back, download, delete.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Sojourn, SojournError } from "../../../clients/typescript/dist/index.js";

const client = new Sojourn({ url: process.env.SOJOURN_URL, key: process.env.SOJOURN_API_KEY });
// One red pixel, and the same without its end.
const PNG = new Uint8Array(
  Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC", "base64"),
);
const DAMAGED = PNG.subarray(0, 40);
const agent = "files";

const digest = (content) => createHash("sha256").update(content).digest("hex");
const bytes = async (file) => new Uint8Array(await (await client.files.content(file)).arrayBuffer());
const isError = (status, code) => (error) => error instanceof SojournError && error.status === status && error.code === code;
const play = (...steps) => ({ script: [...steps.map((step) => ({ tools: [step] })), { text: "done" }] });
const bash = (command) => ({ tool: "bash", input: { command } });
const bodies = async (session, type) => {
  const params = { path: { session_id: session }, query: { type, level: "progress" } };
  return (await client.take(client.api.GET("/v3/sessions/{session_id}/events", { params }))).data.map(({ body }) => body);
};
const completed = async (session) => {
  assert.equal((await client.settled(session)).last_turn.yield_reason, "completed");
};
const remove = (session) => client.take(client.api.DELETE("/v3/sessions/{session_id}", { params: { path: { session_id: session } } }));
const all = async (query) => {
  const files = [];
  for await (const file of client.files.pages(query)) files.push(file);
  return files;
};

await client.take(client.api.POST("/v3/agents", { body: { name: agent, prompt: "Look.", model: "scripted/inline" } }));

// Upload a path, read it back.
const directory = await mkdtemp(join(tmpdir(), "sojourn-files-"));
await writeFile(join(directory, "red & dot.png"), PNG);
const stored = await client.files.upload(join(directory, "red & dot.png"));
await rm(directory, { recursive: true });
assert.deepEqual([stored.name, stored.media_type, stored.bytes, stored.kept], ["red & dot.png", "image/png", PNG.length, true]);
assert.equal(stored.sha256, digest(PNG));
assert.deepEqual([stored.image.width, stored.image.height, stored.image.converted], [1, 1, false]);
assert.deepEqual(await client.files.get(stored.id), stored);
assert.deepEqual(await bytes(stored.id), PNG);

// The bytes decide the type. A file that no session uses can be deleted, a damaged image is refused.
const text = await client.files.upload(new File(["größe,zahl\n"], "table.png"));
assert.deepEqual([text.name, text.media_type, text.image], ["table.png", "text/plain", null]);
assert.deepEqual((await client.files.list({ limit: 1 })).data, [text]);
assert.deepEqual((await all()).map(({ id }) => id), [text.id, stored.id]);
await client.files.delete(text.id);
await assert.rejects(client.files.get(text.id), isError(404));
await assert.rejects(client.files.content(text.id), isError(404));
await assert.rejects(client.files.upload(DAMAGED, "a.png"), isError(400));

// The file is in the event, in the sandbox, and cannot be deleted while the session exists.
const image = { type: "image", source: { type: "file", file_id: stored.id }, name: "dot.png" };
const input = play(bash("sha256sum /home/agent/files/*/*"));
const seeing = (await client.create({ agent, input, content: [image] })).session.id;
await completed(seeing);
const [script, sent] = (await bodies(seeing, "user.message"))[0].content;
assert.deepEqual([script.type, sent.type, sent.file_id, sent.name], ["text", "image", stored.id, "dot.png"]);
assert.deepEqual([sent.path, sent.sha256], [`/home/agent/files/${stored.id}/dot.png`, digest(PNG)]);
assert.deepEqual(await bytes(sent.file_id), PNG);
assert.equal((await bodies(seeing, "tool.result"))[0].output, `${digest(PNG)}  ${sent.path}\n`);
await assert.rejects(client.files.delete(stored.id), isError(409, "in_use"));

// A file within a message is deleted with its session; an uploaded file stays. What the agent reads is the uploaded file.
const reading = play({ tool: "read", input: { path: sent.path } });
await client.steer(seeing, JSON.stringify(reading), { content: [await client.files.part(PNG, "inline.png")] });
await completed(seeing);
const inline = (await bodies(seeing, "user.message"))[1].content[1];
const [shown] = (await bodies(seeing, "tool.result"))[1].content;
assert.deepEqual([inline.name, inline.sha256, shown.type, shown.file_id], ["inline.png", digest(PNG), "image", stored.id]);
assert.deepEqual((await all({ session: seeing })).map(({ kept }) => kept), [false, true]);
await remove(seeing);
await assert.rejects(client.files.get(inline.file_id), isError(404));
assert.deepEqual(await bytes(stored.id), PNG);
await client.files.delete(stored.id);
assert.deepEqual(await all(), []);

// Files that a message has no space for are uploaded first.
const large = [new Uint8Array(3 << 20).fill(97), new Uint8Array(4 << 20).fill(98)];
const parts = await client.files.parts(...large);
assert.deepEqual(parts.map(({ source }) => source.type), ["base64", "file"]);
const packed = (await client.create({ agent, input, content: parts })).session.id;
await completed(packed);
const files = (await bodies(packed, "user.message"))[0].content.slice(1);
assert.deepEqual(files.map(({ sha256 }) => sha256), large.map(digest));
const lines = (await bodies(packed, "tool.result"))[0].output.trim().split("\n");
assert.deepEqual(lines.sort(), files.map(({ sha256, path }) => `${sha256}  ${path}`).sort());

// A tool of this process returns an image; the model is told of one that is damaged.
const tool = { type: "custom", name: "draw", description: "Draws.", input_schema: { type: "object" } };
const calls = ["good", "damaged"].map((bytes) => ({ tool: "draw", input: { bytes } }));
const drawing = (await client.create({ agent, tools: [tool], input: play(...calls) })).session.id;
const draw = async ({ bytes }) => {
  const part = await client.files.part(bytes === "good" ? PNG : DAMAGED, "drawn.png");
  return [{ type: "text", text: "A dot:" }, part];
};
assert.equal((await client.run(drawing, { draw })).last_turn.yield_reason, "completed");
const [drawn, refused] = await bodies(drawing, "user.custom_tool_result");
assert.deepEqual([drawn.content[0].text, drawn.content[1].type], ["A dot:", "image"]);
assert.deepEqual(await bytes(drawn.content[1].file_id), PNG);
assert.equal(refused.is_error, true);
assert.match(refused.content[0].text, /decoded/);
const [result] = await bodies(drawing, "tool.result");
assert.deepEqual(result.content.filter(({ type }) => type === "image").map(({ sha256 }) => sha256), [digest(PNG)]);
console.log("the TypeScript client: files work");
