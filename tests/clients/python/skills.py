"""Skills with a service: a folder is uploaded, listed, read back, used by an agent, and deleted."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sojourn_client import AsyncSojourn, Sojourn, SojournError

URL, KEY = os.environ["SOJOURN_URL"], os.environ["SOJOURN_API_KEY"]
IN_USE = (409, "in_use")
#: An input whose turn runs the script of the skill.
SAY: dict[str, Any] = {
    "script": [{"tools": [{"tool": "bash", "input": {"command": "/skills/greet-py/bin/say.sh"}}]}, {"text": "done"}]
}


def fails(call: Callable[[], object]) -> tuple[int, str | None]:
    """Status and code of the error of a call."""
    try:
        call()
    except SojournError as error:
        return error.status, error.code
    raise AssertionError("the call succeeded")


def instructions(name: str, body: str) -> str:
    return f"---\nname: {name}\ndescription: Says {body}.\n---\n{body}\n"


def write(folder: Path, name: str, body: str) -> None:
    """Writes a skill with a script."""
    (folder / "SKILL.md").write_text(instructions(name, body))
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/say.sh").write_text("#!/bin/sh\necho hello\n")
    (folder / "bin/say.sh").chmod(0o755)


def main(client: Sojourn, folder: Path) -> None:
    # A folder that is uploaded again is the same version; a changed one is the next version.
    write(folder, "greet-py", "one")
    first = client.skills.upload(folder)
    assert (first["name"], first["version"], first["description"], first["files"]) == ("greet-py", 1, "Says one.", 2)
    assert client.skills.upload(str(folder)) == first
    write(folder, "greet-py", "two")
    second = client.skills.upload(folder)
    assert (second["name"], second["version"]) == ("greet-py", 2)
    write(folder, "other-py", "three")
    other = client.skills.upload(folder)

    assert client.skills.get(first["id"]) == first
    assert client.skills.list(limit=1)["data"] == [other]
    assert client.skills.list("greet-py")["data"] == [second, first]
    assert list(client.skills.pages("greet-py")) == [second, first]
    assert list(client.skills.pages())[:3] == [other, second, first]

    # What is read can be uploaded again.
    content = client.skills.content(first["id"])
    assert len(content) == first["bytes"]
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["greet-py/SKILL.md", "greet-py/bin/say.sh"]
        file = archive.extractfile("greet-py/SKILL.md")
        assert file and file.read().decode() == instructions("greet-py", "one")
    third = client.skills.upload(content)
    assert (third["version"], third["sha256"]) == (3, first["sha256"])
    assert fails(lambda: client.skills.upload(b"no archive"))[0] == 400

    # A session pins the newest version, runs its script, and keeps the version from deletion.
    skills = [{"skill": "greet-py"}, {"skill": "other-py", "version": 1}]
    body = {"name": "skilled-py", "prompt": "", "model": "scripted/inline", "skills": skills}
    agent = client.call("POST", "/agents", json=body)
    assert agent["skills"] == [{"skill": "greet-py", "version": "latest"}, {"skill": "other-py", "version": 1}]
    session = client.create(agent="skilled-py", input=SAY)["session"]
    snapshot = session["agent_snapshot"]
    assert snapshot
    pinned = [(skill["skill_id"], skill["version"]) for skill in snapshot.get("pinned_skills", [])]
    assert pinned == [(third["id"], 3), (other["id"], 1)]
    turn = client.settled(session["id"])["last_turn"]
    assert turn and turn["yield_reason"] == "completed", turn
    [result] = client.call("GET", f"/sessions/{session['id']}/events", type="tool.result")["data"]
    assert result["body"]["output"] == "hello\n", result

    assert fails(lambda: client.skills.delete(third["id"])) == IN_USE
    assert fails(lambda: client.skills.delete(other["id"])) == IN_USE
    client.skills.delete(first["id"])
    assert fails(lambda: client.skills.get(first["id"]))[0] == 404
    assert fails(lambda: client.skills.content(first["id"]))[0] == 404
    client.call("DELETE", f"/sessions/{session['id']}")
    client.skills.delete(third["id"])
    # The agent names this version.
    assert fails(lambda: client.skills.delete(other["id"])) == IN_USE
    client.call("DELETE", f"/agents/{agent['id']}")
    for skill in (second, other):
        client.skills.delete(skill["id"])
    assert list(client.skills.pages("greet-py")) == []


async def same_with_asyncio(folder: Path) -> None:
    write(folder, "async-py", "one")
    async with AsyncSojourn(URL, KEY) as client:
        skill = await client.skills.upload(folder)
        assert await client.skills.upload(await client.skills.content(skill["id"])) == skill
        assert await client.skills.get(skill["id"]) == skill
        assert (await client.skills.list("async-py"))["data"] == [skill]
        assert [one async for one in client.skills.pages("async-py")] == [skill]
        await client.skills.delete(skill["id"])
        assert [one async for one in client.skills.pages("async-py")] == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        with Sojourn(URL, KEY) as client:
            main(client, Path(directory))
        asyncio.run(asyncio.wait_for(same_with_asyncio(Path(directory)), 60))
    print("the Python client: skills work")
