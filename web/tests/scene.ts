// An organization at work, for the pictures: agents, sessions in every state, files, schedules, triggers, and
// everything else that a page can show.
import type { Json, Service } from "./service";

/** Prices of a real provider, so that the scripted models cost something. */
const PRICES = {
  version: "scene",
  models: { "scripted/inline": { input: 3_000_000, output: 15_000_000, cache_write: 3_750_000, cache_read: 300_000 } },
  sandbox: { cpu_hour: 50_400, gib_hour: 16_200 },
  fee: { turn: 100 },
};

const DIFF = `diff --git a/price.py b/price.py
@@ -1,4 +1,5 @@
 class Price:
-    def __init__(self, cents):
-        self.cents = cents
+    def __init__(self, cents, currency="EUR"):
+        self.cents = cents
+        self.currency = currency
`;

const bash = (command: string) => ({ tool: "bash", input: { command } });
const cost = (input_tokens: number, output_tokens: number, cache_read_tokens = 0) => ({ input_tokens, output_tokens, cache_read_tokens });

const REVIEW = [
  {
    thinking: "The change touches money. I look at how prices are compared before I say anything.",
    text: "I read the change first.",
    tools: [bash("mkdir -p shop/tests && printf 'class Price:\\n    def __init__(self, cents, currency=\"EUR\"):\\n        self.cents = cents\\n        self.currency = currency\\n' > shop/price.py && printf 'Shop\\n====\\n\\nPrices in any currency.\\n' > README.md && ls -R"), { tool: "glob", input: { pattern: "**/*.py" } }],
    usage: cost(1_840, 212),
  },
  {
    text: "Comparing two prices ignores their currency. I try it.",
    tools: [{ tool: "edit", input: { path: "shop/price.py", old: "        self.currency = currency\n", new: "        self.currency = currency\n\n    def __eq__(self, other):\n        return (self.cents, self.currency) == (other.cents, other.currency)\n" } }, bash("cd shop && python3 -c 'from price import Price; print(Price(100) == Price(100, \"USD\"))'"), bash("cd shop && python3 -m unittest nothing")],
    usage: cost(820, 164, 1_840),
  },
  {
    text: "It **adds a currency** to `Price`, and equality now looks at it:\n\n| file | lines |\n|---|---|\n| `shop/price.py` | +4 −1 |\n\nOne thing is open.",
    tools: [{ tool: "ask", input: { question: "May I round half to even when a price is converted?", options: ["Yes", "No, half up"] } }],
    usage: cost(640, 98, 2_660),
  },
];

export interface Scene {
  agent: string;
  /** Asks a question; has files in its sandbox. */
  review: string;
  /** Waits for the results of two calls of a custom tool. */
  waiting: string;
}

/** Creates the scene once per service. */
export function scene(service: Service): Promise<Scene> {
  const made = scenes.get(service) ?? make(service);
  scenes.set(service, made);
  return made;
}

const scenes = new WeakMap<Service, Promise<Scene>>();

async function make(service: Service): Promise<Scene> {
  service.admin(["set-prices", (await service.call("GET", "/organization")).id], PRICES);
  const agents = [
    ["reviewer", "You review changes.\nSay what is wrong before what is right."],
    ["release-notes", "You write release notes that people like to read."],
    ["night-watch", "You look after the build while everyone sleeps."],
  ] as const;
  const ids = new Map<string, string>();
  for (const [name, prompt] of agents) {
    const agent = await service.call("POST", "/agents", { name, prompt, model: "scripted/inline", limits: { tokens: 200_000 } });
    ids.set(name, agent.id);
  }
  const agent = ids.get("reviewer") ?? "";
  await service.call("PATCH", `/agents/${agent}`, { prompt: "You review changes.\nBegin with what is right." });
  await sessions(service);
  const review = await run(service, "reviewer", "Review: prices in any currency", REVIEW, {
    limits: { tokens: 20_000, turns: 10, cost_micros: 500_000 },
    destinations: [{ url: "https://receiver.example/hook" }],
    metadata: { team: "billing", pull_request: 412 },
  });
  await service.until(review, "awaiting_input");
  const waiting = await waits(service);
  await triggers(service, agent, ids.get("night-watch") ?? "");
  await settings(service);
  return { agent, review, waiting };
}

async function run(service: Service, agent: string, title: string, script: Json[], more: Json = {}): Promise<string> {
  return (await service.call("POST", "/sessions", { agent, title, input: { script, text: title }, ...more })).session.id;
}

/** A session that waits for the caller's results. */
async function waits(service: Service): Promise<string> {
  const input_schema = { type: "object", properties: { stage: { type: "string" }, version: { type: "string" } } };
  const tools = [{ type: "custom", name: "deploy", description: "Deploys a version to a stage.", input_schema }];
  const calls = ["staging", "canary"].map((stage) => ({ tool: "deploy", input: { stage, version: "4.2.0" } }));
  const script = [{ text: "The tests pass. I deploy to both stages.", tools: calls, usage: cost(3_100, 180) }, { text: "It is deployed." }];
  const waiting = await run(service, "release-notes", "Deploy 4.2 to staging", script, { tools });
  await service.until(waiting, "awaiting_input");
  return waiting;
}

/** One session for each kind of end, and one that keeps running. */
async function sessions(service: Service): Promise<void> {
  const patch = { text: "The notes are done.\n\n```diff\n" + DIFF + "```", usage: cost(2_100, 640) };
  const notes = await run(service, "release-notes", "Release notes for 4.2", [{ tools: [{ tool: "glob", input: { pattern: "*" } }], usage: cost(5_400, 120) }, patch]);
  const bounded = await run(service, "release-notes", "Release notes, every commit since 2019", [{ tools: [{ tool: "glob", input: { pattern: "*" } }], usage: cost(9_000, 1_200) }, { text: "never" }], { limits: { tokens: 10_000 } });
  const failed = await run(service, "night-watch", "Why did the nightly build fail?", [{ fault: { kind: "unauthorized" } }]);
  for (const session of [notes, bounded]) await service.until(session, "idle");
  await service.until(failed, "failed");
  const closed = await run(service, "night-watch", "Watch the build of Sunday", [{ text: "It passed." }]);
  await service.until(closed, "idle");
  await service.call("POST", `/sessions/${closed}/archive`);
  await run(service, "night-watch", "Watch tonight's build", [{ text: "I look every minute.", delay_ms: 3_000_000 }]);
}

async function triggers(service: Service, reviewer: string, watch: string): Promise<void> {
  const morning = { cron: "0 7 * * MON-FRI", time_zone: "Europe/Zurich", title: "Morning report", input: "Look through the changes of yesterday and sum up what is risky." };
  const made = await service.call("POST", `/agents/${reviewer}/schedules`, morning);
  await service.call("POST", `/agents/${reviewer}/schedules/${made.id}/fire`);
  await service.call("POST", `/agents/${reviewer}/schedules`, { cron: "*/30 * * * *", title: "Open reviews", input: "Which reviews wait for an answer?", enabled: false });
  await service.call("POST", `/agents/${reviewer}/hooks`, { kind: "github", title: "Review on mention", mention: "acme-bot", react: [{ event: "pull_request", actions: ["opened", "reopened"] }] });
  await service.call("POST", `/agents/${reviewer}/invoke-tokens`, { name: "support form" });
  await service.call("POST", `/agents/${watch}/hooks`, { kind: "generic", title: "Build ended" });
}

async function settings(service: Service): Promise<void> {
  await service.skill("release-notes", "Turns the commits since a tag into notes by audience. Use it for each release.");
  await service.skill("price-review", "Checks a change of prices: rounding, currencies, taxes.");
  await service.call("POST", "/credentials", { provider: "anthropic", key: "sk-example-7f3a", name: "billing team" });
  await service.call("POST", "/credentials", { provider: "openai", key: "sk-example-91cc", name: "trial" });
  const trigger = await service.call("POST", "/webhooks", { url: "https://receiver.example/sojourn", types: ["turn.completed"] });
  await service.call("POST", `/webhooks/${trigger.id}/test`);
  await service.call("POST", "/keys", { name: "the back-end", scopes: ["sessions:*", "agents:read"] });
  await service.call("POST", "/environments", {
    name: "github, one repository",
    config: { memory: "1Gi", network: { allow: [{ host: "api.github.com", methods: ["GET"], path_prefix: "/repos/acme" }] } },
    secrets: [{ name: "GITHUB_TOKEN", value: "ghp_of_the_test", hosts: ["api.github.com"] }],
  });
}
