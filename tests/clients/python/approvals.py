"""Approvals with a service: a person allows a call, allows a kind of call for the session, and rejects with words."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from sojourn_client import AsyncSojourn, Sojourn, SojournError

URL, KEY = os.environ["SOJOURN_URL"], os.environ["SOJOURN_API_KEY"]
AGENT = {
    "name": "approvals-py",
    "prompt": "Release what is built.",
    "model": "scripted/inline",
    "permissions": [{"tool": "bash", "policy": "ask"}, {"tool": "bash", "prefix": "rm", "policy": "deny"}],
}
DENIED = "The permissions of this session do not allow this call: `bash` with the prefix `rm` is denied."
REJECTED = "A person rejected this call, so it did not run."


def play(*steps: list[str]) -> dict[str, Any]:
    """An input whose turn runs the commands of each step."""
    calls = [[{"tool": "bash", "input": {"command": command}} for command in step] for step in steps]
    return {"script": [*({"tools": step} for step in calls), {"text": "done"}]}


def results(client: Sojourn, session: str) -> dict[str, tuple[str, str]]:
    """Outcome and output of each command; the newest of equal ones."""
    events = list(client.pages(f"/sessions/{session}/events", type="tool.*"))
    commands = {event["body"]["call_id"]: event["body"]["input"]["command"] for event in events if event["type"] == "tool.call"}
    ended = [event["body"] for event in events if event["type"] == "tool.result"]
    return {commands[body["call_id"]]: (body["outcome"], body["output"]) for body in ended}


def refused(client: Sojourn, action: Any, decision: dict[str, Any]) -> tuple[int, str | None, str | None]:
    """Status, code and parameter of the error of a decision."""
    event = {"type": "user.tool_confirmation", "action_id": action["id"], **decision}
    try:
        client.call("POST", f"/sessions/{action['session_id']}/events", json={"events": [event]})
    except SojournError as error:
        return error.status, error.code, error.param
    raise AssertionError("the decision was taken")


def release(client: Sojourn) -> str:
    """Once, always and a rejection in one turn. Nobody is asked for what a rule denies or was granted."""
    asked: list[str] = []

    def decide(action: Any) -> object:
        command = action["input"]["command"]
        asked.append(command)
        if command == "echo deploy staging":
            # A decision is for the arguments that the person saw, and grants no more than what is offered.
            other = {"decision": "once", "args_hash": f"sha256:{'0' * 64}"}
            assert refused(client, action, other) == (409, "args_changed", "events[0]")
            assert action["always"] == [{"tool": "bash", "prefix": "echo deploy", "policy": "allow"}]
            wide = {"decision": "always", "rule": {**action["always"][0], "prefix": "echo"}, "args_hash": action["args_hash"]}
            assert refused(client, action, wide) == (400, None, "events[0].rule")
            return {"decision": "always", "rule": action["always"][0]}
        return {"decision": "reject", "message": "Publish it on Monday."} if command == "echo publish" else "once"

    steps = ["echo build", "rm -rf build"], ["echo deploy staging"], ["echo deploy production", "echo publish"]
    session = client.create(agent="approvals-py", input=play(*steps))["session"]["id"]
    turn = client.run(session, on_confirmation=decide)["last_turn"]
    assert turn and turn["yield_reason"] == "completed", turn
    assert asked == ["echo build", "echo deploy staging", "echo publish"], asked
    assert results(client, session) == {
        "echo build": ("ran", "build\n"),
        "rm -rf build": ("not_run", DENIED),
        "echo deploy staging": ("ran", "deploy staging\n"),
        "echo deploy production": ("ran", "deploy production\n"),
        "echo publish": ("not_run", f"{REJECTED} They wrote: Publish it on Monday."),
    }
    return session


def revoke(client: Sojourn, session: str) -> None:
    """What was granted holds in the next turn, until it is revoked. A rejection can end the turn."""
    [grant] = client.call("GET", f"/sessions/{session}/permissions")["granted"]
    assert grant["rule"] == {"tool": "bash", "prefix": "echo deploy", "policy": "allow"}
    client.steer(session, json.dumps(play(["echo deploy again"])))
    turn = client.settled(session)["last_turn"]
    assert turn and (turn["state"], turn["yield_reason"]) == ("ok", "completed"), turn
    assert results(client, session)["echo deploy again"] == ("ran", "deploy again\n")

    client.call("DELETE", f"/sessions/{session}/permissions/{grant['event_id']}")
    client.steer(session, json.dumps(play(["echo deploy last"], ["echo never"])))
    turn = client.run(session, on_confirmation=lambda action: {"decision": "reject", "then": "end_turn"})["last_turn"]
    assert turn and (turn["state"], turn["yield_reason"]) == ("ok", "canceled"), turn
    assert results(client, session)["echo deploy last"] == ("not_run", f"{REJECTED} Do not try it in another way.")
    assert "echo never" not in results(client, session)


def large(client: Sojourn) -> None:
    """A person sees all of a command that is too long for an event."""
    command = f"echo long # {'x' * 40_000}\necho end"
    asked: list[str] = []

    def decide(action: Any) -> str:
        asked.append(action["input"]["command"])
        return "once"

    session = client.create(agent="approvals-py", input=play([command]))["session"]["id"]
    turn = client.run(session, on_confirmation=decide)["last_turn"]
    assert turn and turn["yield_reason"] == "completed", turn
    assert asked == [command]


def beside() -> dict[str, Any]:
    """A session of which one step calls a command that a person confirms, and a custom tool."""
    tool = {"type": "custom", "name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
    calls = [{"tool": "bash", "input": {"command": "echo seen"}}, {"tool": "look", "input": {}}]
    script = {"script": [{"tools": calls}, {"text": "done"}]}
    return {"agent": "approvals-py", "tools": ["bash", tool], "input": script}


def tools_first(client: Sojourn) -> None:
    """A tool does not wait for a person."""
    ran: list[str] = []

    def decide(action: Any) -> str:
        assert ran, "the tool waits"
        return "once"

    session = client.create(**beside())["session"]["id"]
    turn = client.run(session, {"look": lambda arguments, call: ran.append(call)}, on_confirmation=decide)["last_turn"]
    assert turn and turn["yield_reason"] == "completed" and len(ran) == 1, turn


async def tools_meanwhile() -> None:
    """A tool runs while a person thinks."""
    ran = asyncio.Event()

    async def look(arguments: Any, call: str) -> str:
        ran.set()
        return "seen"

    async def decide(action: Any) -> str:
        await asyncio.wait_for(ran.wait(), 30)
        return "once"

    async with AsyncSojourn(URL, KEY) as client:
        session = (await client.create(**beside()))["session"]["id"]
        turn = (await client.run(session, {"look": look}, on_confirmation=decide))["last_turn"]
    assert turn and turn["yield_reason"] == "completed", turn


def main() -> None:
    with Sojourn(URL, KEY) as client:
        client.call("POST", "/agents", json=AGENT)
        revoke(client, release(client))
        large(client)
        tools_first(client)
    asyncio.run(tools_meanwhile())


if __name__ == "__main__":
    main()
    print("the Python client: approvals work")
