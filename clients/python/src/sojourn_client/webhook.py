"""Webhooks by the specification of Standard Webhooks 1.0.0: who sent it, and when."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any, TypedDict, cast

from .errors import WebhookError

#: How far a delivery's time may be from now, in seconds.
TOLERANCE = 300


class Webhook(TypedDict):
    """A delivery that was verified."""

    id: str
    """The same on every try: what was seen need not be done again."""
    type: str
    sessionId: str | None
    eventId: str
    metadata: dict[str, Any]
    event: dict[str, Any]


def verify_webhook(body: bytes | str, headers: Mapping[str, str], secret: str, *, now: float | None = None) -> Webhook:
    """Verifies a delivery and reads it. `body` is the request's body as it came, unparsed.

    Raises `WebhookError` when it is not the service's, or not of these minutes.
    """
    raw = body.encode() if isinstance(body, str) else body
    lower = {name.lower(): value for name, value in headers.items()}
    values = [lower.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")]
    if not all(values):
        raise WebhookError("a header of Standard Webhooks is missing")
    delivery, timestamp, signatures = values
    if not timestamp.isascii() or not timestamp.isdigit() or abs((now or time.time()) - int(timestamp)) > TOLERANCE:
        raise WebhookError("the delivery is too old, or from the future")
    signed = f"{delivery}.{timestamp}.".encode() + raw
    mac = base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest())
    # Two signatures while a secret is rotated: one of them is enough.
    if not any(hmac.compare_digest(one.encode(), b"v1," + mac) for one in signatures.split(" ")):
        raise WebhookError("no signature fits")
    try:
        read = json.loads(raw)
    except ValueError as error:
        raise WebhookError("the delivery is no JSON") from error
    if not isinstance(read, dict):
        raise WebhookError("the delivery is no object")
    return cast("Webhook", {**read, "id": delivery})


def _key(secret: str) -> bytes:
    """What base64 names after the prefix; else a secret of one's own making, as it is."""
    bare = secret.removeprefix("whsec_")
    plain = bare.rstrip("=")
    try:
        made = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return secret.encode()
    # Only what encodes back to itself is base64.
    encoded = base64.b64encode(made).decode()
    return made if bare in (encoded, encoded.rstrip("=")) else secret.encode()
