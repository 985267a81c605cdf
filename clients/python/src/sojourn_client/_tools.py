"""Shared by both clients: calls of custom tools and their results."""

from __future__ import annotations

import json
from typing import Any

from ._call import Call, at
from .errors import SojournError

#: How long only this caller may answer a call that it runs, in seconds; the longest that the service allows.
CLAIM = 600
#: Longest text of a result as JSON, in bytes; the service accepts 30,000 with what surrounds it.
RESULT = 29_900
#: Ends a result that was cut.
CUT = "\n[the rest was cut]"
#: Most bytes that a file has in a result as JSON, without what it contains.
FILE_REF = 1_200
#: Least space of a text in a result, and of what surrounds it, in bytes.
TEXT, WRAPPED = 100, 30
#: Most parts of a result.
PARTS = 64
#: Text of a result without any.
NOTHING = "(no output)"


def claiming(action: Any) -> Call:
    """The call that claims an action."""
    path = at("sessions", action["session_id"], "pending", action["id"], "claim")
    return Call("POST", path, json={"seconds": CLAIM})


def answering(action: Any, claim: str, content: list[Any], is_error: bool) -> Call:
    """The call that sends the result of a custom tool."""
    event = {
        "type": "user.custom_tool_result",
        "action_id": action["id"],
        "content": content,
        "is_error": is_error,
        "claim": claim,
    }
    return Call("POST", at("sessions", action["session_id"], "events"), json={"events": [event]})


def deciding(action: Any, decision: Any) -> Call:
    """The call that confirms or rejects a call: `decision` is "once", "reject", or the fields of a decision."""
    fields = {"decision": decision} if isinstance(decision, str) else dict(decision)
    event = {
        "type": "user.tool_confirmation",
        "action_id": action["id"],
        "args_hash": action.get("args_hash"),
        **fields,
    }
    return Call("POST", at("sessions", action["session_id"], "events"), json={"events": [event]})


def replying(action: Any, answers: Any) -> Call:
    """The call that answers questions, with a list of an answer for each, or the answer to the only one.

    A text that is the label of an option chooses it; another text is written, and an empty one answers an optional
    question. `{"declined": True}` declines the questions of an MCP server.
    """
    if isinstance(answers, dict) and answers.get("declined"):
        event = {"type": "user.answer", "action_id": action["id"], "answers": [], "declined": True}
        return Call("POST", at("sessions", action["session_id"], "events"), json={"events": [event]})
    given = answers if isinstance(answers, list) else [answers]
    replies = [_reply(question, one) for question, one in zip(action["questions"], given, strict=True)]
    event = {"type": "user.answer", "action_id": action["id"], "answers": replies}
    return Call("POST", at("sessions", action["session_id"], "events"), json={"events": [event]})


def _reply(question: Any, answer: Any) -> Any:
    if not isinstance(answer, str):
        return answer
    if not answer:
        return {}
    is_offered = any(option["label"] == answer for option in question["options"])
    return {"labels": [answer]} if is_offered else {"text": answer}


def input_call(action: Any) -> Call | None:
    """The call that reads the arguments, if they are too large for the list of actions."""
    if action.get("input") is not None:
        return None
    return Call("GET", at("sessions", action["session_id"], "events", action["call_event_id"], "content"))


def content_of(result: object) -> list[Any]:
    """The parts of a result: parts as they are, another value as a text; texts are cut where they are too long."""
    given: list[Any] = result if isinstance(result, list) else [result]
    if not given or len(given) > PARTS or not all(map(_is_part, given)):
        return [{"type": "text", "text": text_of(result)}]
    given = [part for part in given if part["type"] != "text" or part["text"]]
    if not given:
        return [{"type": "text", "text": NOTHING}]
    parts, texts = [], sum(part["type"] == "text" for part in given)
    left = RESULT - FILE_REF * (len(given) - texts) - WRAPPED * texts
    for part in given:
        if part["type"] == "text":
            texts -= 1
            # What follows keeps its least space.
            text = text_of(part["text"], max(left - TEXT * texts, TEXT))
            left -= len(json.dumps(text, ensure_ascii=False).encode())
            part = {"type": "text", "text": text}
        parts.append(part)
    return parts


def _is_part(part: object) -> bool:
    """Whether a value is a part of a result, and not other data."""
    match part:
        case {"type": "text", "text": str(), **others}:
            return not others
        case {"type": "image" | "document", "source": dict(), **others}:
            return not others.keys() - {"name"}
    return False


def text_of(result: object, most: int = RESULT) -> str:
    """The text for the model: a string as it is, everything else as JSON; cut if it has more bytes as JSON."""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    text = text.encode(errors="replace").decode() or NOTHING
    encoded = json.dumps(text, ensure_ascii=False).encode()
    if len(encoded) <= most:
        return text
    begin = encoded[: most - len(json.dumps(CUT))].decode(errors="ignore")
    while True:
        # A character whose escape was cut in two is left out.
        try:
            return str(json.loads(begin + '"')) + CUT
        except ValueError:
            begin = begin[:-1]


def error_of(error: Exception) -> list[Any]:
    """The result for the model when a handler raised."""
    return content_of(f"{type(error).__name__}: {error}")


def refuses_files(error: SojournError, content: list[Any]) -> bool:
    """Whether the service refused the files of a result, such as for a damaged image."""
    has_files = any(part["type"] != "text" for part in content)
    return has_files and (error.status in (400, 413) or error.code in ("file_storage_full", "too_many_files"))


def rests(session: Any) -> bool:
    """Whether the session neither runs a turn nor waits for an action."""
    return session["status"] not in ("queued", "running") and not waits(session)


def waits(session: Any) -> bool:
    """Whether the turn of the session waits for an action."""
    turn = session.get("last_turn")
    return turn is not None and turn["state"] == "waiting"


def may_pass(error: SojournError) -> bool:
    """Whether the same call may succeed later, also while the same request still runs."""
    return error.passes or error.code == "in_flight"


def is_ended(error: SojournError) -> bool:
    """Whether the action has ended, or its session is gone."""
    return error.status == 404 or error.code in ("action_resolved", "action_expired", "archived")
