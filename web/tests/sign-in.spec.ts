// Signing in and out.
import { expect, test } from "./fixtures";
import { KEY } from "./service";

test("a wrong key is refused in words, the right one stays in this tab only", async ({ page, service }) => {
  await page.goto(service.url);
  await page.getByLabel("API key").fill("sjk_not_a_key_of_anyone");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alert")).toContainText("Sign in with another key");

  await page.getByLabel("API key").fill(`  ${KEY}\n`);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { name: "Sessions", exact: true })).toBeVisible();
  expect(page.url()).not.toContain(KEY);
  const kept = await page.evaluate(() => [JSON.stringify(localStorage), document.cookie]);
  expect(kept).toEqual(["{}", ""]);

  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page.getByLabel("API key")).toBeVisible();
  expect(await page.evaluate(() => JSON.stringify(sessionStorage))).toBe("{}");
});

test("a key that was revoked meanwhile leads back to the sign-in page", async ({ page, service }) => {
  const made = await service.call("POST", "/keys", { name: "to be revoked", scopes: ["sessions:read", "agents:read"] });
  await page.goto(service.url);
  await page.getByLabel("API key").fill(made.key);
  await page.getByLabel("API key").press("Enter");
  await expect(page.getByRole("heading", { name: "Sessions", exact: true })).toBeVisible();
  await service.call("DELETE", `/keys/${made.id}`);
  // Revoking the key ends the stream of the list, without any action on the page.
  await expect(page.getByRole("alert")).toContainText("unknown, expired or revoked");
});

test("the page and its assets say what a browser may do with them", async ({ request, service }) => {
  const page = await request.get(service.url);
  const policy = page.headers()["content-security-policy"] ?? "";
  for (const rule of ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for"]) {
    expect(policy).toContain(rule);
  }
  expect(policy).not.toContain("unsafe");
  const script = /src="(\/assets\/[^"]+\.js)"/.exec(await page.text())?.[1];
  const asset = await request.get(`${service.url}${script}`);
  expect(asset.headers()["cache-control"]).toContain("immutable");
  expect(asset.headers()["content-encoding"]).toBe("gzip");
  const known = await request.get(service.url, { headers: { "if-none-match": page.headers().etag ?? "" } });
  expect(known.status()).toBe(304);
  const unknown = await request.get(`${service.url}/assets/nothing.js`);
  expect(unknown.status()).toBe(404);
  expect((await unknown.json()).error.type).toBe("not_found");
  const elsewhere = await request.get(`${service.url}/elsewhere`);
  expect((await elsewhere.json()).error.type).toBe("not_found");
});
