"""Structured output with a service: an output is repaired, is given up, and is wanted by one message alone."""

from __future__ import annotations

import json
import os
from typing import Any

from sojourn_client import Sojourn

URL, KEY = os.environ["SOJOURN_URL"], os.environ["SOJOURN_API_KEY"]
TICKET = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 3},
        "priority": {"enum": ["low", "high"]},
        "lines": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["title", "priority"],
    "additionalProperties": False,
}
AGENT = {
    "name": "output-py",
    "prompt": "Write a ticket for each report.",
    "model": "scripted/inline",
    "output_schema": TICKET,
    "output_repairs": 1,
}
GOOD = {"title": "The total is too low", "priority": "high", "lines": [7, 12]}
#: Three faults: no priority, a title that is too short, and a line that is a text.
BAD = {"title": "?", "lines": [7, "twelve"]}


def submit(output: object) -> dict[str, Any]:
    return {"tools": [{"tool": "submit_output", "input": output}]}


def bodies(client: Sojourn, session: str, kind: str) -> list[Any]:
    return [event["body"] for event in client.call("GET", f"/sessions/{session}/events", type=kind)["data"]]


def repaired(client: Sojourn) -> str:
    """The model is told of each fault of its first output, and submits another one."""
    look = {"text": "I read the report.", "tools": [{"tool": "bash", "input": {"command": "echo 7 12"}}]}
    session = client.create(agent="output-py", input={"script": [look, submit(BAD), submit(GOOD)]})["session"]["id"]
    result = client.settled(session)
    turn = result["last_turn"]
    assert turn and (turn["state"], turn["yield_reason"]) == ("ok", "completed"), turn
    assert (result["output"], result["output_repairs"], turn["output"]) == (GOOD, 1, GOOD)
    message = result["result"]
    assert message and message["type"] == "agent.message"
    assert json.loads(message["body"]["text"]) == GOOD
    faults = [
        '"priority" is a required property',
        '/title: "?" is shorter than 3 characters',
        '/lines/1: "twelve" is not of type "integer"',
    ]
    [rejected] = bodies(client, session, "output.rejected")
    assert rejected["faults"] == faults, rejected
    looked, refused, accepted = bodies(client, session, "tool.result")
    assert (looked["output"], accepted["output"]) == ("7 12\n", "The output was accepted.")
    assert (refused["call_id"], refused["outcome"], refused["is_error"]) == (rejected["call_id"], "not_run", True)
    assert refused["output"].splitlines()[1:-1] == faults, refused
    assert [end["output"] for end in bodies(client, session, "turn.completed")] == [GOOD]
    return session


def given_up(client: Sojourn) -> None:
    """After one repair the turn ends without an output; its retry begins with the next response of the model."""
    steps = [{"text": "There is no ticket."}, submit(BAD), submit(GOOD)]
    session = client.create(agent="output-py", input={"script": steps})["session"]["id"]
    result = client.settled(session)
    turn = result["last_turn"]
    assert turn and turn["error"] and (turn["state"], turn["yield_reason"]) == ("error", "output_invalid"), turn
    assert (turn["error"]["code"], result["output"], result["result"]) == ("output_invalid", None, None), result
    assert result["output_repairs"] == 2
    missing, rejected = bodies(client, session, "output.rejected")
    assert (missing, len(rejected["faults"])) == ({"faults": ["no output was submitted"]}, 3)

    client.retry_turn(session, turn["id"])
    result = client.settled(session)
    retried = result["last_turn"]
    assert retried and (retried["id"], retried["attempt"], retried["state"]) == (turn["id"], 2, "ok"), retried
    assert (result["output"], result["output_repairs"]) == (GOOD, 0), result


def asked_for(client: Sojourn, session: str) -> None:
    """The schema of a message holds for its turn; the one of the agent holds again in the next turn."""
    schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
    for fields, output in [({"output_schema": schema}, {"sure": True}), ({}, {**GOOD, "priority": "low"})]:
        message = {"text": json.dumps({"script": [submit(output)]}), **fields}
        client.call("POST", f"/sessions/{session}/messages", json=message)
        result = client.settled(session)
        assert (result["output"], result["output_repairs"]) == (output, 0), result


def main() -> None:
    with Sojourn(URL, KEY) as client:
        client.call("POST", "/agents", json=AGENT)
        asked_for(client, repaired(client))
        given_up(client)


if __name__ == "__main__":
    main()
    print("the Python client: outputs fit their schema, after repairs")
