// Calls tools of published MCP servers from sessions of the service: main.mjs EVERYTHING_URL CALCULATOR_URL SERVERS_TAR
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

const [everything, calculator, servers] = process.argv.slice(2);
const base = `${process.env.SOJOURN_URL}/v3`;
const headers = { authorization: `Bearer ${process.env.SOJOURN_API_KEY}`, "content-type": "application/json" };

async function request(method, path, body) {
    const answer = await fetch(base + path, { method, headers, body: body && JSON.stringify(body) });
    const read = await answer.json();
    assert.ok(answer.ok, `${method} ${path}: ${JSON.stringify(read)}`);
    return read;
}

/** Plays a script with these servers; returns the log when its turn has ended. */
async function play(servers, steps) {
    const { session } = await request("POST", "/sessions", { ...configured(servers), input: script(steps) });
    return ended(session.id, 1);
}

const configured = (servers) => ({
    agent: "caller",
    mcp_servers: servers,
    permissions: [{ tool: "mcp__*", policy: "allow" }],
});

const script = (steps) => ({ script: [...steps.map((tools) => ({ tools })), { text: "Done." }] });

/** Waits for so many turns; returns the log. */
async function ended(session, turns) {
    for (let tries = 0; tries < 600; tries++) {
        const { data } = await request("GET", `/sessions/${session}/events?limit=500`);
        const ends = of(data, "turn.completed");
        if (ends.length === turns) {
            ends.forEach((end) => assert.equal(end.yield_reason, "completed", JSON.stringify(end)));
            return data;
        }
        await new Promise((done) => setTimeout(done, 100));
    }
    assert.fail("the turn did not end");
}

const of = (log, kind) => log.filter(({ type }) => type === kind).map(({ body }) => body);
const call = (tool, input) => ({ tool, input });

await request("POST", "/agents", { name: "caller", prompt: "", model: "scripted/inline" });

let log = await play([{ name: "everything", url: everything }], [
    [
        call("mcp__everything__echo", { message: "hello" }),
        call("mcp__everything__get-sum", { a: 2, b: 40 }),
        call("mcp__everything__get-structured-content", { location: "New York" }),
        call("mcp__everything__get-tiny-image", {}),
        call("mcp__everything__get-resource-links", { count: 2 }),
        call("mcp__everything__get-sum", { a: "two", b: 40 }),
    ],
    // It changes its list of tools, or uses the client's; neither breaks the turn.
    [call("mcp__everything__toggle-simulated-logging", {}), call("mcp__everything__echo", { message: "again" })],
]);
const [listed] = of(log, "mcp.listed");
assert.deepEqual(listed.skipped ?? [], []);
assert.ok(listed.tools.length >= 10, `${listed.tools.length} tools`);
const [echo, sum, structured, image, links, wrong, logging, again] = of(log, "tool.result");
assert.equal(echo.output, "Echo: hello");
assert.match(sum.output, /42/);
assert.match(structured.output, /temperature/);
assert.equal(image.content[0].type, "image");
assert.match(links.output, /demo:\/\/resource/);
assert.deepEqual([wrong.outcome, wrong.is_error], ["not_run", true]);
assert.equal(logging.outcome, "ran");
assert.equal(again.output, "Echo: again");
console.log(`server-everything: version ${listed.protocol_version}, ${listed.tools.length} tools, 8 calls`);

log = await play([{ name: "calc", url: calculator, timeout_seconds: 2 }], [
    [call("mcp__calc__add", { a: 2, b: 40 }), call("mcp__calc__divide", { a: 1, b: 0 })],
    [call("mcp__calc__slow", { seconds: 30 }), call("mcp__calc__add", { a: 1, b: 1 })],
]);
const [calc] = of(log, "mcp.listed");
const [added, divided, slow, after] = of(log, "tool.result");
assert.equal(added.output, "42");
assert.deepEqual([divided.outcome, divided.is_error], ["ran", true], divided.output);
assert.equal(slow.outcome, "unknown", slow.output);
assert.equal(after.output, "2", "the connection serves calls after one that was given up");
console.log(`mcp for Python: version ${calc.protocol_version}, ${calc.tools.length} tools, 4 calls`);

// Servers that run in the sandbox of the session, and stay there between two turns.
const inside = [
    { name: "files", command: ["node", "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js", "/workspace"] },
    { name: "all", command: ["node", "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "stdio"] },
    { name: "calc", command: ["env", "PYTHONPATH=/workspace/site-packages", "/usr/bin/python3", "server.py", "stdio"] },
];
const { session } = await request("POST", "/sessions", configured(inside));
const stored = await fetch(`${base}/sessions/${session.id}/archive.tar`, {
    method: "PUT",
    headers: { ...headers, "content-type": "application/x-tar" },
    body: await readFile(servers),
});
assert.ok(stored.ok, await stored.text());
const turn = async (number, steps) => {
    await request("POST", `/sessions/${session.id}/messages`, { text: JSON.stringify(script(steps)) });
    return ended(session.id, number);
};
log = await turn(1, [
    [
        call("mcp__files__write_file", { path: "/workspace/note.txt", content: "a note" }),
        call("mcp__files__read_text_file", { path: "/workspace/note.txt" }),
        call("mcp__files__read_text_file", { path: "/etc/passwd" }),
        call("mcp__all__echo", { message: "inside" }),
        call("mcp__all__get-tiny-image", {}),
        call("mcp__calc__add", { a: 2, b: 40 }),
    ],
]);
// One of them says that its tools changed.
const lists = new Map(of(log, "mcp.listed").map((list) => [list.server, list]));
assert.deepEqual([...lists.keys()].sort(), ["all", "calc", "files"], JSON.stringify(of(log, "mcp.failed")));
const [wrote, note, outside, inner, picture, total] = of(log, "tool.result");
assert.ok(!wrote.is_error, wrote.output);
assert.match(note.output, /a note/);
assert.ok(outside.is_error, "the server serves one directory");
assert.equal(inner.output, "Echo: inside");
assert.equal(picture.content[0].type, "image");
assert.equal(total.output, "42");
log = await turn(2, [[call("mcp__files__read_text_file", { path: "/workspace/note.txt" }), call("mcp__calc__add", { a: 1, b: 1 })]]);
assert.equal(of(log, "tool.result").at(-1).output, "2");
// The others want to be asked anew.
const listings = of(log, "mcp.listed").filter(({ server }) => server === "files");
assert.equal(listings.length, 1, "the processes of the first turn serve the second");
for (const { server, protocol_version, tools } of lists.values()) {
    console.log(`in the sandbox: ${server}, version ${protocol_version}, ${tools.length} tools`);
}
