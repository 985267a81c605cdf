// Every page by light, by dark and at a phone's width: accessible, reachable by
// keyboard, no wider than its window. With SOJOURN_SCREENSHOTS set, docs/ gets pictures.
import type { Page } from "@playwright/test";
import { accessible, expect, test } from "./fixtures";

const LOOKS = [
  { name: "light", scheme: "light", width: 1280, height: 800 },
  { name: "dark", scheme: "dark", width: 1280, height: 800 },
  { name: "phone", scheme: "light", width: 390, height: 780 },
] as const;

async function look(page: Page, name: string): Promise<void> {
  await accessible(page);
  const [wide, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  expect(wide, `${name} is wider than its window`).toBeLessThanOrEqual(window ?? 0);
  const isKept = (name.endsWith("-light") && !name.startsWith("new-in-")) || /^(session|sessions|agent|usage)-(dark|phone)$/.test(name);
  if (process.env.SOJOURN_SCREENSHOTS && isKept) await page.screenshot({ path: `../docs/screenshots/${name}.png` });
}

for (const { name, scheme, width, height } of LOOKS) {
  test(`every page holds by ${name}`, async ({ reader: page, service }) => {
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme: scheme });
    const agent = await service.call("POST", "/agents", {
      name: `reviewer-${name}`,
      prompt: "You review changes.\nSay what is wrong before what is right.",
      model: "scripted/inline",
    });
    await service.call("PATCH", `/agents/${agent.id}`, { prompt: "You review changes.\nBegin with what is right." });
    const session = await service.play(
      [
        { thinking: "The change touches money.", text: "I read the change first.", tools: [{ tool: "glob", input: { pattern: "**/*.py" } }, { tool: "no_such_tool", input: {} }] },
        { text: "It **adds a currency** to `Price`:\n\n| file | lines |\n|---|---|\n| price.py | +12 −3 |\n", tools: [{ tool: "ask", input: { question: "May I round half to even?", options: ["Yes", "No, half up"] } }] },
      ],
      { title: "Review: prices in any currency", limits: { tokens: 20_000, turns: 10 }, destinations: [{ url: "https://receiver.example/hook" }], metadata: { team: "billing" } },
    );
    await service.until(session, "awaiting_input");
    await service.call("POST", "/credentials", { provider: "anthropic", key: "sk-example-7f3a", name: `key by ${name}` });

    await page.goto(`${service.url}/#/`);
    await expect(page.getByRole("link", { name: "Review: prices" }).first()).toBeVisible();
    await look(page, `sessions-${name}`);
    await page.getByRole("button", { name: "New session" }).click();
    await expect(page.getByRole("dialog")).toBeVisible();
    await look(page, `new-session-${name}`);
    await page.keyboard.press("Escape");

    await page.goto(`${service.url}/#/sessions/${session}`);
    await expect(page.getByRole("group", { name: "Suggested answers" })).toBeVisible();
    await page.getByRole("button", { name: /no_such_tool/ }).click();
    await look(page, `session-${name}`);
    for (const tab of ["details", "events", "deliveries"]) {
      await page.goto(`${service.url}/#/sessions/${session}/${tab}`);
      await expect(page.getByText({ details: "No turn has ended", events: "events", deliveries: "receiver.example" }[tab] ?? "").or(page.getByRole("heading", { name: "Result" })).first()).toBeVisible();
      if (tab === "events") await page.locator(".raw-row > button").first().click();
      await look(page, `session-${tab}-${name}`);
    }
    await page.goto(`${service.url}/#/agents`);
    await expect(page.getByRole("link", { name: `reviewer-${name}` })).toBeVisible();
    await look(page, `agents-${name}`);
    await page.getByRole("button", { name: "New agent" }).click();
    await page.getByText("Tools, options and limits").click();
    await look(page, `new-agent-${name}`);
    await page.keyboard.press("Escape");
    await page.getByRole("link", { name: `reviewer-${name}` }).click();
    await expect(page.getByRole("heading", { name: "Compare" })).toBeVisible();
    await look(page, `agent-${name}`);
    await page.goto(`${service.url}/#/credentials`);
    await expect(page.getByText(`key by ${name}`)).toBeVisible();
    await look(page, `credentials-${name}`);

    const [hook] = (await service.call("GET", "/webhooks")).data as { id: string }[];
    if (!hook) {
      const made = await service.call("POST", "/webhooks", { url: "https://receiver.example/sojourn", types: ["turn.completed"] });
      await service.call("POST", `/webhooks/${made.id}/test`);
      await service.call("POST", "/keys", { name: "the back-end", scopes: ["sessions:*", "agents:read"] });
      await service.call("POST", "/environments", {
        name: "github, one repository",
        config: { memory: "1Gi", network: { allow: [{ host: "api.github.com", methods: ["GET"], path_prefix: "/repos/acme" }] } },
        secrets: [{ name: "GITHUB_TOKEN", value: "ghp_of_the_test", hosts: ["api.github.com"] }],
      });
    }
    const places = { webhooks: "webhook.test", keys: "the back-end", environments: "GITHUB_TOKEN", usage: "In these days", audit: "key.created" };
    for (const [place, sign] of Object.entries(places)) {
      await page.goto(`${service.url}/#/${place}`);
      await expect(page.getByText(sign).first()).toBeVisible();
      await look(page, `${place}-${name}`);
      const makes = { webhooks: "Add a webhook", keys: "New key", environments: "New environment" }[place];
      if (!makes) continue;
      await page.getByRole("button", { name: makes }).click();
      await look(page, `new-in-${place}-${name}`);
      await page.keyboard.press("Escape");
    }

    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByText("Where is my key?").click();
    await look(page, `sign-in-${name}`);
  });
}

test("a session is reached, steered and left by keyboard alone", async ({ reader: page, service }) => {
  await service.play([{ text: "hello" }], { title: "By keyboard" });
  await expect(page.getByRole("link", { name: "By keyboard" })).toBeVisible();
  await page.keyboard.press("Tab");
  await expect(page.getByText("Skip to the page")).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(page.locator("main")).toBeFocused();
  await page.getByRole("link", { name: "By keyboard" }).focus();
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { name: "By keyboard" })).toBeVisible();
  for (let presses = 0; presses < 60; presses++) {
    await page.keyboard.press("Tab");
    if (await page.evaluate(() => document.activeElement?.tagName === "TEXTAREA")) break;
  }
  await page.keyboard.type("From the keyboard");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("region", { name: "Timeline" }).getByText("From the keyboard")).toBeVisible();
});
