// First use: an empty service, without the documentation.
import { expect, test, unroll } from "./fixtures";

test("a new user gets from an empty service to a finished session without the API", async ({ reader }) => {
  await expect(reader.getByText("No sessions yet")).toBeVisible();
  await reader.getByRole("link", { name: "Create an agent" }).click();
  await expect(reader.getByText("No agents yet")).toBeVisible();
  await reader.getByRole("button", { name: "New agent" }).click();
  await reader.getByLabel("Name").fill("mender");
  await reader.getByLabel("Prompt").fill("You fix code.");
  await reader.getByLabel("Model", { exact: true }).fill("scripted/demo");
  await reader.getByRole("button", { name: "Create agent" }).click();
  await expect(reader.getByRole("heading", { name: "mender" })).toBeVisible();

  await reader.getByRole("button", { name: "New session" }).click();
  await reader.getByLabel("Input", { exact: true }).fill("Fix the repository.");
  await reader.getByLabel("Title").fill("Fix it");
  await reader.getByRole("button", { name: "Create session" }).click();
  await expect(reader.getByRole("heading", { name: "Fix it" })).toBeVisible();
  const timeline = reader.getByRole("region", { name: "Timeline" });
  await expect(timeline.locator(".end")).toContainText("completed");

  // The change of the agent, as a colored diff.
  const edit = timeline.getByRole("button", { name: /^edit/ });
  await unroll(reader, edit);
  await edit.click();
  const change = timeline.getByRole("region", { name: "Change" });
  await expect(change.locator("[data-diff=cut]").first()).toBeVisible();
  await expect(change.locator("[data-diff=add]").first()).toBeVisible();
  // A failed command shows its exit code and its output.
  const failed = timeline.locator('.tool[data-state="failed"]').first();
  await unroll(reader, failed);
  await expect(failed).toContainText("exit 1");
  await failed.getByRole("button").click();
  await expect(failed.getByRole("region", { name: "Output of bash" })).toContainText("FAILED");
  await reader.getByRole("link", { name: "Sessions", exact: true }).click();
  await expect(reader.getByRole("row", { name: /Fix it/ })).toContainText("completed");
});
