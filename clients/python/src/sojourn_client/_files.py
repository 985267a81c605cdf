"""Shared by both clients: stored files, and parts of messages and of results."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._call import Call, at

#: A file: its bytes, or its path on this machine.
FileData = bytes | str | os.PathLike[str]

#: Bytes of files that are sent within a message, less than; others are uploaded before. A message may have 8 MiB, and
#: base64 makes 4 of 3 bytes.
INLINE = 4 << 20
#: Name of bytes that are uploaded without one.
UNNAMED = "file"
#: First bytes of the images that a model can get.
IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")


@dataclass(frozen=True)
class LocalFile:
    """A file to send."""

    content: bytes
    name: str | None

    @classmethod
    def read(cls, file: FileData, name: str | None = None) -> LocalFile:
        if isinstance(file, bytes):
            return cls(file, name)
        path = Path(file)
        return cls(path.read_bytes(), name or path.name)

    @property
    def is_image(self) -> bool:
        is_webp = self.content[:4] == b"RIFF" and self.content[8:12] == b"WEBP"
        return is_webp or self.content.startswith(IMAGES)

    def upload(self) -> Call:
        """The call that stores the file until it is deleted."""
        headers = {"Content-Type": "application/octet-stream"}
        return Call("POST", "/files", {"name": self.name or UNNAMED}, content=self.content, headers=headers)

    def part(self, file_id: str | None) -> Any:
        """The part of a message or of a result: of an uploaded file, or with its bytes."""
        source = {"type": "file", "file_id": file_id} if file_id else self._base64()
        named = {"name": self.name} if self.name else {}
        return {"type": "image" if self.is_image else "document", "source": source, **named}

    def _base64(self) -> Any:
        return {"type": "base64", "data": base64.b64encode(self.content).decode()}


def placed(files: list[LocalFile]) -> list[tuple[LocalFile, bool]]:
    """Each file, and whether it is sent within the message: files of less than 4 MiB together are."""
    left, chosen = INLINE, []
    for file in files:
        is_inline = len(file.content) < left
        left -= len(file.content) if is_inline else 0
        chosen.append((file, is_inline))
    return chosen


def downloading(file_id: str) -> Call:
    """The call that reads the bytes of a stored file."""
    return Call("GET", at("files", file_id, "content"))
