"""What both clients share: addresses, headers, when a call is tried again."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from .errors import SojournError

#: First and longest pause between two tries, in seconds.
PAUSE = (0.25, 5.0)
#: The service says something on a stream every 10 s; silence beyond this is a cut.
SILENCE = 30.0
#: Most of a file that one answer holds, in bytes.
PART = 64 << 20
#: Pause between two looks at a command that goes on, in seconds.
LOOK = 1.0
#: How long the service may take to answer a call, in seconds: it gives up after 30.
ANSWER = 40.0


@dataclass
class Call:
    """One call of the API, the same on every try."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    json: object | None = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.params = {name: value for name, value in self.params.items() if value is not None}
        if self.method == "POST":
            # With a name of its own a repeated POST is done once.
            self.headers.setdefault("Idempotency-Key", str(uuid.uuid4()))

    @property
    def repeatable(self) -> bool:
        return self.method != "PATCH"


def root(url: str) -> str:
    """The address of the API, with or without its `/v3`."""
    return url.rstrip("/").removesuffix("/v3") + "/v3"


def at(*parts: str) -> str:
    """A path of these segments, none of which can lead elsewhere."""
    return "".join("/" + quote(part, safe="") for part in parts)


def pause(attempt: int) -> float:
    return min(PAUSE[0] * 2.0 ** min(attempt - 1, 16), PAUSE[1])


def wait_of(response: httpx.Response, attempt: int) -> float | None:
    """How long to wait before the call is tried again; None when it is not to be."""
    if response.status_code not in (429, 503):
        return None
    try:
        return min(float(response.headers["retry-after"]), 60.0)
    except (KeyError, ValueError):
        return pause(attempt)


def reading(session: str, path: str, first: int) -> Call:
    """The call that reads a file from its byte `first` on."""
    headers = {"Range": f"bytes={first}-{first + PART - 1}"}
    return Call("GET", at("sessions", session, "files"), {"path": path}, headers=headers)


def part(response: httpx.Response) -> tuple[bytes, int]:
    """A part of a file, and the size of the whole.

    Raises `SojournError` for a refusal.
    """
    if not response.is_success:
        taken(response)
    # An empty file has no range, and is answered whole.
    size = response.headers.get("content-range", "").rpartition("/")[2]
    return response.content, int(size or len(response.content))


def starting(session: str, command: str | list[str], options: dict[str, Any]) -> Call:
    """The call that starts a command and does not wait for it."""
    json = {"command": command, **options}
    return Call("POST", at("sessions", session, "exec"), json=json, headers={"Prefer": "wait=0"})


def is_over(command: Any) -> bool:
    return command["state"] in ("completed", "failed")


def taken(response: httpx.Response) -> Any:
    """The body of a success.

    Raises `SojournError` otherwise.
    """
    try:
        body = response.json() if response.content else None
    except ValueError:
        body = None
    if response.is_success:
        return body
    raise SojournError.of(response.status_code, body)
