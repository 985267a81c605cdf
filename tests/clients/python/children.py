"""Child sessions with a service: an agent starts three, answers one, waits for one, and cancels one."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from sojourn_client import Sojourn

URL, KEY = os.environ["SOJOURN_URL"], os.environ["SOJOURN_API_KEY"]
TOOLS = ["start_session", "session_wait", "session_read", "session_message", "session_cancel"]
LEAD = {"name": "children-py", "prompt": "Have it reviewed.", "model": "scripted/inline", "tools": TOOLS}
CHECK = {"type": "custom", "name": "check", "description": "Checks a file.", "input_schema": {"type": "object"}}
REVIEWER = {
    "name": "children-py-reviewer",
    "prompt": "Review the file.",
    "model": "scripted/inline",
    "tools": ["ask", CHECK],
    "ask": {"mode": "wait"},
}
ASK = {"tool": "ask", "input": {"questions": [{"question": "Which branch?"}]}}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tools": [{"tool": tool, "input": arguments}]}


def start(*steps: dict[str, Any]) -> dict[str, Any]:
    """A call that starts a reviewer; its input is a text, which the model of the reviewer reads as a script."""
    text = json.dumps({"script": steps})
    return {"tool": "start_session", "input": {"agent": "children-py-reviewer", "input": text}}


def outputs(client: Sojourn, session: str) -> list[str]:
    events = client.call("GET", f"/sessions/{session}/events", type="tool.result")["data"]
    return [event["body"]["output"] for event in events]


def started(client: Sojourn) -> tuple[str, list[str]]:
    """The lead starts three sessions in one step; returns its id and theirs."""
    reviewers = [
        start({"tools": [ASK]}, {"text": "The branch is main."}),
        start({"tools": [{"tool": "check", "input": {"file": "tally.py"}}]}, {"text": "The file has a bug."}),
        start({"text": "never", "delay_ms": 600_000}),
    ]
    lead = client.create(agent="children-py", input={"script": [{"tools": reviewers}, {"text": "done"}]})["session"]["id"]
    turn = client.settled(lead)["last_turn"]
    assert turn and turn["yield_reason"] == "completed", turn
    matches = [re.fullmatch(r"The session (ses_\w+) was started\.", output) for output in outputs(client, lead)]
    ids = [match[1] for match in matches if match]
    listed = client.pages("/sessions", parent_session_id=lead)
    assert len(ids) == 3 and sorted(one["id"] for one in listed) == sorted(ids)
    return lead, ids


def supervise(client: Sojourn, lead: str, ids: list[str]) -> None:
    """The turn of the lead waits without a worker while the others ask, or need this process."""
    asks, checks, sleeps = ids
    for one in (asks, checks):
        turn = client.settled(one)["last_turn"]
        assert turn and turn["state"] == "waiting", turn
    next(client.follow(sleeps, type="turn.started"))
    steps = [
        call("session_wait", ids=[asks, checks]),
        call("session_message", id=asks, text="main"),
        call("session_wait", ids=[asks, checks]),
        call("session_read", id=checks),
        call("session_cancel", id=sleeps),
        call("session_wait", ids=[sleeps]),
        {"text": "One bug."},
    ]
    head = client.get(lead)["head"]
    client.steer(lead, json.dumps({"script": steps}))
    for event in client.follow(lead, after=head, type="turn.waiting"):
        if event["body"].get("session_ids") == [checks]:
            break
    waiting = client.get(lead)
    assert (waiting["status"], waiting["phase"]) == ("running", "waiting_for_sessions"), waiting
    [action] = client.call("GET", f"/sessions/{lead}/pending", children=True)["data"]
    assert (action["session_id"], action["tool"], action["input"]) == (checks, "check", {"file": "tally.py"})
    client.run(checks, {"check": lambda arguments, call_id: f"{arguments['file']}:7 is wrong"})
    result = client.settled(lead)
    assert result["result"] and result["result"]["body"].get("text") == "One bug.", result

    asked, told, both, read, canceled, ended = outputs(client, lead)[3:]
    states = [(one["session_id"], one["status"]) for one in json.loads(asked)["sessions"]]
    assert states == [(asks, "awaiting_input"), (checks, "awaiting_input")], asked
    assert json.loads(asked)["sessions"][0]["questions"][0]["question"] == "Which branch?"
    assert (told, canceled) == ("The message answers the question of the session.", "The session was canceled.")
    texts = (asks, "The branch is main."), (checks, "The file has a bug.")
    ends = [{"session_id": one, "status": "idle", "yield_reason": "completed", "text": text} for one, text in texts]
    assert json.loads(both) == {"sessions": ends, "timed_out": False}
    messages = [(event["type"], event["text"]) for event in json.loads(read)["events"]]
    assert messages[-2:] == [("agent.message", "The file has a bug."), ("turn.completed", "completed")], messages
    stopped = {"session_id": sleeps, "status": "idle", "yield_reason": "canceled"}
    assert json.loads(ended) == {"sessions": [stopped], "timed_out": False}
    assert (outputs(client, asks), outputs(client, checks)) == (["main"], ["tally.py:7 is wrong"])


def main() -> None:
    with Sojourn(URL, KEY) as client:
        for agent in (LEAD, REVIEWER):
            client.call("POST", "/agents", json=agent)
        lead, ids = started(client)
        supervise(client, lead, ids)


if __name__ == "__main__":
    main()
    print("the Python client: an agent supervises child sessions")
