// Custom tools with a service: an agent calls functions of this process in a loop, and another program answers one call.
import assert from "node:assert/strict";
import { Sojourn, SojournError } from "../../../clients/typescript/dist/index.js";

const client = new Sojourn({ url: process.env.SOJOURN_URL, key: process.env.SOJOURN_API_KEY });
const agent = "tools-ts";
const call = (tool, input) => ({ tools: [{ tool, input }] });
const play = (...steps) => ({ script: [...steps, { text: "done" }] });
const custom = (name, properties) => {
  const input_schema = { type: "object", properties, required: Object.keys(properties), additionalProperties: false };
  return { type: "custom", name, description: `The tool ${name} of the shop.`, input_schema };
};
const results = async (session) => {
  const params = { path: { session_id: session }, query: { type: "tool.result" } };
  const { data } = await client.take(client.api.GET("/v3/sessions/{session_id}/events", { params }));
  return data.map(({ body }) => [body.tool, body.outcome, body.is_error, body.output]);
};
const pending = async (session) => {
  const params = { path: { session_id: session } };
  return (await client.take(client.api.GET("/v3/sessions/{session_id}/pending", { params }))).data;
};

const tools = [custom("find_order", { customer: { type: "string" } }), custom("refund", { order: { type: "integer" } }), "bash"];
const body = { name: agent, prompt: "Refund orders.", model: "scripted/inline", tools };
await client.take(client.api.POST("/v3/agents", { body }));

// The shop of this process. A refund is made once for each call, whoever runs it.
const refunds = new Map();
const handlers = {
  find_order: ({ customer }) => ({ customer, orders: [7, 8] }),
  refund: async ({ order }, callId) => {
    if (order === 8) throw new RangeError("order 8 was refunded before");
    refunds.set(callId, order);
    return `order ${order} was refunded`;
  },
};

// Each call is a step. Arguments that do not fit reach no handler; a handler that throws is told to the model.
const steps = [
  call("find_order", { customer: "Ada" }),
  call("refund", { order: "seven" }),
  call("refund", { order: 7 }),
  call("refund", { order: 8 }),
  call("bash", { command: "echo noted > refunds; cat refunds" }),
];
const { session } = await client.create({ agent, input: play(...steps) });
const first = await client.run(session.id, handlers);
assert.deepEqual([first.last_turn.state, first.last_turn.yield_reason, first.result.body.text], ["ok", "completed", "done"]);
const invalid = "The arguments of `refund` are not valid. Nothing was run.\n/order: \"seven\" is not of type \"integer\"";
const [found, refused, ...others] = await results(session.id);
assert.deepEqual(found, ["find_order", "ran", false, '{"customer":"Ada","orders":[7,8]}']);
assert.deepEqual(refused.slice(0, 3), ["refund", "not_run", true]);
assert.ok(refused[3].startsWith(invalid), refused[3]);
assert.deepEqual(others, [
  ["refund", "ran", false, "order 7 was refunded"],
  ["refund", "ran", true, "RangeError: order 8 was refunded before"],
  ["bash", "ran", false, "noted\n"],
]);
assert.deepEqual([...refunds.values()], [7]);

// Arguments that are too large for an event reach the handler as a whole.
const customer = "y".repeat(40_000);
const seen = [];
const long = await client.create({ agent, input: play(call("find_order", { customer })) });
await client.run(long.session.id, { find_order: (input) => (seen.push(input.customer), "found") });
assert.deepEqual(seen, [customer]);

// A tool that a program registers with the session is offered from the next turn on. It has no handler here, so its call
// stays open for a program that claims it.
const params = { path: { session_id: session.id } };
const { type: _, ...mail } = custom("mail", { text: { type: "string" } });
await client.take(client.api.POST("/v3/sessions/{session_id}/tools", { params, body: { ...mail, runs: "caller" } }));
const calls = { tools: [...call("mail", { text: "Refunded." }).tools, ...call("find_order", { customer: "Bob" }).tools] };
await client.steer(session.id, JSON.stringify(play(calls)));
const running = client.run(session.id, handlers);
for await (const { body } of client.follow(session.id, { type: "user.custom_tool_result" })) {
  if (body.content[0].text.includes("Bob")) break;
}
const [open, ...more] = await pending(session.id);
assert.deepEqual([open.kind, open.tool, open.input, open.claimed_until], ["tool_result", "mail", { text: "Refunded." }, null]);
assert.deepEqual(more, []);
const claiming = { params: { path: { session_id: session.id, action_id: open.id } }, body: { seconds: 60 } };
const { claim } = await client.take(client.api.POST("/v3/sessions/{session_id}/pending/{action_id}/claim", claiming));
const answer = (fields) => {
  const event = { type: "user.custom_tool_result", action_id: open.id, content: [{ type: "text", text: "sent" }], ...fields };
  return client.take(client.api.POST("/v3/sessions/{session_id}/events", { params, body: { events: [event] } }));
};
const isConflict = (code) => (error) => error instanceof SojournError && error.status === 409 && error.code === code;
await assert.rejects(answer({}), isConflict("action_claimed"));
await answer({ claim });
assert.equal((await running).last_turn.yield_reason, "completed");
assert.deepEqual((await results(session.id)).slice(5).sort(), [
  ["find_order", "ran", false, '{"customer":"Bob","orders":[7,8]}'],
  ["mail", "ran", false, "sent"],
]);
await assert.rejects(answer({ is_error: true }), isConflict("action_resolved"));
assert.deepEqual(await pending(session.id), []);
console.log("the TypeScript client: custom tools work");
