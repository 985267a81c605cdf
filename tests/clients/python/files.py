"""Files with a service: upload, send, read back, download, delete."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sojourn_client import AsyncSojourn, Sojourn, SojournError

URL, KEY = os.environ["SOJOURN_URL"], os.environ["SOJOURN_API_KEY"]
#: One red pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
#: An image without its end.
DAMAGED = PNG[:40]
#: A step that prints the digests of the files of the session, and one that ends the turn.
DIGESTS: dict[str, Any] = {
    "script": [{"tools": [{"tool": "bash", "input": {"command": "sha256sum /home/agent/files/*/*"}}]}, {"text": "done"}]
}
DONE: dict[str, Any] = {"script": [{"text": "done"}]}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fails(call: Callable[[], object]) -> tuple[int, str, str | None]:
    """Status, type and code of the error of a call."""
    try:
        call()
    except SojournError as error:
        return error.status, error.type, error.code
    raise AssertionError("the call succeeded")


def bodies(client: Sojourn, session: str, kind: str) -> list[Any]:
    events = client.call("GET", f"/sessions/{session}/events", type=kind, level="progress")["data"]
    return [event["body"] for event in events]


def completed(client: Sojourn, session: str) -> None:
    result = client.settled(session)
    assert result["last_turn"] and result["last_turn"]["yield_reason"] == "completed", result["last_turn"]


def store(client: Sojourn) -> str:
    """Uploads files, reads them back and deletes one that no session uses; returns the id of the other."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "red & dot.png"
        path.write_bytes(PNG)
        stored = client.files.upload(path)
    assert (stored["name"], stored["media_type"], stored["bytes"]) == ("red & dot.png", "image/png", len(PNG))
    assert (stored["sha256"], stored["kept"]) == (digest(PNG), True)
    image = stored["image"]
    assert image and (image["width"], image["height"], image["converted"]) == (1, 1, False)
    assert client.files.get(stored["id"]) == stored
    assert client.files.content(stored["id"]) == PNG

    # The bytes decide the type, and a name has no directory.
    text = client.files.upload("größe,zahl\n".encode(), "/tmp/table.png")
    assert (text["name"], text["media_type"], text["image"]) == ("table.png", "text/plain", None)
    assert client.files.list(limit=1)["data"] == [text]
    assert [file["id"] for file in client.files.pages()] == [text["id"], stored["id"]]
    client.files.delete(text["id"])
    assert fails(lambda: client.files.get(text["id"])) == (404, "not_found", None)
    assert fails(lambda: client.files.content(text["id"])) == (404, "not_found", None)
    assert fails(lambda: client.files.upload(DAMAGED, "a.png"))[:2] == (400, "invalid")
    assert [file["id"] for file in client.files.pages()] == [stored["id"]]
    return stored["id"]


def send(client: Sojourn, file_id: str) -> None:
    """The file is in the event, in the sandbox, and cannot be deleted while the session exists."""
    part = {"type": "image", "source": {"type": "file", "file_id": file_id}, "name": "dot.png"}
    session = client.create(agent="files", input=DIGESTS, content=[part])["session"]["id"]
    completed(client, session)
    [message] = bodies(client, session, "user.message")
    [script, image] = message["content"]
    assert script["type"] == "text" and image["type"] == "image"
    assert (image["file_id"], image["name"], image["sha256"]) == (file_id, "dot.png", digest(PNG))
    assert image["path"] == f"/home/agent/files/{file_id}/dot.png"
    assert client.files.content(image["file_id"]) == PNG
    [result] = bodies(client, session, "tool.result")
    assert result["output"] == f"{digest(PNG)}  {image['path']}\n", result
    assert fails(lambda: client.files.delete(file_id)) == (409, "conflict", "in_use")

    # A file within a message is deleted with its session; an uploaded file stays. What the agent reads is the uploaded file.
    read = {"script": [{"tools": [{"tool": "read", "input": {"path": image["path"]}}]}, {"text": "done"}]}
    client.steer(session, json.dumps(read), content=[client.files.part(PNG, "inline.png")])
    completed(client, session)
    [_, inline] = bodies(client, session, "user.message")[1]["content"]
    assert (inline["name"], inline["sha256"]) == ("inline.png", digest(PNG)) and inline["file_id"] != file_id
    [shown] = bodies(client, session, "tool.result")[1]["content"]
    assert (shown["type"], shown["file_id"]) == ("image", file_id)
    assert [file["kept"] for file in client.files.pages(session=session)] == [False, True]
    client.call("DELETE", f"/sessions/{session}")
    assert fails(lambda: client.files.get(inline["file_id"])) == (404, "not_found", None)
    assert client.files.content(file_id) == PNG
    client.files.delete(file_id)
    assert fails(lambda: client.files.get(file_id)) == (404, "not_found", None)


def send_large(client: Sojourn) -> None:
    """Files that a message has no space for are uploaded first; two files may have the same name."""
    large = [b"a" * (3 << 20), b"b" * (4 << 20)]
    parts = client.files.parts(*large)
    assert [part["source"]["type"] for part in parts if part["type"] == "document"] == ["base64", "file"]
    session = client.create(agent="files", input=DIGESTS, content=parts)["session"]["id"]
    completed(client, session)
    [_, *files] = bodies(client, session, "user.message")[0]["content"]
    assert [file["sha256"] for file in files] == [digest(content) for content in large]
    [result] = bodies(client, session, "tool.result")
    assert sorted(result["output"].splitlines()) == sorted(f"{file['sha256']}  {file['path']}" for file in files)
    # Nothing of a message with a file that is refused is stored.
    before = [file["id"] for file in client.files.pages()]
    damaged = client.files.part(DAMAGED, "a.png")
    assert fails(lambda: client.steer(session, "Look.", content=[client.files.part(PNG), damaged]))[:2] == (400, "invalid")
    assert [file["id"] for file in client.files.pages()] == before


def answer(client: Sojourn) -> None:
    """A tool of this process returns an image; the model is told of one that is damaged."""
    tool = {"type": "custom", "name": "draw", "description": "Draws.", "input_schema": {"type": "object"}}
    calls = [{"tools": [{"tool": "draw", "input": {"bytes": one}}]} for one in ("good", "damaged")]
    script = {"script": [*calls, {"text": "done"}]}
    session = client.create(agent="files", tools=[tool], input=script)["session"]["id"]

    def draw(arguments: dict[str, str], call_id: str) -> object:
        content = PNG if arguments["bytes"] == "good" else DAMAGED
        return [{"type": "text", "text": "A dot:"}, client.files.part(content, "drawn.png")]

    result = client.run(session, {"draw": draw})
    assert result["last_turn"] and result["last_turn"]["yield_reason"] == "completed", result
    [drawn, refused] = bodies(client, session, "user.custom_tool_result")
    [text, image] = drawn["content"]
    assert text["text"] == "A dot:" and (image["type"], image["sha256"]) == ("image", digest(PNG))
    assert client.files.content(image["file_id"]) == PNG
    assert refused["is_error"] and "decoded" in refused["content"][0]["text"], refused
    [shown, _] = bodies(client, session, "tool.result")
    assert [part["sha256"] for part in shown["content"] if part["type"] == "image"] == [digest(PNG)]


async def together() -> None:
    """The client for asyncio has the same methods."""
    async with AsyncSojourn(URL, KEY) as client:
        stored = await client.files.upload(PNG, "dot.png")
        part = await client.files.part(PNG, "inline.png")
        parts = [part, {"type": "image", "source": {"type": "file", "file_id": stored["id"]}}]
        session = (await client.create(agent="files", input=DONE, content=parts))["session"]["id"]
        await client.settled(session)
        names = [file["name"] async for file in client.files.pages(session=session)]
        assert sorted(names) == ["dot.png", "inline.png"]
        assert await client.files.content(stored["id"]) == PNG
        await client.call("DELETE", f"/sessions/{session}")
        await client.files.delete(stored["id"])
        assert stored["id"] not in [file["id"] async for file in client.files.pages()]


def main() -> None:
    with Sojourn(URL, KEY) as client:
        client.call("POST", "/agents", json={"name": "files", "prompt": "Look.", "model": "scripted/inline"})
        send(client, store(client))
        send_large(client)
        answer(client)
    asyncio.run(asyncio.wait_for(together(), 60))
    print("the Python client: files work")


if __name__ == "__main__":
    main()
