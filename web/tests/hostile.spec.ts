// Text of agents and organizations stays text on every page: never markup, never script, never a request to
// another server.
import { expect, test } from "./fixtures";

/** Each one tries to set `window.hit`, open a dialog, request a server, or break the page. */
const ATTACKS = [
  `<script>window.hit=1</script>`,
  `<img src=x onerror="window.hit=2">`,
  `<svg onload="window.hit=3"></svg>`,
  `<iframe srcdoc="<script>parent.hit=4</script>"></iframe>`,
  `[a link](javascript:window.hit=5)`,
  `![a picture](https://tracker.example/p.png)`,
  `<a href="javascript:window.hit=6">other link</a>`,
  `"><style>body{display:none}</style>`,
  "```html\n<img src=x onerror=window.hit=7>\n```",
  `[ref]: javascript:window.hit=8\n\n[ref link][ref]`,
  `<form action="https://tracker.example"><input name=q></form>`,
  `{{constructor.constructor('window.hit=9')()}}`,
  `[data](data:text/html;base64,PHNjcmlwdD53aW5kb3cuaGl0PTEwPC9zY3JpcHQ+)`,
];
const ALL = ATTACKS.join("\n\n");
const SHORT = `<img src=x onerror="window.hit=11"><script>window.hit=12</script>`;
const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
/** Names and contents of files; one name contains characters that change the direction of text. */
const FILES = [
  "mkdir -p hostile && cd hostile",
  `printf %s ${quoted(ALL)} | tee page.html > ${quoted(SHORT.replace("</", "<"))}`,
  "touch $'sr\\u202etxt.sh'",
  `mkdir ${quoted('<svg onload="window.hit=15">')}`,
].join(" && ");

test("no text of an agent or an organization becomes markup or script", async ({ reader, service }) => {
  const agent = await service.call("POST", "/agents", {
    name: SHORT,
    prompt: ALL,
    model: "scripted/inline",
  });
  await service.call("PATCH", `/agents/${agent.id}`, { prompt: `${ALL}\n\nmore` });
  const script = [
    {
      thinking: ALL,
      text: ALL,
      tools: [
        { tool: SHORT, input: { [SHORT]: ALL } },
        { tool: "glob", input: { pattern: SHORT } },
        { tool: "edit", input: { path: SHORT, old: ALL, new: `${ALL}!` } },
        { tool: "bash", input: { command: FILES } },
        { tool: "ask", input: { question: ALL, options: [SHORT, `[x](javascript:window.hit=13)`] } },
      ],
    },
  ];
  const created = await service.call("POST", "/sessions", {
    agent: agent.id,
    title: SHORT,
    key: SHORT,
    metadata: { [SHORT]: ALL },
    input: { script, text: ALL },
  });
  const session = created.session.id;
  await service.until(session, "awaiting_input");
  await service.call("POST", `/sessions/${session}/messages`, {
    envelope: { text: ALL, source: SHORT, raw: { [SHORT]: ALL } },
  });
  await service.until(session, "idle");
  await service.call("POST", "/credentials", { provider: "other", key: "sk-hostile-0001", name: SHORT, base_url: "https://models.example/" });

  const told = { cron: "0 0 1 1 *", input: ALL, title: SHORT, overlap: "allow" };
  const schedule = await service.call("POST", `/agents/${agent.id}/schedules`, told);
  await service.call("POST", `/agents/${agent.id}/schedules/${schedule.id}/fire`);
  const hooked = { kind: "github", title: SHORT, mention: "a-bot", metadata: { [SHORT]: ALL } };
  await service.call("POST", `/agents/${agent.id}/hooks`, hooked);
  await service.call("POST", "/keys", { name: SHORT, scopes: ["sessions:read"] });
  await service.call("POST", `/agents/${agent.id}/invoke-tokens`, { name: SHORT });
  const skill = await service.skill("hostile", ALL.replace(ATTACKS[0]!, SHORT));
  await service.call("POST", "/environments", { name: SHORT, config: { env: { NAME: ALL }, lifecycle_hooks: { post_start: ALL } } });
  const trigger = await service.call("POST", "/webhooks", { url: `https://receiver.example/?q=<img src=x onerror="window.hit=14">`, types: [SHORT.slice(0, 60)] });
  await service.call("POST", `/webhooks/${trigger.id}/test`);

  const clean = async () => {
    const found = await reader.evaluate(() => ({
      hit: (window as unknown as { hit?: number }).hit,
      inert: document.querySelectorAll(
        "#root script, #root iframe, #root style, #root form[action], #root [onerror], #root [onload], #root img[src^=http]",
      ).length,
      links: [...document.querySelectorAll("a")].map((link) => link.getAttribute("href") ?? ""),
    }));
    expect(found.hit).toBeUndefined();
    expect(found.inert).toBe(0);
    // The footer links to the documentation, which the service itself serves.
    expect(found.links.filter((href) => !/^(#|https?:|mailto:|\/docs$|$)/.test(href))).toEqual([]);
    await expect(reader.locator("body")).toBeVisible();
  };

  await expect(reader.getByRole("link", { name: SHORT }).first()).toBeVisible();
  await clean();
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.locator(".message").first()).toBeVisible();
  // Expands everything that can be expanded, from the top to the end.
  const frame = reader.locator(".frame");
  for (let top = 0; ; top += 400) {
    await frame.evaluate((element, top) => (element.scrollTop = top), top);
    for (let folded = timeline.locator('button[aria-expanded="false"]'); (await folded.count()) > 0; ) {
      await folded.first().click();
    }
    for (const summary of await timeline.locator("details:not([open]) > summary").all()) await summary.click();
    await clean();
    if (await frame.evaluate((element) => element.scrollTop + element.clientHeight >= element.scrollHeight - 2)) break;
  }
  for (const tab of ["details", "network", "events", "deliveries"]) {
    await reader.goto(`${service.url}/#/sessions/${session}/${tab}`);
    await expect(reader.getByRole("heading", { name: SHORT })).toBeVisible();
    if (tab === "events") {
      for (const row of (await reader.locator(".raw-row > button").all()).slice(0, 8)) await row.click();
    }
    await clean();
  }
  await reader.goto(`${service.url}/#/sessions/${session}/files?path=%2Fworkspace%2Fhostile`);
  await expect(reader.getByRole("button", { name: "sr⟨U+202E⟩txt.sh" })).toBeVisible();
  await clean();
  for (const file of [SHORT.replace("</", "<"), "page.html"]) {
    await reader.getByRole("button", { name: file, exact: true }).click();
    await expect(reader.getByRole("region", { name: `Text of ${file}` })).toContainText("window.hit=9");
    await clean();
    await reader.goBack();
  }
  await reader.getByRole("button", { name: "<svg" }).click();
  await expect(reader.getByRole("heading", { name: "Empty directory" })).toBeVisible();
  await clean();
  await reader.goto(`${service.url}/#/agents/${agent.id}`);
  await expect(reader.getByRole("heading", { name: SHORT })).toBeVisible();
  await clean();
  for (const tab of ["schedules", "triggers"]) {
    await reader.goto(`${service.url}/#/agents/${agent.id}/${tab}`);
    const card = reader.getByRole("listitem").filter({ hasText: SHORT }).first();
    await expect(card).toBeVisible();
    if (tab === "schedules") await card.getByRole("button", { name: "Runs" }).click();
    await clean();
    await card.getByRole("button", { name: "Edit" }).click();
    await clean();
    await reader.keyboard.press("Escape");
  }
  await reader.goto(`${service.url}/#/agents/${agent.id}/invoke`);
  await expect(reader.getByRole("listitem").filter({ hasText: SHORT })).toBeVisible();
  await clean();
  for (const page of ["skills", "credentials", "keys", "environments"]) {
    await reader.goto(`${service.url}/#/${page}`);
    await expect(reader.getByText(SHORT)).toBeVisible();
    await clean();
  }
  await reader.getByRole("listitem").filter({ hasText: SHORT }).getByRole("button", { name: "Edit" }).click();
  await clean();
  await reader.keyboard.press("Escape");
  await reader.goto(`${service.url}/#/webhooks`);
  await reader.getByRole("button", { name: "webhook.test" }).first().click();
  await clean();
  await service.call("DELETE", `/webhooks/${trigger.id}`);
  await service.call("DELETE", `/skills/${skill.id}`);
  await reader.goto(`${service.url}/#/audit`);
  await expect(reader.getByText(SHORT).first()).toBeVisible();
  await clean();
  await reader.goto(`${service.url}/#/usage`);
  await reader.getByRole("combobox", { name: "By", exact: true }).selectOption("agent");
  await expect(reader.getByText(SHORT).first()).toBeVisible();
  await clean();
});

test("the address of a page cannot lead anywhere else", async ({ reader, service }) => {
  for (const path of ["#/sessions/..%2f..%2f", "#/sessions/<img src=x onerror=alert(1)>", "#//evil.example", "#/?status=<b>"]) {
    await reader.goto(`${service.url}/${path}`);
    await expect(reader.getByRole("link", { name: "Sojourn" })).toBeVisible();
  }
});
