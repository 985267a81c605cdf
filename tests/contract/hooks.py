"""Hooks of schemathesis: stream parameters are removed, exports are sent, calls are counted."""

import json
import os
from pathlib import Path

import schemathesis

CALLS = Path(os.environ["SCRATCH"]) / "calls"
count = 0


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
    """Removes `stream`, so that events are read as pages: a stream would not end."""
    if isinstance(case.query, dict):
        case.query.pop("stream", None)


@schemathesis.hook
def after_call(context, case, response):
    global count
    count += 1
    CALLS.write_text(str(count))
