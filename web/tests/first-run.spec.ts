// The output of `make run` leads a new user from the address and the key to a steered session. With
// SOJOURN_SCREENSHOTS set, each step is stored in docs/.
import { expect, type Page, test } from "@playwright/test";
import { accessible } from "./fixtures";
import { Service } from "./service";

async function step(page: Page, name: string): Promise<void> {
  await accessible(page);
  await page.evaluate(() => document.fonts.ready);
  if (process.env.SOJOURN_SCREENSHOTS) await page.screenshot({ path: `../docs/screenshots/first-run-${name}.png` });
}

test("whoever follows what the service prints steers the first session", async ({ page }) => {
  test.setTimeout(120_000);
  const service = await Service.start({ SOJOURN_BOOTSTRAP_API_KEY: undefined, SOJOURN_FIRST_SESSION: "on", SOJOURN_LOG: "info" });
  try {
    const words = /^Open (\S+) in a browser and sign in/m;
    await expect.poll(() => service.said()).toMatch(words);
    const said = service.said();
    const address = words.exec(said)?.[1] ?? "";
    const key = /^API key: (\S+)$/m.exec(said)?.[1] ?? "";
    expect([address, key.slice(0, 9)]).toEqual([service.url, "sjk_live_"]);

    await page.goto(address);
    await step(page, "1-sign-in");
    await page.keyboard.type(key);
    await page.keyboard.press("Enter");
    const first = page.getByRole("link", { name: "First session" });
    await expect(first).toBeVisible();
    await step(page, "2-sessions");
    await first.click();
    const timeline = page.getByRole("region", { name: "Timeline" });
    await expect(timeline.locator(".end")).toContainText("completed");
    await step(page, "3-the-agent-is-done");

    const field = page.getByLabel("Message to the agent");
    await field.fill("Thank you. What did you change?");
    await page.getByRole("button", { name: "Send" }).click();
    await expect(timeline.locator(".message[data-role=user]").filter({ hasText: "What did you change?" })).toBeVisible();
    await expect(timeline.locator(".end").last()).toContainText("completed");
    await expect(page.getByText("2 turns")).toBeVisible();
    await expect(timeline.getByText("In tally.py I replaced")).toBeVisible();
    await step(page, "4-it-was-steered");

    await page.getByRole("link", { name: "Files" }).click();
    await expect(page.getByRole("row").nth(1)).toBeVisible();
    await step(page, "5-its-files");
  } finally {
    await service.end();
  }
});
