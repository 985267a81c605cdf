// The published client @opencomputer/sdk, unmodified, against a running service.
//
//   SOJOURN_URL       for example http://127.0.0.1:8080/v3
//   SOJOURN_API_KEY   a key with write access to an organization for tests
//
// The service must run with SOJOURN_ALLOW_PRIVATE_WEBHOOKS=true, because the
// receiver of this program listens on loopback, and with scripted models enabled.
// Only operations of the client are tested. Prints a line per check and exits
// with 1 at the first failure, since later checks depend on earlier ones.

import { randomUUID } from "node:crypto";
import process from "node:process";

import { OpenComputer } from "@opencomputer/sdk";

import { agents, credentials } from "./agents.mjs";
import { errors } from "./errors.mjs";
import { lists, log, spilled } from "./log.mjs";
import { cancel, archive, steering } from "./steering.mjs";
import { webhooks } from "./webhooks.mjs";

const WHOLE_RUN_MS = 180_000;

function setting(name) {
  const value = process.env[name];
  if (!value) {
    console.error(`${name} is not set; see the top of main.mjs`);
    process.exit(1);
  }
  return value;
}

async function check(name, body) {
  try {
    const made = await body();
    console.log(`ok - ${name}`);
    return made;
  } catch (error) {
    console.error(`not ok - ${name}`);
    console.error(error);
    process.exit(1);
  }
}

const baseUrl = setting("SOJOURN_URL");
const apiKey = setting("SOJOURN_API_KEY");

/** State shared by all chapters; chapters add values for later ones. */
const world = {
  check,
  baseUrl,
  client: new OpenComputer({ apiKey, baseUrl }),
  apiKey,
  // Names and keys are unique per organization, and this program may run again.
  run: randomUUID().slice(0, 8),
};

const watchdog = setTimeout(() => {
  console.error(`not ok - the whole run within ${WHOLE_RUN_MS / 1000} s`);
  process.exit(1);
}, WHOLE_RUN_MS);

for (const chapter of [agents, credentials, log, spilled, lists, steering, webhooks, cancel, archive, errors]) {
  await chapter(world);
}
clearTimeout(watchdog);
console.log("all checks passed");
// A connection that a check left open must not keep the process alive.
process.exit(0);
