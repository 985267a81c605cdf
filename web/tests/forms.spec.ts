// Saving a form without a change keeps every field, also those that the form does not show.
import { expect, test } from "./fixtures";
import type { Json } from "./service";

/** What a save may change. */
function kept({ updated_at, build, ...rest }: Json): Json {
  return rest;
}

const INLINE = { cpus: 1, lifecycle_hooks: { post_start: "true" } };

test("an environment keeps every field", async ({ reader, service }) => {
  const made = await service.call("POST", "/environments", {
    name: "whole",
    config: {
      // Another image, and packages, would be built here.
      image: "host",
      cpus: 1.5,
      memory: "1Gi",
      pids: 64,
      disk: "1Gi",
      timeout_seconds: 3600,
      rotation: { pre_rotate_buffer_seconds: 30 },
      env: { PLAIN: "a=b c", LINES: "one\ntwo\r\n", QUOTED: '"quoted"', EMPTY: "" },
      network: {
        allow: [{ host: "*.example.com", port: 8443, methods: ["GET", "PUT"], path_prefix: "/v1" }, { host: "api.example.com" }],
        allow_package_managers: true,
      },
      sources: [{ repo: "acme/app", ref: "main", name: "app", depth: 1 }],
      lifecycle_hooks: { post_start: "echo start\necho more", post_clone: "echo clone\n" },
    },
    secrets: [{ name: "TOKEN", value: "a-value-of-the-test", hosts: ["api.example.com"] }],
  });
  await reader.goto(`${service.url}/#/environments`);
  const card = reader.getByRole("listitem").filter({ hasText: "whole" });
  await expect(card).toContainText("runs a clone script");
  await card.getByRole("button", { name: "Edit" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog).toBeHidden();
  const after = await service.call("GET", `/environments/${made.id}`);
  expect(after.updated_at).not.toBe(made.updated_at);
  expect(kept(after)).toEqual(kept(made));

  await card.getByRole("button", { name: "Edit" }).click();
  await dialog.getByText("Variables and scripts").click();
  await dialog.getByLabel("Clone script").fill("make setup");
  await dialog.getByLabel("Variables").fill('BROKEN="no end');
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog.getByRole("alert")).toContainText("Line 1 of the variables");
  await dialog.getByLabel("Variables").fill('LINES="one\\ntwo"');
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog).toBeHidden();
  const { config } = await service.call("GET", `/environments/${made.id}`);
  expect([config.env, config.lifecycle_hooks]).toEqual([
    { LINES: "one\ntwo" },
    { post_start: "echo start\necho more", post_clone: "make setup" },
  ]);
});

test("an agent keeps every field, and an empty list of tools stays empty", async ({ reader, service }) => {
  const made = await service.call("POST", "/agents", {
    name: "whole",
    prompt: "Be brief.\n",
    model: "scripted/noop",
    model_options: { max_tokens: 4096, effort: "low", thinking: { budget_tokens: 2048 } },
    tools: [],
    limits: { tokens: 5000, cost_micros: 1, turns: 3, steps: 4, tool_calls: 5, turn_seconds: 60, duration_seconds: 600 },
    spend_caps: { days_1: 500 },
    sources: [{ repo: "acme/app" }],
    enabled: false,
  });
  await reader.goto(`${service.url}/#/agents/${made.id}`);
  await reader.getByRole("button", { name: "Edit" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByRole("button", { name: "Save as a new revision" }).click();
  await expect(dialog).toBeHidden();
  const after = await service.call("GET", `/agents/${made.id}`);
  expect(after.updated_at).not.toBe(made.updated_at);
  expect(kept(after)).toEqual(kept(made));
});

test("a schedule keeps every field", async ({ reader, service }) => {
  const agent = await service.call("POST", "/agents", { name: "on time", prompt: "Go.", model: "scripted/noop" });
  const made = await service.call("POST", `/agents/${agent.id}/schedules`, {
    cron: "0 0 1 1 *",
    time_zone: "Europe/Zurich",
    input: { text: "Go.", more: [1, { a: null }] },
    overlap: "allow",
    enabled: false,
    title: "Once a year",
    metadata: { team: "blue" },
    limits: { turns: 2, cost_micros: 10_000 },
    environment: INLINE,
  });
  await reader.goto(`${service.url}/#/agents/${agent.id}/schedules`);
  const card = reader.getByRole("listitem").filter({ hasText: "Once a year" });
  await card.getByRole("button", { name: "Edit" }).click();
  const dialog = reader.getByRole("dialog");
  await dialog.getByText("Session, environment, limits").click();
  await expect(dialog.getByLabel("Environment")).toContainText("inline, as it is");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog).toBeHidden();
  const after = await service.call("GET", `/agents/${agent.id}/schedules/${made.id}`);
  expect(after.updated_at).not.toBe(made.updated_at);
  expect(kept(after)).toEqual(kept(made));
});

test("a trigger keeps every field, and an inline environment can be replaced", async ({ reader, service }) => {
  const agent = await service.call("POST", "/agents", { name: "from outside", prompt: "Go.", model: "scripted/noop" });
  await service.call("POST", "/environments", { name: "replacement" });
  const { secret, ...made } = await service.call("POST", `/agents/${agent.id}/hooks`, {
    kind: "github",
    mention: "acme-bot",
    react: [{ event: "issues", actions: ["opened", "labeled"] }],
    authors: "anyone",
    source: { name: "app", depth: 1 },
    title: "An issue",
    metadata: { team: "blue" },
    limits: { turns: 2 },
    environment: INLINE,
    enabled: false,
  });
  await reader.goto(`${service.url}/#/agents/${agent.id}/triggers`);
  const card = reader.getByRole("listitem").filter({ hasText: "An issue" });
  const dialog = reader.getByRole("dialog");
  const path = `/agents/${agent.id}/hooks/${made.id}`;
  await card.getByRole("button", { name: "Edit" }).click();
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog).toBeHidden();
  const after = await service.call("GET", path);
  expect(after.updated_at).not.toBe(made.updated_at);
  expect(kept(after)).toEqual(kept(made));

  await card.getByRole("button", { name: "Edit" }).click();
  await dialog.getByText("Environment and limits").click();
  await dialog.getByLabel("Environment").selectOption("replacement");
  await dialog.getByRole("button", { name: "Save" }).click();
  await expect(dialog).toBeHidden();
  expect((await service.call("GET", path)).environment).toMatch(/^env_/);
});

test("the prompt of a session is shown after its agent was deleted", async ({ reader, service }) => {
  const agent = await service.call("POST", "/agents", { name: "short-lived", prompt: "Remember me.", model: "scripted/noop" });
  const { session } = await service.call("POST", "/sessions", { agent: agent.id, input: "Go." });
  await service.call("DELETE", `/agents/${agent.id}`);
  await reader.goto(`${service.url}/#/sessions/${session.id}/details`);
  await reader.getByText("Pinned prompt and tools").click();
  await expect(reader.getByRole("region", { name: "Prompt" })).toHaveText("Remember me.");
});
