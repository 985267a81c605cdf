"""Verification of webhooks by Standard Webhooks 1.0.0: sender and time."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, cast

from .errors import WebhookError

if TYPE_CHECKING:
    from . import models

#: Largest difference between the time of a delivery and now, in seconds.
TOLERANCE = 300


class Webhook(TypedDict):
    """A verified delivery."""

    id: str
    """Equal on every attempt of a delivery: use it to detect repeats."""
    type: str
    sessionId: str | None
    eventId: str
    metadata: dict[str, Any]
    event: models.Event | models.Notice
    """The event: of a log, or a notice of the organization."""


def verify_webhook(body: bytes | str, headers: Mapping[str, str], secret: str, *, now: float | None = None) -> Webhook:
    """Verifies a delivery and parses it. `body` is the raw body of the request, unparsed.

    Raises `WebhookError` if the signature does not match or the timestamp is more than
    5 minutes from now.
    """
    raw = body.encode() if isinstance(body, str) else body
    lower = {name.lower(): value for name, value in headers.items()}
    values = [lower.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")]
    if not all(values):
        raise WebhookError("a header of Standard Webhooks is missing")
    delivery, timestamp, signatures = values
    if not timestamp.isascii() or not timestamp.isdigit() or abs((now or time.time()) - int(timestamp)) > TOLERANCE:
        raise WebhookError("the timestamp is more than 5 minutes from now")
    signed = f"{delivery}.{timestamp}.".encode() + raw
    mac = base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest())
    # While a secret is rotated there are two signatures; one match is enough.
    if not any(hmac.compare_digest(one.encode(), b"v1," + mac) for one in signatures.split(" ")):
        raise WebhookError("no signature matches")
    try:
        read = json.loads(raw)
    except ValueError as error:
        raise WebhookError("the delivery is not JSON") from error
    if not isinstance(read, dict):
        raise WebhookError("the delivery is not a JSON object")
    return cast("Webhook", {**read, "id": delivery})


def _key(secret: str) -> bytes:
    """The key of a secret: decoded if the part after the prefix is base64, else its bytes."""
    bare = secret.removeprefix("whsec_")
    plain = bare.rstrip("=")
    try:
        made = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return secret.encode()
    # Base64 only if it encodes back to the same text.
    encoded = base64.b64encode(made).decode()
    return made if bare in (encoded, encoded.rstrip("=")) else secret.encode()
