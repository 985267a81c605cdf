// Verification of webhooks by Standard Webhooks 1.0.0: sender and time.
import type { components } from "./schema.js";

type Schemas = components["schemas"];

/** A verified delivery. */
export type Webhook = Schemas["WebhookPayload"] & {
  /** Equal on every attempt of a delivery: use it to detect repeats. */
  id: string;
};

/** The delivery is not from the service, or its timestamp is too far from now. */
export class WebhookError extends Error {
  override name = "WebhookError";
}

/** Largest difference between the time of a delivery and now, in seconds. */
const TOLERANCE_SECONDS = 300;

type Headers_ = Headers | Record<string, string | string[] | undefined>;

/**
 * Verifies a delivery and parses it. `body` is the raw body of the request, unparsed.
 * Throws a `WebhookError` if the signature does not match or the timestamp is more than 5 minutes
 * from now.
 */
export async function verifyWebhook(body: string, headers: Headers_, secret: string): Promise<Webhook> {
  const read = (name: string) => {
    const value = headers instanceof Headers ? headers.get(name) : headers[name];
    if (typeof value !== "string" || value === "") throw new WebhookError(`the header ${name} is missing`);
    return value;
  };
  const [id, timestamp, signatures] = [read("webhook-id"), read("webhook-timestamp"), read("webhook-signature")];
  const seconds = Number(timestamp);
  if (!Number.isInteger(seconds) || Math.abs(Date.now() / 1_000 - seconds) > TOLERANCE_SECONDS) {
    throw new WebhookError("the timestamp is more than 5 minutes from now");
  }
  const key = await crypto.subtle.importKey("raw", keyOf(secret), { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
  const signed = new TextEncoder().encode(`${id}.${timestamp}.${body}`);
  // While a secret is rotated there are two signatures; one match is enough.
  for (const signature of signatures.split(" ")) {
    const [version, mac] = signature.split(",", 2);
    if (version !== "v1" || !mac) continue;
    const bytes = decoded(mac);
    // WebCrypto compares in constant time.
    if (bytes && (await crypto.subtle.verify("HMAC", key, bytes, signed))) {
      return { id, ...(JSON.parse(body) as Omit<Webhook, "id">) };
    }
  }
  throw new WebhookError("no signature matches");
}

/** The key of a secret: decoded if the part after the prefix is base64, else its UTF-8 bytes. */
function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  const bare = secret.replace(/^whsec_/, "");
  const made = decoded(bare);
  const plain = (text: string) => text.replace(/=+$/, "");
  // Base64 only if it encodes back to the same text.
  const isMade = made !== undefined && plain(btoa(String.fromCharCode(...made))) === plain(bare);
  return isMade ? made : new TextEncoder().encode(secret);
}

function decoded(base64: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(base64), (delivery) => delivery.charCodeAt(0));
  } catch {
    return undefined;
  }
}
