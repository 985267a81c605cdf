"""Streams as their cursor and their frames; what moves the bytes is the clients' own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ._call import pause
from .errors import SojournError


class Frames:
    """Server-sent events out of bytes, however they are cut.

    Lines end with LF and nothing else: text may hold every other separator.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[tuple[str | None, Any]]:
        """The events that these bytes end, each with its id."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.decode().partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self._id = value
            elif name == "data":
                self._data.append(value)
            elif line == b"":
                (frame_id, data), (self._id, self._data) = (self._id, self._data), (None, [])
                if data:
                    yield frame_id, json.loads("\n".join(data))


class Tail:
    """A place in a stream: what to ask for next, and what was said already."""

    def __init__(
        self, path: str, params: dict[str, Any], seq: int | None = None, *, end: str | None = None
    ) -> None:
        self.path = path
        self._end = end
        self._params = {"stream": "sse", **{name: value for name, value in params.items() if value is not None}}
        self._seq = seq
        self._last_id: str | None = None if seq is None else str(seq)
        #: Connections that gave nothing since the last frame.
        self.failures = 0
        #: Whether the frame was said that is the last of its stream.
        self.is_over = False

    def request(self) -> tuple[dict[str, Any], dict[str, str]]:
        headers = {"Accept": "text/event-stream"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        return self._params, headers

    def take(self, frame: tuple[str | None, Any]) -> Iterator[Any]:
        """The frame's body, unless it was said before."""
        frame_id, body = frame
        self.failures = 0
        if frame_id is not None:
            self._last_id = frame_id
        if self._seq is not None:
            if body["seq"] <= self._seq:
                return
            self._seq = body["seq"]
        self.is_over = self._end is not None and body["type"] == self._end
        yield body

    def cut(self, error: Exception | None = None) -> float:
        """Counts a failure and says how long to wait; raises what will not pass by itself."""
        if isinstance(error, SojournError) and not error.passes:
            raise error
        self.failures += 1
        return pause(self.failures)
