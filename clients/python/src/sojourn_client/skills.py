"""Skills of an organization: folders with instructions and files for agents."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ._call import Call, at, part, taken

if TYPE_CHECKING:
    from .aio import AsyncSojourn
    from .client import Sojourn
    from .models import PageSkillView as SkillPage
    from .models import SkillView as Skill

#: A skill: the path of its folder on this machine, or a tar archive of the folder.
SkillData = bytes | str | os.PathLike[str]


class Skills:
    """The skills of an organization; see `Sojourn.skills`."""

    def __init__(self, client: Sojourn) -> None:
        self._client = client

    def upload(self, skill: SkillData) -> Skill:
        """Stores a version of a skill, of at most 30 MiB and 500 files. `skill` is the path of its folder, or has the
        bytes of a tar archive of it. Returns the newest version if it has the same files.

        Raises `ValueError` if the folder contains a link, or a path that is too long for a tar archive.
        """
        return cast("Skill", taken(self._client._answer(uploading(packed(skill)))))

    def list(self, name: str | None = None, *, limit: int = 100, cursor: str | None = None) -> SkillPage:
        """Returns a page of the versions, newest first; with `name` those of this skill."""
        return cast("SkillPage", self._client.call("GET", "/skills", name=name, limit=limit, cursor=cursor))

    def pages(self, name: str | None = None) -> Iterator[Skill]:
        """Yields every version, page by page; with `name` those of this skill."""
        return self._client.pages("/skills", name=name)

    def get(self, skill_id: str) -> Skill:
        return cast("Skill", self._client.call("GET", at("skills", skill_id)))

    def content(self, skill_id: str) -> bytes:
        """Reads a tar archive of the files of a version; its paths begin with the name of the skill."""
        return part(self._client._answer(downloading(skill_id)))[0]

    def delete(self, skill_id: str) -> None:
        """Deletes a version. Raises `SojournError` with the code `in_use` while a session uses it or an agent needs it."""
        self._client.call("DELETE", at("skills", skill_id))


class AsyncSkills:
    """The skills of an organization; see `AsyncSojourn.skills`. The methods are those of `Skills`."""

    def __init__(self, client: AsyncSojourn) -> None:
        self._client = client

    async def upload(self, skill: SkillData) -> Skill:
        """Stores a version of a skill; see `Skills.upload`."""
        archive = await asyncio.to_thread(packed, skill)
        return cast("Skill", taken(await self._client._answer(uploading(archive))))

    async def list(self, name: str | None = None, *, limit: int = 100, cursor: str | None = None) -> SkillPage:
        """Returns a page of the versions, newest first; with `name` those of this skill."""
        return cast("SkillPage", await self._client.call("GET", "/skills", name=name, limit=limit, cursor=cursor))

    def pages(self, name: str | None = None) -> AsyncIterator[Skill]:
        """Yields every version, page by page; with `name` those of this skill."""
        return self._client.pages("/skills", name=name)

    async def get(self, skill_id: str) -> Skill:
        return cast("Skill", await self._client.call("GET", at("skills", skill_id)))

    async def content(self, skill_id: str) -> bytes:
        """Reads a tar archive of the files of a version; its paths begin with the name of the skill."""
        return part(await self._client._answer(downloading(skill_id)))[0]

    async def delete(self, skill_id: str) -> None:
        """Deletes a version. Raises `SojournError` with the code `in_use` while a session uses it or an agent needs it."""
        await self._client.call("DELETE", at("skills", skill_id))


def uploading(archive: bytes) -> Call:
    """The call that stores a version of a skill."""
    return Call("POST", "/skills", content=archive, headers={"Content-Type": "application/x-tar"})


def downloading(skill_id: str) -> Call:
    """The call that reads the files of a version."""
    return Call("GET", at("skills", skill_id, "content"))


def packed(skill: SkillData) -> bytes:
    """A ustar archive of a folder. Owners and times are 0, so that equal folders have equal archives."""
    if isinstance(skill, bytes):
        return skill
    folder, stream = Path(skill), io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT, encoding="utf-8") as archive:
        for path in files(folder):
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = len(content)
            entry.mode = 0o755 if path.stat().st_mode & 0o111 else 0o644
            try:
                archive.addfile(entry, io.BytesIO(content))
            except ValueError as error:
                raise ValueError(f"the path {entry.name} is too long for a tar archive") from error
    return stream.getvalue()


def files(folder: Path) -> Iterator[Path]:
    """The files below a folder, in the order of their paths.

    Raises `ValueError` for a link, or another entry that is neither a file nor a directory.
    """
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise ValueError(f"{path} is neither a file nor a directory; links are not allowed")
        if path.is_dir():
            yield from files(path)
        else:
            yield path
