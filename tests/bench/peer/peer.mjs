// Restate's closest equivalents of creating a session and of a turn without work:
// `node peer.mjs create SECONDS` prints accepted invocations per second, `node peer.mjs noop COUNT`
// the milliseconds of each of COUNT invocations, one per line. Every socket is on loopback.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import http from "node:http";
import http2 from "node:http2";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

// The SDK needs a function of Node 22; the oldest supported version is 20.
Promise.withResolvers ??= () => {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
};
// It logs to standard output, like the figures.
process.env.RESTATE_LOGGING = "ERROR";
const restate = await import("@restatedev/restate-sdk");

const CALLERS = 16;
const [what, amount] = [process.argv[2], Number(process.argv[3])];

/** A loopback port without a listener. */
const free = () =>
  new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

const agent = new http.Agent({ keepAlive: true });

function post(port, path, body, headers = {}) {
  return new Promise((resolve, reject) => {
    const request = http.request(
      { agent, host: "127.0.0.1", port, path, method: "POST", headers: { "content-type": "application/json", ...headers } },
      (response) => {
        response.resume();
        response.on("end", () =>
          response.statusCode < 300 ? resolve() : reject(new Error(`${path} answered ${response.statusCode}`)),
        );
      },
    );
    request.on("error", reject);
    request.end(JSON.stringify(body));
  });
}

const service = restate.service({ name: "turn", handlers: { run: async (_context, text) => text } });
const handler = http2.createServer(restate.createEndpointHandler({ services: [service] }));
await new Promise((resolve) => handler.listen(0, "127.0.0.1", resolve));

const base = mkdtempSync(join(tmpdir(), "sojourn-peer-"));
const [ingress, admin, node] = [await free(), await free(), await free()];
const bind = (port) => `127.0.0.1:${port}`;
const require = createRequire(import.meta.url);
const binary = join(require.resolve(`@restatedev/restate-server-linux-${process.arch}/package.json`), "../bin/restate-server");
const server = spawn(binary, ["--no-logo", "--listen-mode=tcp", "--bind-ip=127.0.0.1"], {
  stdio: "ignore",
  env: {
    ...process.env,
    RESTATE_BASE_DIR: base,
    RESTATE_BIND_ADDRESS: bind(node),
    RESTATE_ADVERTISED_ADDRESS: `http://${bind(node)}`,
    RESTATE_INGRESS__BIND_ADDRESS: bind(ingress),
    RESTATE_ADMIN__BIND_ADDRESS: bind(admin),
    RESTATE_DISABLE_TELEMETRY: "true",
  },
});

/** Retried: the server accepts a deployment, and calls to it, only after a delay. */
async function patiently(ask) {
  for (let tries = 0; ; tries++) {
    try {
      return await ask();
    } catch (error) {
      if (tries === 200 || server.exitCode !== null) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

try {
  const uri = `http://127.0.0.1:${handler.address().port}`;
  await patiently(() => post(admin, "/deployments", { uri }));
  await patiently(() => post(ingress, "/turn/run", "warm"));
  if (what === "create") {
    let made = 0;
    const began = performance.now();
    const caller = async (number) => {
      for (let round = 0; performance.now() - began < amount * 1000; round++) {
        await post(ingress, "/turn/run/send", "Hello.", { "idempotency-key": `${number}-${round}` });
        made++;
      }
    };
    await Promise.all(Array.from({ length: CALLERS }, (_, number) => caller(number)));
    console.log((made / (performance.now() - began)) * 1000);
  } else {
    for (let count = 0; count < amount; count++) {
      const began = performance.now();
      await post(ingress, "/turn/run", "Nothing to do.");
      console.log(performance.now() - began);
    }
  }
} finally {
  server.kill("SIGTERM");
  await new Promise((resolve) => server.once("exit", resolve));
  handler.close();
  agent.destroy();
  rmSync(base, { recursive: true, force: true });
}
process.exit(0);
