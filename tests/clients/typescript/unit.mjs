// Files and skills of the TypeScript client against recorded answers: what it sends, and when it uploads.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { Sojourn, SojournError } from "../../../clients/typescript/dist/index.js";

const PNG = new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0, 255]);
const INLINE_BYTES = 4 << 20;
const IMAGE = { type: "image", source: { type: "file", file_id: "fil_1" } };
const json = (body, status = 200) => new Response(JSON.stringify(body), { status, headers: { "Content-Type": "application/json" } });
const refusal = (status, code) => () => json({ error: { type: "invalid", message: "refused", code } }, status);
const bytes = (text) => new TextEncoder().encode(text);
const sources = (parts) => parts.map(({ source }) => source.type);

const client = new Sojourn({ url: "http://service", key: "key" });
const { fetch } = globalThis;
let requests;
/** Records requests, and answers them from a function. */
const serve = (answer) => {
  requests = [];
  globalThis.fetch = async (request) => {
    const { method, headers, url } = request;
    const recorded = { method, headers, url: new URL(url), body: new Uint8Array(await request.arrayBuffer()) };
    requests.push(recorded);
    return answer(recorded);
  };
};
beforeEach(() => serve(() => json({ id: "fil_1" }, 201)));
afterEach(() => (globalThis.fetch = fetch));

const isUpload = (name) => {
  assert.equal(requests.length, 1);
  const [{ method, headers, url, body }] = requests;
  assert.deepEqual([method, url.pathname, [...url.searchParams]], ["POST", "/v3/files", [["name", name]]]);
  assert.equal(headers.get("content-type"), "application/octet-stream");
  assert.ok(headers.get("idempotency-key"));
  assert.deepEqual(body, PNG);
};

test("the name of a path is its last part", async () => {
  const directory = await mkdtemp(join(tmpdir(), "sojourn-files-"));
  await writeFile(join(directory, "a photo & more.png"), PNG);
  try {
    assert.equal((await client.files.upload(join(directory, "a photo & more.png"))).id, "fil_1");
  } finally {
    await rm(directory, { recursive: true });
  }
  isUpload("a photo & more.png");
});

test("bytes are sent as they are, whatever holds them", async () => {
  const part = new Uint8Array([1, ...PNG, 2]).subarray(1, PNG.length + 1);
  for (const file of [PNG, part, PNG.buffer, new Blob([PNG])]) {
    requests = [];
    await client.files.upload(file);
    isUpload("file");
  }
});

test("a file has a name, which another one replaces", async () => {
  const file = new File([PNG], "own.png");
  await client.files.upload(file);
  isUpload("own.png");
  requests = [];
  await client.files.upload(file, "other.png");
  isUpload("other.png");
});

test("the bytes decide between image and document", async () => {
  const images = [PNG, new Uint8Array([0xff, 0xd8, 0xff, 0xe0]), ...["GIF87a", "GIF89a", "RIFF\n\0\0\0WEBPVP8 "].map(bytes)];
  const documents = ["%PDF-1.7", "a,b\n", "RIFF\0\0\0\0WAVE", " GIF89a", ""].map(bytes);
  for (const content of images) assert.equal((await client.files.part(content)).type, "image");
  for (const content of documents) assert.equal((await client.files.part(content)).type, "document");
  assert.deepEqual(requests, []);
});

test("a small file is sent within the message", async () => {
  const data = Buffer.from(PNG).toString("base64");
  assert.deepEqual(await client.files.part(PNG, "a.png"), { type: "image", source: { type: "base64", data }, name: "a.png" });
  assert.deepEqual(await client.files.part(PNG), { type: "image", source: { type: "base64", data } });
  const long = new Uint8Array(100_001).map((_, at) => at % 251);
  assert.equal((await client.files.part(long)).source.data, Buffer.from(long).toString("base64"));
});

test("a file of 4 MiB is uploaded", async () => {
  assert.equal((await client.files.part(new Uint8Array(INLINE_BYTES - 1))).source.type, "base64");
  assert.deepEqual(requests, []);
  const part = await client.files.part(new Uint8Array(INLINE_BYTES), "a.bin");
  assert.deepEqual(part, { type: "document", source: { type: "file", file_id: "fil_1" }, name: "a.bin" });
  assert.equal(requests.length, 1);
});

test("the files of one message share the 4 MiB", async () => {
  const files = [2, 2, 4, 4].map((parts) => new Uint8Array(INLINE_BYTES / parts));
  assert.deepEqual(sources(await client.files.parts(...files)), ["base64", "file", "base64", "file"]);
  assert.equal(requests.length, 2);
});

test("every page is read", async () => {
  const pages = { "": { data: [{ id: "fil_2" }], next_cursor: "c" }, c: { data: [{ id: "fil_1" }], next_cursor: null } };
  serve(({ url }) => json(pages[url.searchParams.get("cursor") ?? ""]));
  const ids = [];
  for await (const { id } of client.files.pages({ session: "ses_1" })) ids.push(id);
  assert.deepEqual(ids, ["fil_2", "fil_1"]);
  assert.deepEqual(requests.map(({ url }) => url.searchParams.get("session")), ["ses_1", "ses_1"]);
});

test("the bytes are those of the answer", async () => {
  serve(() => new Response(PNG));
  assert.deepEqual(new Uint8Array(await (await client.files.content("fil_1")).arrayBuffer()), PNG);
  serve(refusal(404));
  await assert.rejects(client.files.content("fil_1"), (error) => error instanceof SojournError && error.status === 404);
});

test("what a repeated deletion does not find was deleted", async () => {
  serve(() => {
    if (requests.length === 1) throw new TypeError("the connection was closed");
    return refusal(404)();
  });
  await client.files.delete("fil_1");
  assert.equal(requests.length, 2);
  serve(refusal(404));
  await assert.rejects(client.files.delete("fil_1"), (error) => error instanceof SojournError && error.status === 404);
});

test("a message has the fields that were given", async () => {
  serve(() => json({}, 202));
  const content = [{ type: "text", text: "more" }];
  await client.steer("ses_1", "Hello.");
  await client.steer("ses_1", "Hello.", "steer");
  await client.steer("ses_1", "Look.", { mode: "steer", content });
  await client.steer("ses_1", undefined, { content: [IMAGE] });
  const sent = requests.map(({ body }) => JSON.parse(new TextDecoder().decode(body)));
  const [plain, steered, look, image] = sent;
  assert.deepEqual([plain, steered], [{ text: "Hello." }, { text: "Hello.", mode: "steer" }]);
  assert.deepEqual([look, image], [{ text: "Look.", mode: "steer", content }, { content: [IMAGE] }]);
});

/** Runs a handler that returns a value; returns the events that were sent, the first of which gets an answer. */
const results = async (value, first = () => json({})) => {
  const action = { id: "act_1", session_id: "ses_1", kind: "tool_result", tool: "draw", call_id: "c", input: {} };
  const sent = [];
  serve(({ method, url, body }) => {
    const last = url.pathname.split("/").at(-1);
    if (method === "GET" && last === "pending") return json({ data: [action], next_cursor: null });
    if (method === "POST" && last === "claim") return json({ claim: "clm_1" });
    if (method === "GET") return json({ id: "ses_1", status: "idle", head: 1, last_turn: null });
    sent.push(...JSON.parse(new TextDecoder().decode(body)).events);
    return sent.length === 1 ? first() : json({});
  });
  await client.run("ses_1", { draw: () => value });
  return sent;
};

test("parts of a result are sent as they are", async () => {
  const parts = [{ type: "text", text: "Here:" }, IMAGE, { ...IMAGE, type: "document", name: "a.png" }];
  assert.deepEqual((await results(parts))[0].content, parts);
  assert.deepEqual((await results(IMAGE))[0].content, [IMAGE]);
});

test("other values are a text", async () => {
  assert.deepEqual((await results("a"))[0].content, [{ type: "text", text: "a" }]);
  const named = [{ type: "text", text: "a", name: "b" }];
  for (const value of [[], named, [{ type: "image", url: "a" }], [IMAGE, "a"], { type: "text" }, { ...IMAGE, width: 1 }]) {
    assert.deepEqual((await results(value))[0].content, [{ type: "text", text: JSON.stringify(value) }]);
  }
});

test("texts leave space for the files", async () => {
  const long = { type: "text", text: "é".repeat(30_000) };
  const [{ content }] = await results([long, long, IMAGE]);
  const [first, second, image] = content;
  assert.match(first.text, /^é+\n\[the rest was cut\]$/);
  assert.match(second.text, /^é*\n\[the rest was cut\]$/);
  const size = bytes(JSON.stringify([first, second])).length;
  assert.ok(28_000 < size && size < 30_000 - 1_000, `${size}`);
  assert.deepEqual(image, IMAGE);
});

test("long texts leave space for those behind them", async () => {
  const [long, short] = [40_000, 70].map((count) => ({ type: "text", text: "x".repeat(count) }));
  for (const parts of [[long, short], [long, long], Array(64).fill(long)]) {
    const [{ content }] = await results(parts);
    assert.equal(content.length, parts.length);
    assert.ok(bytes(JSON.stringify(content)).length < 30_000);
  }
  assert.equal((await results(Array(65).fill(short)))[0].content.length, 1);
});

test("a result without a text says so", async () => {
  const nothing = [{ type: "text", text: "(no output)" }];
  for (const value of [undefined, "", [{ type: "text", text: "" }]]) assert.deepEqual((await results(value))[0].content, nothing);
  assert.deepEqual((await results([{ type: "text", text: "" }, IMAGE]))[0].content, [IMAGE]);
});

test("the model is told of a file that the service refuses", async () => {
  for (const first of [refusal(400), refusal(409, "too_many_files"), refusal(413)]) {
    const [image, told, ...rest] = await results([IMAGE], first);
    assert.deepEqual([image.content, image.is_error, rest], [[IMAGE], false, []]);
    assert.deepEqual([told.content, told.is_error], [[{ type: "text", text: "SojournError: refused" }], true]);
  }
});

test("an action that has ended needs no other result", async () => {
  assert.equal((await results([IMAGE], refusal(409, "action_resolved"))).length, 1);
});

/** Decides about a confirmation whose first answer is given; returns the events that were sent. */
const decisions = async (first) => {
  const action = { id: "act_1", session_id: "ses_1", kind: "confirmation", tool: "bash", call_id: "c", input: {}, args_hash: "h" };
  const sent = [];
  serve(({ method, url, body }) => {
    if (method === "GET" && url.pathname.endsWith("/pending")) return json({ data: [action], next_cursor: null });
    if (method === "GET") return json({ id: "ses_1", status: "idle", head: 1, last_turn: null });
    sent.push(...JSON.parse(new TextDecoder().decode(body)).events);
    return sent.length === 1 ? first() : json({});
  });
  await client.run("ses_1", {}, { onConfirmation: () => "once" });
  return sent;
};

test("a decision is sent again after another claim, and its refusal is raised", async () => {
  assert.equal((await decisions(refusal(409, "action_resolved"))).length, 1);
  assert.equal((await decisions(refusal(409, "action_claimed"))).length, 2);
  await assert.rejects(decisions(refusal(409, "too_many_grants")), { code: "too_many_grants" });
});

test("actions are listed page by page, and a person's decision and answers are single calls", async () => {
  const confirmation = { id: "act_1", session_id: "ses_1", kind: "confirmation", call_id: "c", args_hash: "h" };
  const question = { id: "act_2", session_id: "ses_2", kind: "question", questions: [{ options: [{ label: "yes" }] }] };
  const sent = [];
  serve(({ method, url, body }) => {
    if (method === "POST") {
      sent.push([url.pathname, ...JSON.parse(new TextDecoder().decode(body)).events]);
      return json({ data: [], session: {} });
    }
    const isLast = url.searchParams.get("cursor") === "next";
    return json({ data: [isLast ? question : confirmation], next_cursor: isLast ? null : "next" });
  });
  const open = [];
  for await (const action of client.pending()) open.push(action);
  assert.deepEqual(open, [confirmation, question]);
  await client.confirm(open[0], { decision: "reject", message: "No." });
  await client.answer(open[1], "yes");
  assert.deepEqual(sent, [
    ["/v3/sessions/ses_1/events", { type: "user.tool_confirmation", action_id: "act_1", args_hash: "h", decision: "reject", message: "No." }],
    ["/v3/sessions/ses_2/events", { type: "user.answer", action_id: "act_2", answers: [{ labels: ["yes"] }] }],
  ]);
});

/** Makes a folder with these files for the time of a function. */
const inFolder = async (files, use) => {
  const folder = await mkdtemp(join(tmpdir(), "sojourn-skills-"));
  try {
    for (const [path, content] of Object.entries(files)) {
      await mkdir(join(folder, path, ".."), { recursive: true });
      await writeFile(join(folder, path), content);
    }
    return await use(folder);
  } finally {
    await rm(folder, { recursive: true });
  }
};
/** Uploads a folder; returns the archive. */
const packed = async (folder) => {
  requests = [];
  await client.skills.upload(folder);
  const [{ method, headers, url, body }] = requests;
  assert.deepEqual([method, url.pathname, headers.get("content-type")], ["POST", "/v3/skills", "application/x-tar"]);
  return body;
};

test("a folder is packed so that tar can read it", async () => {
  const long = `${"d".repeat(150)}/${"é".repeat(50)}`;
  const files = { "SKILL.md": "# Skill\n", "bin/run.sh": "#!/bin/sh\n", "a b/größe.txt": "x".repeat(1_025), empty: "", full: "y".repeat(512), [long]: "z" };
  await inFolder(files, async (folder) => {
    await chmod(join(folder, "bin/run.sh"), 0o700);
    await mkdir(join(folder, "no files"));
    const input = await packed(folder);
    assert.equal(input.length % 512, 0);
    const tar = (...args) => execFileSync("tar", [...args, "--force-local", "--quoting-style=literal", "-f", "-"], { input, encoding: "utf8" });
    const paths = tar("-t").trimEnd().split("\n");
    assert.deepEqual(paths, Object.keys(files).sort());
    const modes = tar("-tv", "--numeric-owner").trimEnd().split("\n").map((line) => line.slice(0, 14));
    assert.deepEqual(modes, paths.map((path) => (path === "bin/run.sh" ? "-rwxr-xr-x 0/0" : "-rw-r--r-- 0/0")));
    for (const [path, content] of Object.entries(files)) assert.equal(tar("-xO", path), content);
    // The same files have the same archive.
    assert.deepEqual(await inFolder(files, async (other) => {
      await chmod(join(other, "bin/run.sh"), 0o755);
      return packed(other);
    }), input);
  });
});

test("a link in a folder is refused by its name", async () => {
  for (const target of ["SKILL.md", "/etc", "nothing"]) {
    requests = [];
    await inFolder({ "SKILL.md": "" }, async (folder) => {
      await mkdir(join(folder, "docs"));
      await symlink(target, join(folder, "docs/link"));
      await assert.rejects(client.skills.upload(folder), /docs\/link is neither a file nor a directory/);
    });
  }
  assert.deepEqual(requests, []);
});

test("a path that ustar cannot hold is refused", async () => {
  for (const path of ["n".repeat(101), `${"d".repeat(156)}/n`, `d/${"n".repeat(101)}`]) {
    await inFolder({ [path]: "" }, (folder) => assert.rejects(client.skills.upload(folder), /is too long for a tar archive/));
  }
  for (const path of ["n".repeat(100), `${"d".repeat(155)}/${"n".repeat(100)}`]) await inFolder({ [path]: "" }, packed);
});

test("a folder that does not exist is refused", async () => {
  requests = [];
  await assert.rejects(client.skills.upload(join(tmpdir(), "no-such-folder")), { code: "ENOENT" });
  assert.deepEqual(requests, []);
});

test("an archive is sent as it is, whatever holds it", async () => {
  const part = new Uint8Array([1, ...PNG, 2]).subarray(1, PNG.length + 1);
  for (const archive of [PNG, part, PNG.buffer, new Blob([PNG], { type: "text/plain" })]) assert.deepEqual(await packed(archive), PNG);
});

test("every page of the skills is read", async () => {
  const pages = { "": { data: [{ id: "skl_2" }], next_cursor: "c" }, c: { data: [{ id: "skl_1" }], next_cursor: null } };
  serve(({ url }) => json(pages[url.searchParams.get("cursor") ?? ""]));
  const ids = [];
  for await (const { id } of client.skills.pages({ name: "pdf" })) ids.push(id);
  assert.deepEqual(ids, ["skl_2", "skl_1"]);
  assert.deepEqual(requests.map(({ url }) => url.searchParams.get("name")), ["pdf", "pdf"]);
});
