"""Files and skills of the Python client against recorded answers: what it sends, and when it uploads."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from sojourn_client import AsyncSojourn, Sojourn, SojournError
from sojourn_client._files import INLINE
from sojourn_client._tools import content_of

PNG = b"\x89PNG\r\n\x1a\n rest"
ACTION = {"id": "act_1", "session_id": "ses_1", "kind": "tool_result", "tool": "draw", "call_id": "c", "input": {}}


class Refusal(NamedTuple):
    status: int
    code: str | None = None


class Service:
    """Records requests, and answers them from a function."""

    def __init__(self, answer: Callable[[httpx.Request], object]) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = answer

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answer(request)
        if isinstance(answer, Refusal):
            error = {"type": "invalid", "message": "refused", "code": answer.code}
            return httpx.Response(answer.status, json={"error": error})
        return httpx.Response(200, content=answer) if isinstance(answer, bytes) else httpx.Response(200, json=answer)

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]

    def client(self) -> Sojourn:
        client = Sojourn("http://service", "key")
        client._http = httpx.Client(transport=httpx.MockTransport(self))
        return client

    def async_client(self) -> AsyncSojourn:
        client = AsyncSojourn("http://service", "key")
        client._http = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return client


class Upload(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service(lambda _: {"id": "fil_1"})
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = Path(self.directory.name) / "a photo & more.png"
        self.path.write_bytes(PNG)

    def check(self, name: str) -> None:
        [request] = self.service.requests
        self.assertEqual((request.method, request.url.path), ("POST", "/v3/files"))
        self.assertEqual(dict(request.url.params), {"name": name})
        self.assertEqual(request.headers["content-type"], "application/octet-stream")
        self.assertTrue(request.headers["idempotency-key"])
        self.assertEqual(request.content, PNG)

    def test_the_name_of_a_path_is_its_last_part(self) -> None:
        self.assertEqual(self.service.client().files.upload(str(self.path))["id"], "fil_1")
        self.check("a photo & more.png")

    def test_a_given_name_is_used(self) -> None:
        self.service.client().files.upload(self.path, "other.png")
        self.check("other.png")

    def test_bytes_without_a_name_get_one(self) -> None:
        self.service.client().files.upload(PNG)
        self.check("file")

    def test_asyncio(self) -> None:
        asyncio.run(self.service.async_client().files.upload(self.path))
        self.check("a photo & more.png")


class Parts(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service(lambda _: {"id": "fil_1"})

    def test_the_bytes_decide_between_image_and_document(self) -> None:
        images = [PNG, b"\xff\xd8\xff\xe0", b"GIF87a", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 "]
        documents = [b"%PDF-1.7", b"a,b\n", b"RIFF\0\0\0\0WAVE", b" \xff\xd8\xff", b""]
        files = self.service.client().files
        self.assertEqual([files.part(content)["type"] for content in images], ["image"] * 5)
        self.assertEqual([files.part(content)["type"] for content in documents], ["document"] * 5)
        self.assertEqual(self.service.requests, [])

    def test_a_small_file_is_sent_within_the_message(self) -> None:
        part = self.service.client().files.part(PNG, "a.png")
        data = base64.b64encode(PNG).decode()
        self.assertEqual(part, {"type": "image", "source": {"type": "base64", "data": data}, "name": "a.png"})
        self.assertNotIn("name", self.service.client().files.part(PNG))

    def test_a_file_of_4_mib_is_uploaded(self) -> None:
        files = self.service.client().files
        files.part(b"a" * (INLINE - 1))
        self.assertEqual(self.service.requests, [])
        part = files.part(b"a" * INLINE, "a.txt")
        self.assertEqual(part, {"type": "document", "source": {"type": "file", "file_id": "fil_1"}, "name": "a.txt"})
        self.assertEqual(self.service.paths, ["/v3/files"])

    def test_the_files_of_one_message_share_the_4_mib(self) -> None:
        contents = [b"a" * size for size in (INLINE // 2, INLINE // 2, INLINE // 4, INLINE // 4)]
        expected = ["base64", "file", "base64", "file"]
        parts = self.service.client().files.parts(*contents)
        self.assertEqual([part["source"]["type"] for part in parts if part["type"] == "document"], expected)
        parts = asyncio.run(self.service.async_client().files.parts(*contents))
        self.assertEqual([part["source"]["type"] for part in parts if part["type"] == "document"], expected)
        self.assertEqual(len(self.service.requests), 4)


class Results(unittest.TestCase):
    image = {"type": "image", "source": {"type": "file", "file_id": "fil_1"}}

    def test_parts_are_sent_as_they_are(self) -> None:
        parts = [{"type": "text", "text": "Here:"}, self.image, {**self.image, "type": "document", "name": "a.png"}]
        self.assertEqual(content_of(parts), parts)
        self.assertEqual(content_of(self.image), [self.image])

    def test_other_values_are_a_text(self) -> None:
        self.assertEqual(content_of("a"), [{"type": "text", "text": "a"}])
        others: list[object] = [
            [],
            [{"type": "text", "text": "a", "name": "b"}],
            [{"type": "image", "url": "a"}],
            [self.image, "a"],
            {"type": "text"},
            {**self.image, "width": 1},
        ]
        for value in others:
            self.assertEqual(content_of(value), [{"type": "text", "text": json.dumps(value)}])

    def test_texts_leave_space_for_the_files(self) -> None:
        long = {"type": "text", "text": "é" * 30_000}
        [first, second, image] = content_of([long, long, self.image])
        self.assertTrue(first["text"].endswith("[the rest was cut]"))
        self.assertEqual(second["text"].strip("é"), "\n[the rest was cut]")
        size = len(json.dumps([first, second], ensure_ascii=False).encode())
        self.assertTrue(28_000 < size < 30_000 - 1_000, size)
        self.assertEqual(image, self.image)

    def test_long_texts_leave_space_for_those_behind_them(self) -> None:
        long, short = ({"type": "text", "text": "x" * count} for count in (40_000, 70))
        for parts in ([long, short], [long, long], [long] * 64):
            content = content_of(parts)
            self.assertEqual(len(content), len(parts))
            self.assertLess(len(json.dumps(content).encode()), 30_000)
        self.assertEqual(content_of([long, short])[1], short)
        self.assertEqual(len(content_of([short] * 65)), 1)

    def test_a_result_without_a_text_says_so(self) -> None:
        nothing = [{"type": "text", "text": "(no output)"}]
        for value in ("", {"type": "text", "text": ""}, [{"type": "text", "text": ""}]):
            self.assertEqual(content_of(value), nothing)
        self.assertEqual(content_of([{"type": "text", "text": ""}, self.image]), [self.image])

    def run_with(self, refusal: Refusal) -> list[Any]:
        """Runs a handler whose first result is refused; returns the events that were sent."""
        sent: list[Any] = []

        def answer(request: httpx.Request) -> object:
            match (request.method, request.url.path.rpartition("/")[2]):
                case ("GET", "pending"):
                    return {"data": [ACTION], "next_cursor": None}
                case ("POST", "claim"):
                    return {"claim": "clm_1"}
                case ("POST", "events"):
                    sent.extend(json.loads(request.content)["events"])
                    return refusal if len(sent) == 1 else {}
                case _:
                    return {"id": "ses_1", "status": "idle", "head": 1, "last_turn": None}

        service = Service(answer)
        service.client().run("ses_1", {"draw": lambda arguments, call_id: [self.image]})
        once, sent = sent, []

        async def draw(arguments: object, call_id: str) -> object:
            return [self.image]

        asyncio.run(service.async_client().run("ses_1", {"draw": draw}))
        self.assertEqual(sent, once)
        return once

    def test_the_model_is_told_of_a_file_that_the_service_refuses(self) -> None:
        for refusal in (Refusal(400), Refusal(409, "too_many_files"), Refusal(413)):
            [first, second] = self.run_with(refusal)
            self.assertEqual((first["content"], first["is_error"]), ([self.image], False))
            self.assertEqual(second["content"], [{"type": "text", "text": "SojournError: refused"}])
            self.assertTrue(second["is_error"])

    def test_an_action_that_has_ended_needs_no_other_result(self) -> None:
        self.assertEqual(len(self.run_with(Refusal(409, "action_resolved"))), 1)


class Decisions(unittest.TestCase):
    def decide(self, refusal: Refusal) -> int:
        """Decides about a confirmation; the first answer is refused. Returns the number of answers by each client."""
        action = {**ACTION, "kind": "confirmation", "args_hash": "h"}
        sent: list[object] = []

        def answer(request: httpx.Request) -> object:
            match (request.method, request.url.path.rpartition("/")[2]):
                case ("GET", "pending"):
                    return {"data": [action], "next_cursor": None}
                case ("POST", "events"):
                    sent.append(request.content)
                    return refusal if len(sent) == 1 else {}
                case _:
                    return {"id": "ses_1", "status": "idle", "head": 1, "last_turn": None}

        async def once(_: object) -> str:
            return "once"

        service = Service(answer)
        service.client().run("ses_1", on_confirmation=lambda _: "once")
        count = len(sent)
        sent.clear()
        asyncio.run(service.async_client().run("ses_1", on_confirmation=once))
        self.assertEqual(len(sent), count)
        return count

    def test_actions_are_listed_and_a_decision_and_answers_are_single_calls(self) -> None:
        confirmation = {"id": "act_1", "session_id": "ses_1", "kind": "confirmation", "args_hash": "h"}
        question = {"id": "act_2", "session_id": "ses_2", "kind": "question", "questions": [{"options": [{"label": "yes"}]}]}
        sent: list[object] = []

        def answer(request: httpx.Request) -> object:
            if request.method == "POST":
                sent.append((request.url.path, *json.loads(request.content)["events"]))
                return {"data": [], "session": {}}
            is_last = request.url.params.get("cursor") == "next"
            return {"data": [question if is_last else confirmation], "next_cursor": None if is_last else "next"}

        async def all_of(client: AsyncSojourn) -> None:
            open_actions = [action async for action in client.pending()]
            await client.confirm(open_actions[0], {"decision": "reject", "message": "No."})
            await client.answer(open_actions[1], "yes")

        service = Service(answer)
        client = service.client()
        listed = list(client.pending())
        self.assertEqual(listed, [confirmation, question])
        client.confirm(listed[0], {"decision": "reject", "message": "No."})
        client.answer(listed[1], "yes")
        decision = {"type": "user.tool_confirmation", "action_id": "act_1", "args_hash": "h", "decision": "reject", "message": "No."}
        reply = {"type": "user.answer", "action_id": "act_2", "answers": [{"labels": ["yes"]}]}
        self.assertEqual(sent, [("/v3/sessions/ses_1/events", decision), ("/v3/sessions/ses_2/events", reply)])
        once, sent[:] = list(sent), []
        asyncio.run(all_of(service.async_client()))
        self.assertEqual(sent, once)

    def test_a_decision_is_sent_again_after_another_claim_and_its_refusal_is_raised(self) -> None:
        self.assertEqual(self.decide(Refusal(409, "action_resolved")), 1)
        self.assertEqual(self.decide(Refusal(409, "action_claimed")), 2)
        with self.assertRaisesRegex(SojournError, "refused"):
            self.decide(Refusal(409, "too_many_grants"))


class Rows(unittest.TestCase):
    def test_every_page_is_read(self) -> None:
        pages: dict[str | None, object] = {
            None: {"data": [{"id": "fil_2"}], "next_cursor": "c"},
            "c": {"data": [{"id": "fil_1"}], "next_cursor": None},
        }
        service = Service(lambda request: pages[request.url.params.get("cursor")])
        rows = service.client().files.pages(session="ses_1")
        self.assertEqual([row["id"] for row in rows], ["fil_2", "fil_1"])
        self.assertEqual({request.url.params["session"] for request in service.requests}, {"ses_1"})

    def test_what_a_repeated_deletion_does_not_find_was_deleted(self) -> None:
        def answer(request: httpx.Request) -> object:
            if len(service.requests) == 1:
                raise httpx.ReadError("the connection was closed", request=request)
            return Refusal(404)

        service = Service(answer)
        service.client().files.delete("fil_1")
        self.assertEqual(len(service.requests), 2)
        service.requests.clear()
        asyncio.run(service.async_client().files.delete("fil_1"))
        self.assertEqual(len(service.requests), 2)
        with self.assertRaises(SojournError):
            Service(lambda _: Refusal(404)).client().files.delete("fil_1")

    def test_the_bytes_are_those_of_the_answer(self) -> None:
        self.assertEqual(Service(lambda _: PNG).client().files.content("fil_1"), PNG)
        with self.assertRaises(SojournError):
            Service(lambda _: Refusal(404)).client().files.content("fil_1")


class Folders(unittest.TestCase):
    """Skills, which are uploaded as folders."""

    def setUp(self) -> None:
        self.service = Service(lambda _: {"id": "skl_1"})
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)

    def write(self, path: str, content: str = "") -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(content)

    def packed(self) -> bytes:
        self.service.requests.clear()
        self.service.client().skills.upload(self.folder)
        asyncio.run(self.service.async_client().skills.upload(str(self.folder)))
        first, second = self.service.requests
        for request in (first, second):
            self.assertEqual((request.method, request.url.path), ("POST", "/v3/skills"))
            self.assertEqual(request.headers["content-type"], "application/x-tar")
            self.assertTrue(request.headers["idempotency-key"])
        self.assertEqual(first.content, second.content)
        return first.content

    def test_a_folder_is_packed_whole(self) -> None:
        long = f"{'d' * 150}/{'é' * 50}"
        files = {"SKILL.md": "# Skill", "a b/größe.txt": "x" * 1_025, "bin/run.sh": "#!/bin/sh", long: "z", "empty": ""}
        for path, content in files.items():
            self.write(path, content)
        (self.folder / "bin/run.sh").chmod(0o700)
        (self.folder / "no files").mkdir()
        packed = self.packed()
        with tarfile.open(fileobj=io.BytesIO(packed), encoding="utf-8") as archive:
            self.assertEqual(archive.getnames(), list(files))
            for entry in archive:
                file = archive.extractfile(entry)
                self.assertEqual(file and file.read().decode(), files[entry.name])
                mode = 0o755 if entry.name == "bin/run.sh" else 0o644
                self.assertEqual((entry.mode, entry.uid, entry.gid, entry.uname, entry.mtime), (mode, 0, 0, "", 0))
        # The same files have the same archive.
        self.write("SKILL.md", "# Skill")
        (self.folder / "bin/run.sh").chmod(0o755)
        self.assertEqual(self.packed(), packed)

    def test_a_link_is_refused_by_its_name(self) -> None:
        for target in ("SKILL.md", "/etc", "nothing"):
            self.write("docs/SKILL.md")
            link = self.folder / "docs/link"
            link.symlink_to(target)
            with self.assertRaisesRegex(ValueError, "docs/link is neither a file nor a directory"):
                self.service.client().skills.upload(self.folder)
            link.unlink()
        self.assertEqual(self.service.requests, [])

    def test_a_path_that_ustar_cannot_hold_is_refused(self) -> None:
        for path in ("n" * 101, f"{'d' * 156}/n", f"d/{'n' * 101}"):
            self.write(path)
            with self.assertRaisesRegex(ValueError, f"the path {path} is too long"):
                self.service.client().skills.upload(self.folder)
            (self.folder / path).unlink()
        self.write("n" * 100)
        self.write(f"{'d' * 155}/{'n' * 100}")
        self.packed()

    def test_a_folder_that_does_not_exist_is_refused(self) -> None:
        with self.assertRaises(FileNotFoundError):
            self.service.client().skills.upload(self.folder / "none")
        self.assertEqual(self.service.requests, [])

    def test_an_archive_is_sent_as_it_is(self) -> None:
        self.service.client().skills.upload(PNG)
        self.assertEqual(self.service.requests[0].content, PNG)

    def test_the_pages_are_those_of_a_name(self) -> None:
        service = Service(lambda _: {"data": [{"id": "skl_1"}], "next_cursor": None})
        self.assertEqual(list(service.client().skills.pages("pdf")), [{"id": "skl_1"}])
        self.assertEqual(service.requests[0].url.params["name"], "pdf")


class Messages(unittest.TestCase):
    def test_a_message_has_the_fields_that_were_given(self) -> None:
        service = Service(lambda _: {})
        client, image = service.client(), Results.image
        client.steer("ses_1", "Hello.")
        client.call("POST", "/sessions/ses_1/messages", json={"text": "Hello."})
        client.steer("ses_1", content=[{"type": "image", "source": {"type": "file", "file_id": "fil_1"}}])
        client.steer("ses_1", "Look.", "steer", content=[{"type": "text", "text": "more"}])
        bodies = [json.loads(request.content) for request in service.requests]
        more = [{"type": "text", "text": "more"}]
        self.assertEqual(bodies[0], bodies[1])
        self.assertEqual(bodies[2:], [{"content": [image]}, {"text": "Look.", "mode": "steer", "content": more}])


if __name__ == "__main__":
    unittest.main()
