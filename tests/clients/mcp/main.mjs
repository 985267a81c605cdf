// Calls tools of published MCP servers from sessions of the service: main.mjs EVERYTHING_URL CALCULATOR_URL
import assert from "node:assert/strict";

const [everything, calculator] = process.argv.slice(2);
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
    const { session } = await request("POST", "/sessions", {
        agent: "caller",
        mcp_servers: servers,
        permissions: [{ tool: "mcp__*", policy: "allow" }],
        input: { script: [...steps.map((tools) => ({ tools })), { text: "Done." }] },
    });
    for (let tries = 0; tries < 300; tries++) {
        const { data } = await request("GET", `/sessions/${session.id}/events?limit=500`);
        const end = data.find(({ type }) => type === "turn.completed");
        if (end) {
            assert.equal(end.body.yield_reason, "completed", JSON.stringify(end.body));
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
