"""Stored files of an organization, for messages and results of custom tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, cast

from ._call import at, part, taken
from ._files import FileData, LocalFile, downloading, placed

if TYPE_CHECKING:
    from .aio import AsyncSojourn
    from .client import Sojourn
    from .models import ContentInput as ContentPart
    from .models import FileView as StoredFile
    from .models import PageFileView as FilePage

    Parts = list[ContentPart]
    Locals = list[LocalFile]


class Files:
    """The files of an organization; see `Sojourn.files`."""

    def __init__(self, client: Sojourn) -> None:
        self._client = client

    def upload(self, file: FileData, name: str | None = None) -> StoredFile:
        """Stores a file of at most 30 MiB until it is deleted. `file` has its bytes, or is its path. The name is by
        default the last part of the path."""
        return cast("StoredFile", taken(self._client._answer(LocalFile.read(file, name).upload())))

    def list(self, session: str | None = None, *, limit: int = 100, cursor: str | None = None) -> FilePage:
        """Returns a page of the files, newest first; with `session` those that this session uses."""
        return cast("FilePage", self._client.call("GET", "/files", session=session, limit=limit, cursor=cursor))

    def pages(self, session: str | None = None) -> Iterator[StoredFile]:
        """Yields every file, page by page; with `session` those that this session uses."""
        return self._client.pages("/files", session=session)

    def get(self, file_id: str) -> StoredFile:
        return cast("StoredFile", self._client.call("GET", at("files", file_id)))

    def content(self, file_id: str) -> bytes:
        """Reads the bytes of a file, as they were uploaded."""
        return part(self._client._answer(downloading(file_id)))[0]

    def delete(self, file_id: str) -> None:
        """Deletes a file. Raises `SojournError` with the code `in_use` while a session uses it."""
        self._client.call("DELETE", at("files", file_id))

    def part(self, file: FileData, name: str | None = None) -> ContentPart:
        """Makes a part of a message or of a result from a file: an image, or else a document. `file` has its bytes, or
        is its path. A file of less than 4 MiB is sent within the message and deleted with the session; another one is
        uploaded and stays until it is deleted."""
        return self._parts([LocalFile.read(file, name)])[0]

    def parts(self, *files: FileData) -> Parts:
        """Makes parts of one message from several files, which fit into the message: those that would not are uploaded."""
        return self._parts([LocalFile.read(file) for file in files])

    def _parts(self, files: Locals) -> Parts:
        ids = (None if is_inline else self._upload(file) for file, is_inline in placed(files))
        return [file.part(file_id) for file, file_id in zip(files, ids, strict=True)]

    def _upload(self, file: LocalFile) -> str:
        return cast("StoredFile", taken(self._client._answer(file.upload())))["id"]


class AsyncFiles:
    """The files of an organization; see `AsyncSojourn.files`. The methods are those of `Files`."""

    def __init__(self, client: AsyncSojourn) -> None:
        self._client = client

    async def upload(self, file: FileData, name: str | None = None) -> StoredFile:
        """Stores a file of at most 30 MiB until it is deleted. `file` has its bytes, or is its path. The name is by
        default the last part of the path."""
        local = await asyncio.to_thread(LocalFile.read, file, name)
        return cast("StoredFile", taken(await self._client._answer(local.upload())))

    async def list(self, session: str | None = None, *, limit: int = 100, cursor: str | None = None) -> FilePage:
        """Returns a page of the files, newest first; with `session` those that this session uses."""
        return cast("FilePage", await self._client.call("GET", "/files", session=session, limit=limit, cursor=cursor))

    def pages(self, session: str | None = None) -> AsyncIterator[StoredFile]:
        """Yields every file, page by page; with `session` those that this session uses."""
        return self._client.pages("/files", session=session)

    async def get(self, file_id: str) -> StoredFile:
        return cast("StoredFile", await self._client.call("GET", at("files", file_id)))

    async def content(self, file_id: str) -> bytes:
        """Reads the bytes of a file, as they were uploaded."""
        return part(await self._client._answer(downloading(file_id)))[0]

    async def delete(self, file_id: str) -> None:
        """Deletes a file. Raises `SojournError` with the code `in_use` while a session uses it."""
        await self._client.call("DELETE", at("files", file_id))

    async def part(self, file: FileData, name: str | None = None) -> ContentPart:
        """Makes a part of a message or of a result from a file; see `Files.part`."""
        return (await self._parts([await asyncio.to_thread(LocalFile.read, file, name)]))[0]

    async def parts(self, *files: FileData) -> Parts:
        """Makes parts of one message from several files; see `Files.parts`."""
        return await self._parts([await asyncio.to_thread(LocalFile.read, file) for file in files])

    async def _parts(self, files: Locals) -> Parts:
        ids = [None if is_inline else await self._upload(file) for file, is_inline in placed(files)]
        return [file.part(file_id) for file, file_id in zip(files, ids, strict=True)]

    async def _upload(self, file: LocalFile) -> str:
        return cast("StoredFile", taken(await self._client._answer(file.upload())))["id"]
