// Every page in light and dark mode and at the width of a phone: accessible, reachable by keyboard, no wider
// than its window. With SOJOURN_SCREENSHOTS set, docs/screenshots gets the published pictures, and the
// directory that it names gets all others.
import type { Locator, Page } from "@playwright/test";
import { accessible, expect, test } from "./fixtures";
import { scene } from "./scene";

const LOOKS = [
  { name: "light", scheme: "light", width: 1280, height: 800 },
  { name: "dark", scheme: "dark", width: 1280, height: 800 },
  { name: "phone", scheme: "light", width: 390, height: 780 },
] as const;

/** Pages that are published in every mode; the others only in light mode. */
const IN_EVERY_LOOK = ["session", "sessions", "session-files", "session-details", "agent", "agent-schedules", "usage"];

async function look(page: Page, place: string, name: string): Promise<void> {
  await accessible(page);
  const [wide, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  expect(wide, `${place} by ${name} is wider than its window`).toBeLessThanOrEqual(window ?? 0);
  const cut = await page.locator(".table-wrap").evaluateAll((tables) => tables.filter((table) => table.scrollWidth > table.clientWidth).length);
  expect(cut, `${place} by ${name} has a table that is wider than its frame`).toBe(0);
  if (!process.env.SOJOURN_SCREENSHOTS) return;
  // The fonts of the page are loaded before a picture is taken.
  await page.evaluate(() => document.fonts.ready);
  const isKept = name === "light" || IN_EVERY_LOOK.includes(place);
  const directory = isKept ? "../docs/screenshots" : process.env.SOJOURN_SCREENSHOTS;
  await page.screenshot({ path: `${directory}/${place}-${name}.png` });
}

/** Opens the menu; a wide page shows it always. */
async function menu(page: Page): Promise<boolean> {
  const button = page.getByRole("button", { name: "Menu" });
  const isVisible = await button.isVisible();
  if (isVisible) await button.click();
  return isVisible;
}

for (const { name, scheme, width, height } of LOOKS) {
  test(`every page holds by ${name}`, async ({ reader: page, service }) => {
    test.setTimeout(180_000);
    const { agent, review, waiting } = await scene(service);
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme: scheme });
    const to = async (place: string, path: string, sign: Locator) => {
      await page.goto(`${service.url}/#${path}`);
      await expect(sign.first()).toBeVisible();
      await look(page, place, name);
    };
    const makes = async (place: string, button: string) => {
      await page.getByRole("button", { name: button, exact: true }).first().click();
      await expect(page.getByRole("dialog")).toBeVisible();
      for (const summary of await page.locator("dialog details:not([open]) > summary").all()) await summary.click();
      await look(page, place, name);
      await page.keyboard.press("Escape");
    };

    await to("sessions", "/", page.getByRole("link", { name: "Review: prices" }));
    await makes("new-session", "New session");
    await page.goto(`${service.url}/#/sessions/${review}`);
    await expect(page.getByRole("group", { name: "Suggested answers" })).toBeVisible();
    await page.getByRole("button", { name: /unittest nothing/ }).click();
    await look(page, "session", name);
    await to("session-files", `/sessions/${review}/files?path=%2Fworkspace%2Fshop`, page.getByRole("button", { name: "price.py" }));
    await page.getByRole("button", { name: "price.py" }).click();
    await expect(page.getByRole("region", { name: "Text of price.py" })).toContainText("__eq__");
    await look(page, "session-file", name);
    await to("session-details", `/sessions/${review}/details`, page.getByText("of $0.50"));
    await page.goto(`${service.url}/#/sessions/${review}/events`);
    await page.locator(".raw-row > button").first().click();
    await look(page, "session-events", name);
    await to("session-deliveries", `/sessions/${review}/deliveries`, page.getByText("receiver.example"));
    await makes("new-destination", "Add a destination");

    await to("session-waiting", `/sessions/${waiting}`, page.getByLabel("Result of deploy"));
    await to("pending", "/pending", page.getByLabel("Result of deploy"));

    await to("agents", "/agents", page.getByRole("link", { name: "reviewer" }));
    await makes("new-agent", "New agent");
    await to("agent", `/agents/${agent}`, page.getByRole("heading", { name: "Compare" }));
    await page.goto(`${service.url}/#/agents/${agent}/schedules`);
    await page.getByRole("listitem").filter({ hasText: "Morning report" }).getByRole("button", { name: "Runs" }).click();
    await expect(page.getByRole("list", { name: "Runs" }).getByText("completed")).toBeVisible();
    await look(page, "agent-schedules", name);
    await makes("new-schedule", "New schedule");
    await to("agent-triggers", `/agents/${agent}/triggers`, page.getByText("@acme-bot in a comment"));
    await makes("new-trigger", "New trigger");
    await to("agent-invoke", `/agents/${agent}/invoke`, page.getByText("support form"));
    await makes("new-invoke-token", "New token");

    await to("environments", "/environments", page.getByText("GITHUB_TOKEN"));
    await makes("new-environment", "New environment");
    await to("skills", "/skills", page.getByText("price-review"));
    await to("credentials", "/credentials", page.getByText("billing team"));
    await makes("new-credential", "Add a key");
    await to("webhooks", "/webhooks", page.getByText("webhook.test"));
    await makes("new-webhook", "Add a webhook");
    await to("keys", "/keys", page.getByText("the back-end"));
    await makes("new-key", "New key");
    await to("usage", "/usage", page.getByText("Totals"));
    await to("audit", "/audit", page.getByText("key.created"));
    if (await menu(page)) await look(page, "menu", name);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByText("Where is my key?").click();
    await look(page, "sign-in", name);
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
