"""The client for asyncio, with the same methods."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import httpx

from ._call import ANSWER, LOOK, SILENCE, Call, at, is_over, part, pause, reading, root, starting, taken, wait_of
from ._stream import Frames, Tail
from ._tools import (
    answering,
    claiming,
    content_of,
    deciding,
    error_of,
    input_call,
    is_ended,
    may_pass,
    refuses_files,
    replying,
    rests,
    waits,
)
from .errors import SojournError
from .files import AsyncFiles
from .skills import AsyncSkills

if TYPE_CHECKING:
    from . import models

#: Functions that run custom tools, by name: from the arguments and the id of a call to its result, or an awaitable of it.
AsyncTools = Mapping[str, Callable[[Any, str], object]]
#: Decides on a call, see `run`.
AsyncConfirm = Callable[[Any], object]
#: Answers the questions of an action; see `run`.
AsyncReply = Callable[[Any], object]


class AsyncSojourn:
    """Client of one service with one API key. Use it as a context manager, or call `close`."""

    def __init__(self, url: str, key: str, *, tries: int = 4) -> None:
        self._root = root(url)
        self._tries = max(1, tries)
        self._http = httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=ANSWER)
        #: Stored files, and parts of messages and results that are files.
        self.files = AsyncFiles(self)
        #: Skills: folders with instructions and files for agents.
        self.skills = AsyncSkills(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def call(self, method: str, path: str, /, *, json: object | None = None, **params: Any) -> Any:
        """Calls any operation of openapi.yaml, by its path below `/v3`; the query by name.

        A call that is safe to repeat is repeated after 429, 503 and network errors.
        Raises `SojournError` if the answer is not a success.
        """
        return taken(await self._answer(Call(method, path, params, json)))

    async def _answer(self, call: Call) -> httpx.Response:
        has_failed = False
        for attempt in range(1, self._tries + 1):
            is_last = attempt == self._tries or not call.repeatable
            try:
                response = await self._http.request(
                    call.method,
                    self._root + call.path,
                    params=call.params,
                    json=call.json,
                    content=call.content,
                    headers=call.headers,
                )
            except httpx.TransportError:
                if is_last:
                    raise
                has_failed = True
                await asyncio.sleep(pause(attempt))
                continue
            wait = wait_of(response, attempt)
            if wait is None or is_last:
                return call.answered(response, has_failed=has_failed)
            has_failed = has_failed or response.status_code == 503
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def create(self, **session: Any) -> models.CreatedSession:
        """Creates a session from the fields of `CreateSession`."""
        return cast("models.CreatedSession", await self.call("POST", "/sessions", json=session))

    async def invoke(self, agent: str, **request: Any) -> models.CreatedSession:
        """Starts a session at the invoke URL of an agent from the fields of `InvokeAgent`; an invoke
        token as the key is enough."""
        return cast("models.CreatedSession", await self.call("POST", at("agents", agent, "invoke"), json=request))

    async def get(self, session: str) -> models.Session:
        return cast("models.Session", await self.call("GET", at("sessions", session)))

    async def steer(
        self,
        session: str,
        text: str | None = None,
        mode: str | None = None,
        *,
        content: list[models.ContentInput] | None = None,
    ) -> models.Steered:
        """Sends a message: a text, parts, or a text and parts behind it. It is durable when this returns."""
        path = at("sessions", session, "messages")
        body = {"text": text, "mode": mode, "content": content}
        body = {name: value for name, value in body.items() if value is not None}
        return cast("models.Steered", await self.call("POST", path, json=body))

    async def cancel(self, session: str, *, children: bool = False) -> models.Session:
        """Cancels its running and its queued turn; with `children` those of all sessions below it too."""
        body = {"children": True} if children else {}
        return cast("models.Session", await self.call("POST", at("sessions", session, "cancel"), json=body))

    async def compact(self, session: str, instructions: str | None = None) -> models.Steered:
        """Has the history summarized before the next model call; an idle session gets a turn for it."""
        body = {"instructions": instructions} if instructions else {}
        return cast("models.Steered", await self.call("POST", at("sessions", session, "compact"), json=body))

    async def retry_turn(self, session: str, turn: str) -> models.Steered:
        """Retries the last turn of a session, which ended with an error: the same turn, as its next attempt."""
        path = at("sessions", session, "turns", turn, "retry")
        return cast("models.Steered", await self.call("POST", path))

    def pending(self, session: str | None = None, **filters: Any) -> AsyncIterator[models.PendingAction]:
        """Yields the open actions of a session, or of all sessions: calls of custom tools, confirmations, questions."""
        return self.pages(at("sessions", session, "pending") if session else "/pending", **filters)

    async def confirm(self, action: models.PendingAction, decision: str | Mapping[str, Any]) -> models.SentEvents:
        """Decides on a call that a person must confirm: "once", "reject", or the fields of `user.tool_confirmation`."""
        return cast("models.SentEvents", taken(await self._answer(deciding(action, decision))))

    async def answer(self, action: models.PendingAction, answers: object) -> models.SentEvents:
        """Answers the questions of an agent or an MCP server, as `on_question` of `run` does."""
        return cast("models.SentEvents", taken(await self._answer(replying(action, answers))))

    async def archive(self, session: str, *, children: bool = False) -> models.Session:
        """Archives the session; with `children` all sessions below it too."""
        body = {"children": True} if children else {}
        return cast("models.Session", await self.call("POST", at("sessions", session, "archive"), json=body))

    async def result(self, session: str) -> models.ResultView:
        """Returns the last turn and its result."""
        return cast("models.ResultView", await self.call("GET", at("sessions", session, "result")))

    async def exec(self, session: str, command: str | list[str], **options: Any) -> models.Exec:
        """Runs a command in the sandbox of the session and waits for its end; `options` are the
        other fields of `ExecRequest`, such as `timeout_seconds`."""
        ran = await self.call("POST", at("sessions", session, "exec"), json={"command": command, **options})
        while not is_over(ran):
            await asyncio.sleep(LOOK)
            ran = await self.call("GET", at("sessions", session, "exec", ran["id"]))
        return cast("models.Exec", ran)

    async def follow_exec(
        self, session: str, command: str | list[str], **options: Any
    ) -> AsyncIterator[models.ExecFrame]:
        """Runs a command in the sandbox of the session and yields its output while it runs:
        frames `exec.output` with `stream` and `text`; the last one is `exec.ended`. Reconnects
        after a cut. The command continues if the caller stops reading."""
        ran = taken(await self._answer(starting(session, command, options)))
        async for frame in self._follow(Tail(at("sessions", session, "exec", ran["id"]), {}, end="exec.ended")):
            yield frame

    async def list_files(self, session: str, path: str = "/workspace") -> models.Directory:
        """Lists a directory of the sandbox."""
        return cast("models.Directory", await self.call("GET", at("sessions", session, "files", "list"), path=path))

    async def read_file(self, session: str, path: str) -> bytes:
        """Reads a whole file of the sandbox, in parts of 64 MiB."""
        content = b""
        while True:
            more, size = part(await self._answer(reading(session, path, len(content))))
            content += more
            if not more or len(content) >= size:
                return content

    async def write_file(self, session: str, path: str, content: bytes) -> models.FileWritten:
        """Writes a file of at most 3 MiB into the sandbox; creates missing directories."""
        headers = {"Content-Type": "application/octet-stream"}
        call = Call("PUT", at("sessions", session, "files"), {"path": path}, content=content, headers=headers)
        return cast("models.FileWritten", taken(await self._answer(call)))

    async def pages(self, path: str, **params: Any) -> AsyncIterator[Any]:
        """Yields every row of a list, page by page."""
        cursor = None
        while True:
            page = await self.call("GET", path, **{"limit": 100, **params, "cursor": cursor})
            for row in page["data"]:
                yield row
            if (cursor := page["next_cursor"]) is None:
                return

    def follow(
        self, session: str, *, after: int = 0, level: str = "progress", type: str | None = None
    ) -> AsyncIterator[models.Event]:
        """Yields the events of a session, existing and new, each once and in order. Reconnects
        after a cut. Ends when the caller stops reading."""
        path = at("sessions", session, "events")
        return self._follow(Tail(path, {"after": after, "level": level, "type": type}, after))

    def follow_list(self, **filters: Any) -> AsyncIterator[models.ListedFrame]:
        """Follows the list of sessions as frames: `session.listed`, `session.unlisted`, and
        `list.current` after all existing sessions."""
        return self._follow(Tail("/sessions", filters))

    async def settled(self, session: str) -> models.ResultView:
        """Waits until no turn is queued or running; returns the result.

        A turn that waits for a caller (`last_turn.state` is `waiting`) counts as settled; see `run`.
        """
        now = await self.get(session)
        if await self._runs(now):
            async for event in self.follow(session, after=now["head"], type="turn.*"):
                if event["type"] in ("turn.completed", "turn.waiting") and not await self._runs(await self.get(session)):
                    break
        return await self.result(session)

    async def _runs(self, session: models.Session) -> bool:
        """Whether a turn is queued or runs, or continues because its actions have ended."""
        if not waits(session):
            return session["status"] in ("queued", "running")
        return not (await self.call("GET", at("sessions", session["id"], "pending"), limit=1))["data"]

    async def run(
        self,
        session: str,
        tools: AsyncTools | None = None,
        on_confirmation: AsyncConfirm | None = None,
        on_question: AsyncReply | None = None,
    ) -> models.ResultView:
        """Runs the custom tools of a session until it neither runs nor waits; returns the result.

        `tools` maps the name of a tool to a function of its arguments and the id of the call.
        The function may be a coroutine function; the calls of a step run together. What
        it returns is the result: a string, parts (see `files.part`), or another value as JSON; a long text is
        cut. The model is told of an `Exception`. Use the id as the key of whatever must happen once.

        A call is claimed first, so that one of several processes runs it, and its result is sent until
        the service answers. A call of a tool without a function stays open for another process.

        `on_confirmation` gets each call that a person must confirm, as its action. It returns "once", "reject",
        the fields of `user.tool_confirmation`, such as `{"decision": "reject", "message": "..."}`, or None to leave
        the decision to others.

        `on_question` gets the questions of an agent or an MCP server, as their action. It returns a list with an answer for each,
        or the answer if there is one question: a text, which may be the label of an option, or the fields `labels`
        and `text`; `{"declined": True}` for a server that gets none; or None to leave the answers to others.
        """
        tools = tools or {}
        told: set[str] = set()
        head = (await self._until_answered(Call("GET", at("sessions", session))))["head"]
        events = self.follow(session, after=head, level="user")
        pending = at("sessions", session, "pending")
        while True:
            page = await self._until_answered(Call("GET", pending, {"limit": 100}))
            handlers = {"confirmation": (on_confirmation, deciding), "question": (on_question, replying)}
            new = [one for one in page["data"] if one["id"] not in told and all(handlers.get(one["kind"], (None,)))]
            told.update(action["id"] for action in new)
            actions = [one for one in page["data"] if one["kind"] == "tool_result" and one["tool"] in tools]
            # A person may take long: the tools run meanwhile.
            runs = asyncio.gather(*(self._run_tool(action, tools) for action in actions))
            ran, _ = await asyncio.gather(runs, self._decide_each(new, handlers))
            if rests(await self._until_answered(Call("GET", at("sessions", session)))):
                return await self.result(session)
            if not all(ran):
                # Claimed by another process, which may have died: the claim ends.
                await asyncio.sleep(LOOK)
                continue
            async for event in events:
                if event["type"] in ("action.required", "turn.completed"):
                    break

    async def _decide_each(self, actions: list[Any], handlers: dict[str, Any]) -> None:
        """Has one action decided after the other."""
        for action in actions:
            await self._decide(action, *handlers[action["kind"]])

    async def _decide(self, action: Any, handler: Any, sending: Callable[[Any, Any], Call]) -> None:
        """Sends a decision or answers, if there are any."""
        try:
            shown = await self._with_input(action) if action["kind"] == "confirmation" else action
        except SojournError as error:
            if not is_ended(error):
                raise
            return
        decision = handler(shown)
        if inspect.isawaitable(decision):
            decision = await decision
        if decision is None:
            return
        while True:
            try:
                await self._until_answered(sending(action, decision))
                return
            except SojournError as error:
                if is_ended(error):
                    return
                if error.code != "action_claimed":
                    raise
            # Another process may have died with its claim, which ends.
            await asyncio.sleep(LOOK)

    async def _with_input(self, action: Any) -> Any:
        """The action with its arguments, also if they are too large for the list of actions."""
        call = input_call(action)
        return {**action, "input": (await self._until_answered(call))["input"]} if call else action

    async def _run_tool(self, action: Any, tools: AsyncTools) -> bool:
        """Runs one call; returns false if another process has claimed it."""
        try:
            claim = (await self._until_answered(claiming(action)))["claim"]
            arguments = (await self._with_input(action))["input"]
            try:
                value = tools[action["tool"]](arguments, action["call_id"])
                content, is_error = content_of(await value if inspect.isawaitable(value) else value), False
            except Exception as error:
                content, is_error = error_of(error), True
            await self._send_result(action, claim, content, is_error)
        except SojournError as error:
            if error.code == "action_claimed":
                return False
            if not is_ended(error):
                raise
        return True

    async def _send_result(self, action: Any, claim: str, content: list[Any], is_error: bool) -> None:
        """Sends the result of a call; tells the model if the service refuses the files of the result."""
        try:
            await self._until_answered(answering(action, claim, content, is_error))
        except SojournError as error:
            if not refuses_files(error, content):
                raise
            await self._until_answered(answering(action, claim, error_of(error), True))

    async def _until_answered(self, call: Call) -> Any:
        """Repeats a call until the service answers."""
        attempt = 0
        while True:
            try:
                return taken(await self._answer(call))
            except (httpx.TransportError, SojournError) as error:
                if isinstance(error, SojournError) and not may_pass(error):
                    raise
            attempt += 1
            await asyncio.sleep(pause(attempt))

    async def _follow(self, tail: Tail) -> AsyncIterator[Any]:
        timeout = httpx.Timeout(ANSWER, read=SILENCE)
        while True:
            wait = None
            try:
                params, headers = tail.request()
                url = self._root + tail.path
                async with self._http.stream("GET", url, params=params, headers=headers, timeout=timeout) as response:
                    if not response.is_success:
                        await response.aread()
                        taken(response)
                    frames = Frames()
                    async for chunk in response.aiter_bytes():
                        for frame in frames.feed(chunk):
                            for body in tail.take(frame):
                                yield body
                            if tail.is_over:
                                return
            except (httpx.TransportError, SojournError) as error:
                wait = tail.cut(error)
            await asyncio.sleep(wait or tail.cut())
