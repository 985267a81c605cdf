// The served documentation: every page in light and dark mode and at the width of a phone, without scripts,
// and by keyboard.
import { accessible, expect, test } from "./fixtures";

const PAGES = ["", "/api", "/api/sessions", "/api/types", "/errors", "/errors/conflict", "/events/turn.completed", "/limits", "/readme"];

for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 390]] as const) {
  test(`the documentation holds by ${scheme} at ${width}`, async ({ page, service }) => {
    await page.setViewportSize({ width, height: 800 });
    await page.emulateMedia({ colorScheme: scheme });
    for (const path of PAGES) {
      const answer = await page.goto(`${service.url}/docs${path}`);
      expect(answer?.status(), path).toBe(200);
      await expect(page.getByRole("heading", { level: 1 })).toHaveCount(1);
      await accessible(page);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      expect(wide, `${path} is wider than its window`).toBeLessThanOrEqual(width);
    }
  });
}

test("it is read by keyboard, from the dashboard to one operation", async ({ reader: page, service }) => {
  await page.getByRole("link", { name: "Docs" }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Documentation" })).toBeVisible();
  await page.keyboard.press("Tab");
  await expect(page.getByText("Skip to the page")).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(page.locator("main")).toBeFocused();
  await page.getByRole("banner").getByRole("link", { name: "Reference" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("link", { name: /POST \/v3\/sessions\/\{session_id\}\/messages/ }).focus();
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(`${service.url}/docs/api/sessions#steerSession`);
  await expect(page.getByRole("heading", { name: /Send a message/ })).toBeInViewport();
  await page.getByRole("link", { name: "Steer", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Steer", exact: true })).toBeInViewport();
});
