// A log of ten thousand events: the page draws only the visible rows, and scrolls.
import { expect, test } from "./fixtures";

const EVENTS = 10_000;

/** A log in the form of the service: turns of messages and tool calls. */
function log(session: string): string {
  const frames: string[] = [];
  for (let seq = 1; seq <= EVENTS; seq++) {
    const call = `call_${Math.ceil(seq / 4)}`;
    const [type, body] = [
      ["agent.message", { text: `Now **part ${seq}** of the work, which is \`long\`.` }],
      ["tool.call", { call_id: call, tool: "bash", input: { command: `make part-${seq}` }, args_summary: `make part-${seq}` }],
      ["exec.completed", { call_id: call, exit_code: seq % 3, cause: "exited", bytes: 10, duration_ms: 40 }],
      ["tool.result", { call_id: call, tool: "bash", output: "done\n".repeat(20), is_error: false, outcome: "ran", duration_ms: 41 }],
    ][seq % 4] as [string, object];
    const event = {
      id: `evt_${seq}`, seq, ts: "2026-01-01T00:00:00Z", session, type, body,
      actor: { type: "agent" }, level: "progress", refs: {},
    };
    frames.push(`id: ${seq}\ndata: ${JSON.stringify(event)}\n\n`);
  }
  return frames.join("");
}

test("ten thousand events are drawn a screen at a time", async ({ reader, service }) => {
  const session = await service.play([{ text: "short" }], { title: "Long" });
  await service.until(session, "idle");
  // Stubbed, because the service would need minutes of work to produce this log; the format is the same.
  await reader.route("**/events?stream=sse*", async (route) => {
    if (!route.request().url().endsWith("after=0")) return route.abort();
    await route.fulfill({ status: 200, contentType: "text/event-stream", body: log(session) });
  });
  const began = Date.now();
  await reader.goto(`${service.url}/#/sessions/${session}`);
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.getByText(`part ${EVENTS}`).first()).toBeVisible();
  const shown = Date.now() - began;
  expect(await timeline.locator(".item").count()).toBeLessThan(80);

  // Scrolls from the end to the beginning, and times each frame.
  const frames = await timeline.evaluate(async (frame) => {
    const times: number[] = [];
    let last = performance.now();
    const steps = 120;
    for (let step = steps; step >= 0; step--) {
      frame.dispatchEvent(new WheelEvent("wheel", { bubbles: true }));
      frame.scrollTop = (frame.scrollHeight * step) / steps;
      await new Promise((drawn) => requestAnimationFrame(drawn));
      const now = performance.now();
      times.push(now - last);
      last = now;
    }
    return times.sort((one, other) => one - other);
  });
  await expect(timeline.getByText("make part-1", { exact: true })).toBeVisible();
  const at = (part: number) => Math.round(frames[Math.floor((frames.length - 1) * part)] ?? 0);
  console.log(`shown in ${shown} ms; frames while scrolling: ${at(0.5)} ms median, ${at(0.95)} ms p95, ${at(1)} ms longest`);
  expect(at(0.5)).toBeLessThan(300);
});
