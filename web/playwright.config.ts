// The dashboard in a real browser, against a real service with its own database.
import { defineConfig } from "@playwright/test";

export default defineConfig({
  testDir: "tests",
  // One service for all of them, restarted by one of them.
  workers: 1,
  forbidOnly: true,
  retries: 0,
  // Bounds on a hang, not on speed: the machine is shared with the other tests.
  timeout: 240_000,
  expect: { timeout: 60_000 },
  reporter: [["list"]],
  use: {
    launchOptions: {
      executablePath: process.env.SOJOURN_CHROMIUM ?? "/usr/bin/chromium",
      // Chromium's own sandbox does not start for root.
      args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
    },
    viewport: { width: 1280, height: 800 },
    locale: "en-GB",
    timezoneId: "UTC",
    actionTimeout: 60_000,
  },
});
