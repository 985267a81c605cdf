// A receiver of webhooks on loopback: records deliveries, answers 200.

import { createServer } from "node:http";

import { eventually } from "./follow.mjs";

/** Starts a receiver; `url(path)` is its URL, `at(path)` the deliveries to it. */
export async function receiver() {
  const deliveries = [];
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const body = Buffer.concat(chunks).toString("utf8");
      deliveries.push({ path: request.url, method: request.method, headers: request.headers, body });
      response.writeHead(200).end();
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const at = (path) => deliveries.filter((delivery) => delivery.path === path);
  return {
    url: (path) => `http://127.0.0.1:${server.address().port}${path}`,
    at,
    arrived: (path, count) =>
      eventually(`${count} deliveries at ${path}`, async () => at(path), (came) => came.length >= count),
    stop() {
      server.close();
      server.closeAllConnections();
    },
  };
}
