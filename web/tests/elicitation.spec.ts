// A person answers an MCP server that asks in the middle of a call.
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { accessible, expect, test } from "./fixtures";
import type { Json } from "./service";

const VERSION = "2026-07-28";
const FORM = {
  type: "object",
  properties: {
    copies: { type: "integer", title: "Copies", description: "How many?", minimum: 1, maximum: 9 },
    note: { type: "string", title: "Note" },
    target: { type: "string", title: "Target", enum: ["prod", "stage"], enumNames: ["Production", "Staging"] },
  },
  required: ["copies", "target"],
};
const REQUESTS = {
  form: { method: "elicitation/create", params: { mode: "form", message: "Where to?", requestedSchema: FORM } },
  visit: {
    method: "elicitation/create",
    params: { mode: "url", message: "Sign in at the console.", url: "https://console.example.com/sign-in?state=1" },
  },
};
const TOOL = { name: "deploy", description: "Deploys.", inputSchema: { type: "object" } };

/** A server that asks before it deploys, and says what it was told. */
async function asking(): Promise<{ server: Server; url: string }> {
  const answer = ({ method, params }: Json): Json => {
    if (method === "server/discover") {
      const serverInfo = { name: "console", version: "1" };
      return { supportedVersions: [VERSION], capabilities: { tools: {} }, serverInfo, ttlMs: 60_000, cacheScope: "private" };
    }
    if (method === "tools/list") return { tools: [TOOL], ttlMs: 60_000, cacheScope: "private" };
    if (!params.inputResponses) return { resultType: "input_required", inputRequests: REQUESTS, requestState: "s1" };
    return { content: [{ type: "text", text: JSON.stringify(params.inputResponses) }] };
  };
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (part) => (body += part));
    request.on("end", () => {
      const message = JSON.parse(body);
      if (message.id === undefined) return void response.writeHead(202).end();
      const result = { resultType: "complete", ...answer(message) };
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify({ jsonrpc: "2.0", id: message.id, result }));
    });
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp` };
}

test("a person answers a server that asks, and declines", async ({ reader, service }) => {
  const { server, url } = await asking();
  try {
    const more = { mcp_servers: [{ name: "console", url }], permissions: [{ tool: "mcp__*", policy: "allow" }] };
    const call = { tool: "mcp__console__deploy", input: {} };
    const session = await service.play([{ tools: [call] }, { text: "Deployed." }], { title: "Deployment", ...more });
    await service.until(session, "awaiting_input");
    await reader.goto(`${service.url}/#/sessions/${session}`);
    const open = reader.getByRole("region", { name: "Waits for you" });
    await expect(open).toContainText("The server console asks: Where to?");
    const link = open.getByRole("link", { name: "https://console.example.com/sign-in?state=1" });
    await expect(link).toHaveAttribute("rel", "noopener noreferrer");
    await expect(open.getByText("console.example.com", { exact: true })).toBeVisible();
    await accessible(reader);
    if (process.env.SOJOURN_SCREENSHOTS) await reader.screenshot({ path: "../docs/screenshots/action-elicitation-light.png" });
    const send = open.getByRole("button", { name: "Answer" });
    await open.getByRole("group", { name: /How many/ }).getByRole("textbox").fill("12");
    await open.getByLabel("Staging").check();
    await expect(send).toBeDisabled();
    await open.getByLabel("Accept").check();
    await send.click();
    await expect(open.getByRole("alert")).toContainText("above 9");
    await open.getByRole("group", { name: /How many/ }).getByRole("textbox").fill("3");
    await send.click();
    await expect(reader.getByRole("region", { name: "Timeline" }).locator(".end")).toContainText("completed");
    const [result]: Json[] = (await service.call("GET", `/sessions/${session}/events?type=tool.result`)).data;
    expect(JSON.parse(result!.body.output)).toEqual({
      form: { action: "accept", content: { copies: 3, target: "stage" } },
      visit: { action: "accept", content: {} },
    });

    const other = await service.play([{ tools: [call] }, { text: "Left." }], { title: "Declined", ...more });
    await service.until(other, "awaiting_input");
    await reader.goto(`${service.url}/#/pending`);
    const card = reader.getByRole("listitem").filter({ hasText: other });
    await card.getByRole("button", { name: "Decline" }).click();
    await expect(reader.getByText("Nothing waits for you")).toBeVisible();
    await service.until(other, "idle");
    const [declined]: Json[] = (await service.call("GET", `/sessions/${other}/events?type=tool.result`)).data;
    expect(JSON.parse(declined!.body.output).form).toEqual({ action: "decline" });
  } finally {
    server.close();
  }
});
