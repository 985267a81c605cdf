"""Hooks of schemathesis: judges valid requests, keeps streams out, counts what the run did."""

import atexit
import base64
import hmac
import json
import os
import time
from collections import Counter
from pathlib import Path

import schemathesis

import refusals
from skill import skill

RESULT = Path(os.environ["RESULT"])
EXISTING = json.loads(os.environ["EXISTING"])
calls = 0
valid = Counter()
accepted = Counter()
# Why valid requests were refused, by operation.
refused = {}
used = Counter()
# Refusals that no entry of `refusals.py` explains, with one request of each.
unlisted = {}


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    """Serializes a generated import as JSON; a string is sent unchanged."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@schemathesis.serializer("application/x-tar")
def archive(context, value):
    """Serializes a generated archive as bytes."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@schemathesis.hook
def before_call(context, case, kwargs):
    """Reads events as pages, and makes every second valid request one that can be accepted.

    A stream does not end, so `streams.py` reads streams. schemathesis validates a changed request again.
    """
    if isinstance(case.query, dict) and case.query.get("stream") == "sse":
        case.query.pop("stream")
        # Only a stream accepts it.
        case.query.pop("deltas", None)
        # An unknown header is no error, but schemathesis counts it as one if the request was changed.
        if case.headers:
            case.headers.pop("x-schemathesis-unknown-property", None)
    if case.meta is not None and case.meta.generation.mode.is_positive:
        operation = case.operation.definition.raw["operationId"]
        valid[operation] += 1
        if valid[operation] % 2:
            make_acceptable(case, operation)


def make_acceptable(case, operation):
    """Replaces values that have to exist or to agree with another value, which a schema cannot say."""
    path, headers = case.path_parameters, case.headers
    if "agent_id" in path and len(path) > 1:
        path["agent_id"] = EXISTING["agent"]
    if operation == "activateRevision":
        path["revision"] = "1"
    if operation == "claimAction":
        path["session_id"], actions = EXISTING["to_claim"]
        path["action_id"] = actions[valid[operation] % len(actions)]
    # Several sessions, because later calls stop some of those that they find in an answer.
    if operation in ("createCheckpoint", "restoreSession") and EXISTING["saved"]:
        path["session_id"], checkpoint = EXISTING["saved"].pop()
        if operation == "restoreSession" and isinstance(case.body, dict):
            case.body["checkpoint_id"] = checkpoint
    if operation == "retryTurn" and EXISTING["failed"]:
        path["session_id"], path["turn_id"] = EXISTING["failed"].pop()
    if operation == "revokePermission" and EXISTING["granted"][1]:
        path["session_id"] = EXISTING["granted"][0]
        path["event_id"] = EXISTING["granted"][1].pop()
    if operation == "sendEvents" and isinstance(case.body, dict):
        path["session_id"], actions = EXISTING["to_answer"]
        for event in case.body.get("events", []):
            if event.get("type") == "user.custom_tool_result" and actions:
                event["action_id"] = actions.pop()
                event.pop("claim", None)
            if event.get("type") == "user.interrupt":
                # It would withdraw the actions.
                event.update(type="user.message", text="Go on.")
    if operation == "uploadSkill":
        # All its bytes are ASCII.
        case.body = skill(f"made-{valid[operation] % 8}", str(calls)).decode()
    if operation == "deleteOrganization":
        case.query["confirm"] = path["organization_id"]
    if operation == "readFile":
        case.query["path"] = EXISTING["file"]
    if operation == "setDefaultCredential" and isinstance(case.body, dict):
        case.body["credential"] = EXISTING["credential"]
    if operation == "receiveTrigger" and isinstance(case.body, dict):
        path["trigger_id"] = EXISTING["trigger"]
        headers.update(signature(case.body))
    # A new key: a repeated one only gets the first response, or `idempotency_mismatch`.
    key = headers.get("Idempotency-Key") if headers else None
    if isinstance(key, str) and 0 < len(key) < 240:
        headers["Idempotency-Key"] = f"{calls}-{key}"


def signature(body):
    """Headers of a message that Standard Webhooks 1.0.0 accepts."""
    name, now = f"msg_{calls}", str(int(time.time()))
    signed = f"{name}.{now}.{json.dumps(body)}".encode()
    secret = base64.b64decode(EXISTING["trigger_secret"].removeprefix("whsec_"))
    digest = base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
    return {"webhook-id": name, "webhook-timestamp": now, "webhook-signature": f"v1,{digest}"}


@schemathesis.hook
def after_call(context, case, response):
    global calls
    calls += 1


@schemathesis.check
def valid_request_is_accepted(context, response, case):
    """Fails if a request that conforms to openapi.yaml is refused, and `refusals.py` does not list why."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    operation = case.operation.definition.raw["operationId"]
    if response.status_code < 400:
        accepted[operation] += 1
        return
    try:
        error = json.loads(response.content)["error"]
    except (ValueError, KeyError, TypeError):
        raise AssertionError(f"{response.status_code} without an error: {response.content[:300]}") from None
    reason = f"{response.status_code} {error.get('code') or error.get('type')}: {error.get('message')}"
    refused.setdefault(operation, Counter())[reason] += 1
    rule = refusals.rule_of(operation, error)
    if rule is not None:
        used[rule] += 1
        return
    said = f"{operation} refused a valid request: {json.dumps({**error, 'request_id': None})}"
    unlisted.setdefault(said, f"{case.path_parameters} {case.query} {case.headers} {case.body!r:.2000}")
    raise AssertionError(said)


@atexit.register
def write_result():
    RESULT.write_text(json.dumps({"calls": calls, "accepted": accepted, "refused": refused, "used": used, "unlisted": unlisted}))
