"""Shared by both clients: paths, headers, retries."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from .errors import SojournError

#: First and longest pause between two attempts, in seconds.
PAUSE = (0.25, 5.0)
#: The service sends a heartbeat every 10 s; a longer silence means a dead connection. Seconds.
SILENCE = 30.0
#: Largest part of a file that one answer contains, in bytes.
PART = 64 << 20
#: Poll interval for a running command, in seconds.
LOOK = 1.0
#: Timeout of a call, in seconds; the service itself stops after 30.
ANSWER = 40.0


@dataclass
class Call:
    """One call of the API, equal on every attempt."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    json: object | None = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.params = {name: value for name, value in self.params.items() if value is not None}
        if self.method == "POST":
            # Makes a repeated POST take effect once.
            self.headers.setdefault("Idempotency-Key", str(uuid.uuid4()))

    @property
    def repeatable(self) -> bool:
        return self.method != "PATCH"

    def answered(self, response: httpx.Response, *, has_failed: bool) -> httpx.Response:
        """The response to the last attempt; `has_failed` if an earlier one may have taken effect.

        What a repeated DELETE does not find was deleted by an earlier attempt.
        """
        if has_failed and self.method == "DELETE" and response.status_code == 404:
            return httpx.Response(204, request=response.request)
        return response


def root(url: str) -> str:
    """The base URL of the API, from an address with or without `/v3`."""
    return url.rstrip("/").removesuffix("/v3") + "/v3"


def at(*parts: str) -> str:
    """Joins segments to a path; each is escaped."""
    return "".join("/" + quote(part, safe="") for part in parts)


def pause(attempt: int) -> float:
    return min(PAUSE[0] * 2.0 ** min(attempt - 1, 16), PAUSE[1])


def wait_of(response: httpx.Response, attempt: int) -> float | None:
    """Seconds to wait before the next attempt; None if the call must not be repeated."""
    if response.status_code not in (429, 503):
        return None
    try:
        return min(float(response.headers["retry-after"]), 60.0)
    except (KeyError, ValueError):
        return pause(attempt)


def reading(session: str, path: str, first: int) -> Call:
    """The call that reads a part of a file, from byte `first` on."""
    headers = {"Range": f"bytes={first}-{first + PART - 1}"}
    return Call("GET", at("sessions", session, "files"), {"path": path}, headers=headers)


def part(response: httpx.Response) -> tuple[bytes, int]:
    """A part of a file, and the size of the whole file.

    Raises `SojournError` if the answer is not a success.
    """
    if not response.is_success:
        taken(response)
    # The answer for an empty file has no Content-Range.
    size = response.headers.get("content-range", "").rpartition("/")[2]
    return response.content, int(size or len(response.content))


def starting(session: str, command: str | list[str], options: dict[str, Any]) -> Call:
    """The call that starts a command without waiting for its end."""
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
