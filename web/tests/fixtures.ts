// Fixtures of the browser tests: the service, a watched page, and a signed-in reader.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test as base, expect, type Locator, type Page } from "@playwright/test";
import { KEY, Service } from "./service";

export { expect };

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface Fault {
  impact: string;
  id: string;
  help: string;
  nodes: { html: string; failureSummary: string }[];
}

export const test = base.extend<{ watched: void; reader: Page }, { service: Service }>({
  service: [
    async ({}, use) => {
      const service = await Service.start();
      await use(service);
      await service.end();
    },
    { scope: "worker", timeout: 120_000 },
  ],

  /**
   * Fails on a script error, a dialog, a violation of the content security policy, or a request to another
   * origin.
   */
  watched: [
    async ({ page, service }, use) => {
      const wrong: string[] = [];
      page.on("pageerror", (error) => wrong.push(`script error: ${error.message}`));
      page.on("dialog", (dialog) => {
        wrong.push(`dialog: ${dialog.message()}`);
        void dialog.dismiss();
      });
      page.on("console", (message) => {
        if (/Content Security Policy|TrustedHTML|TrustedScript/.test(message.text())) wrong.push(message.text());
      });
      page.on("request", (request) => {
        const url = request.url();
        // The page reads its own bytes at a `blob:` address.
        if (!url.replace(/^blob:/, "").startsWith(service.url)) wrong.push(`a request elsewhere: ${url}`);
        if (url.includes(KEY)) wrong.push(`the key in an address: ${url}`);
      });
      await use();
      expect(wrong).toEqual([]);
    },
    { auto: true },
  ],

  reader: async ({ page, service }, use) => {
    await page.addInitScript((key) => sessionStorage.setItem("sojourn.key", key), KEY);
    await page.goto(service.url);
    await use(page);
  },
});

/** Scrolls the timeline from its beginning until `wanted` is visible. */
export async function unroll(page: Page, wanted: Locator): Promise<void> {
  await page.locator(".frame").hover();
  await page.mouse.wheel(0, -100_000);
  for (let turns = 0; turns < 60; turns++) {
    await page.waitForTimeout(100);
    if (await wanted.isVisible()) return;
    await page.mouse.wheel(0, 300);
  }
  throw new Error("it is nowhere in the timeline");
}

/** Checks the page with axe-core: no serious and no critical violation. */
export async function accessible(page: Page): Promise<void> {
  await page.evaluate(AXE);
  const faults = await page.evaluate(async () => {
    const axe = (window as unknown as { axe: { run(): Promise<{ violations: unknown[] }> } }).axe;
    return (await axe.run()).violations as Fault[];
  });
  const serious = faults.filter(({ impact }) => impact === "serious" || impact === "critical");
  expect(serious.map(({ id, help, nodes }) => `${id}: ${help}\n${nodes.map((node) => node.html).join("\n")}`)).toEqual([]);
}
