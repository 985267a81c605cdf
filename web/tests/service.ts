// A service for the tests: its process, its database, and a receiver of webhooks.
import { type ChildProcess, execFileSync, spawn, spawnSync } from "node:child_process";
import { mkdtempSync, chmodSync, readFileSync, openSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { createServer as createSocket, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const BINARY = resolve(process.env.SOJOURN_BIN ?? "../target/debug/sojourn");
export const KEY = "sjk_test_the_browser_suite";

export type Json = Record<string, any>;

async function freePort(): Promise<number> {
  const socket = createSocket();
  await new Promise<void>((done) => socket.listen(0, "127.0.0.1", done));
  const { port } = socket.address() as AddressInfo;
  await new Promise((done) => socket.close(done));
  return port;
}

/** Settings by variable; an undefined one is left out. */
type Settings = Record<string, string | undefined>;

/** The binary, on a port that it keeps across restarts. */
export class Service {
  private process?: ChildProcess;
  private constructor(
    readonly url: string,
    private readonly listen: string,
    private readonly scratch: string,
    private readonly settings: Settings,
  ) {}

  /** Starts it with these settings beside the ones that every test has. */
  static async start(settings: Settings = {}): Promise<Service> {
    const scratch = mkdtempSync(join(tmpdir(), "sojourn-web."));
    // The operating system user of the database needs access.
    chmodSync(scratch, 0o755);
    const listen = `127.0.0.1:${await freePort()}`;
    const service = new Service(`http://${listen}`, listen, scratch, settings);
    await service.up();
    return service;
  }

  async up(): Promise<void> {
    const log = openSync(join(this.scratch, "log"), "a");
    const usual = {
      SOJOURN_BOOTSTRAP_API_KEY: KEY,
      SOJOURN_ALLOW_PRIVATE_WEBHOOKS: "on",
      SOJOURN_ALLOW_PRIVATE_MCP: "on",
      SOJOURN_ALLOW_SHARED_HOST: "on",
      SOJOURN_FIRST_SESSION: "off",
      SOJOURN_LEASE_MS: "2000",
      SOJOURN_LOG: "warn",
    };
    const env = { ...process.env, ...usual, ...this.settings, ...this.place() };
    this.process = spawn(BINARY, ["serve"], { env, stdio: ["ignore", log, log] });
    for (let tries = 0; tries < 600; tries++) {
      if (this.process.exitCode !== null) break;
      const ready = await fetch(`${this.url}/readyz`).catch(() => undefined);
      if (ready?.ok) return;
      await new Promise((done) => setTimeout(done, 100));
    }
    throw new Error(`the service did not start:\n${this.said()}`);
  }

  private place() {
    return { SOJOURN_DATA_DIR: join(this.scratch, "data"), SOJOURN_LISTEN: this.listen };
  }

  /** Output so far. */
  said(): string {
    return readFileSync(join(this.scratch, "log"), "utf8");
  }

  /** Runs an operator command beside the service. */
  admin(words: string[], input?: Json): void {
    const file = join(this.scratch, "input.json");
    if (input) writeFileSync(file, JSON.stringify(input));
    const all = ["admin", ...words, ...(input ? [file] : [])];
    const ran = spawnSync(BINARY, all, { env: { ...process.env, ...this.place() }, encoding: "utf8" });
    if (ran.status !== 0) throw new Error(`${all.join(" ")}: ${ran.stderr}`);
  }

  /** Sends SIGTERM and waits for the exit. */
  async down(): Promise<void> {
    const process = this.process;
    if (!process || process.exitCode !== null) return;
    const ended = new Promise((done) => process.once("exit", done));
    process.kill("SIGTERM");
    await ended;
  }

  async end(): Promise<void> {
    await this.down();
    execFileSync("../scripts/remove-data", [this.scratch]);
  }

  call(method: string, path: string, body?: Json): Promise<Json> {
    return this.send(method, path, "application/json", body && JSON.stringify(body));
  }

  /** Stores a skill. */
  skill(name: string, description: string): Promise<Json> {
    return this.send("POST", "/skills", "application/x-tar", new Uint8Array(skillArchive(name, description)));
  }

  private async send(method: string, path: string, type: string, body?: BodyInit): Promise<Json> {
    const headers = { authorization: `Bearer ${KEY}`, "content-type": type };
    const answer = await fetch(`${this.url}/v3${path}`, { method, headers, body });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : {};
  }

  /** Creates a session that plays a script; returns its id. */
  async play(script: Json[], more: Json = {}): Promise<string> {
    const agent = { name: "inline", prompt: "Play the script.", model: "scripted/inline" };
    await this.call("POST", "/agents", agent);
    const created = await this.call("POST", "/sessions", { agent: "inline", input: { script }, ...more });
    return created.session.id;
  }

  /** Waits until a session has one of these statuses. */
  async until(session: string, ...statuses: string[]): Promise<Json> {
    for (let tries = 0; tries < 300; tries++) {
      const now = await this.call("GET", `/sessions/${session}`);
      if (statuses.includes(now.status)) return now;
      await new Promise((done) => setTimeout(done, 100));
    }
    throw new Error(`${session} did not become ${statuses.join(" or ")}`);
  }
}

/** A tar archive of a folder with this skill. */
export function skillArchive(name: string, description: string): Buffer {
  const folder = mkdtempSync(join(tmpdir(), "sojourn-skill."));
  writeFileSync(join(folder, "SKILL.md"), `---\nname: ${name}\ndescription: ${JSON.stringify(description)}\n---\nRead it.\n`);
  writeFileSync(join(folder, "notes.txt"), "notes\n");
  const packed = execFileSync("tar", ["-C", folder, "-cf", "-", "."]);
  rmSync(folder, { recursive: true });
  return packed;
}

/** A receiver that records webhooks. */
export class Receiver {
  /** Whether it answers every delivery with 500. */
  fails = false;

  private constructor(
    private readonly server: Server,
    readonly url: string,
    readonly deliveries: { id: string; body: Json }[],
  ) {}

  static async start(): Promise<Receiver> {
    const deliveries: Receiver["deliveries"] = [];
    let receiver: Receiver | undefined;
    const server = createServer((request, response) => {
      let text = "";
      request.on("data", (chunk) => (text += chunk));
      request.on("end", () => {
        deliveries.push({ id: String(request.headers["webhook-id"]), body: JSON.parse(text) });
        response.writeHead(receiver?.fails ? 500 : 204).end();
      });
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    const { port } = server.address() as AddressInfo;
    receiver = new Receiver(server, `http://127.0.0.1:${port}/hook`, deliveries);
    return receiver;
  }

  stop(): void {
    this.server.closeAllConnections();
    this.server.close();
  }
}
