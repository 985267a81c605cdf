"""Cursor and frame parser of streams, without I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ._call import pause
from .errors import SojournError


class Frames:
    """Parses server-sent events from chunks of bytes.

    Lines end with LF only: text may contain every other separator.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[tuple[str | None, Any]]:
        """Yields the events that these bytes complete, each with its id."""
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
    """Position in a stream: the next request, and what was already yielded."""

    def __init__(
        self, path: str, params: dict[str, Any], seq: int | None = None, *, end: str | None = None
    ) -> None:
        self.path = path
        self._end = end
        self._params = {"stream": "sse", **{name: value for name, value in params.items() if value is not None}}
        self._seq = seq
        self._last_id: str | None = None if seq is None else str(seq)
        #: Failed connections since the last frame.
        self.failures = 0
        #: Whether the last frame of the stream was yielded.
        self.is_over = False

    def request(self) -> tuple[dict[str, Any], dict[str, str]]:
        headers = {"Accept": "text/event-stream"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        return self._params, headers

    def take(self, frame: tuple[str | None, Any]) -> Iterator[Any]:
        """Yields the body of a frame, unless it was yielded before."""
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
        """Counts a failure and returns the seconds to wait; raises errors that a retry cannot fix."""
        if isinstance(error, SojournError) and not error.passes:
            raise error
        self.failures += 1
        return pause(self.failures)
