// Webhooks by the specification of Standard Webhooks 1.0.0: who sent it, and when.

/** A delivery that was verified. */
export interface Webhook {
  /** The same on every try: what was seen need not be done again. */
  id: string;
  type: string;
  sessionId: string;
  eventId: string;
  metadata: Record<string, unknown>;
  event: Record<string, any>;
}

export class WebhookError extends Error {
  override name = "WebhookError";
}

/** How far a delivery's time may be from now, in seconds. */
const TOLERANCE_SECONDS = 300;

type Headers_ = Headers | Record<string, string | string[] | undefined>;

/**
 * Verifies a delivery and reads it. `body` is the request's body as it came, unparsed.
 * Throws a `WebhookError` when it is not the service's, or not of these minutes.
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
    throw new WebhookError("the delivery is too old, or from the future");
  }
  const key = await crypto.subtle.importKey("raw", keyOf(secret), { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
  const signed = new TextEncoder().encode(`${id}.${timestamp}.${body}`);
  // Two signatures while a secret is rotated: one of them is enough.
  for (const signature of signatures.split(" ")) {
    const [version, mac] = signature.split(",", 2);
    if (version !== "v1" || !mac) continue;
    const bytes = decoded(mac);
    // The comparison is the library's, in constant time.
    if (bytes && (await crypto.subtle.verify("HMAC", key, bytes, signed))) {
      return { id, ...(JSON.parse(body) as Omit<Webhook, "id">) };
    }
  }
  throw new WebhookError("no signature fits");
}

/** What base64 names after the prefix; else a secret of one's own making, delivery by delivery. */
function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  const bare = secret.replace(/^whsec_/, "");
  const made = decoded(bare);
  const plain = (text: string) => text.replace(/=+$/, "");
  // Only what encodes back to itself is base64.
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
