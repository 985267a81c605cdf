"""Loops with a service: a person lets an agent that repeats itself go on, or ends it; a setting ends it at once."""

from __future__ import annotations

import json
import os
from typing import Any

from sojourn_client import Sojourn

URL, KEY = os.environ["SOJOURN_URL"], os.environ["SOJOURN_API_KEY"]
AGENT = {"name": "loops-py", "prompt": "Wait until the tests are green.", "model": "scripted/inline", "tools": ["bash"]}
#: Results of a call that a person rejected, and of one that the end of the turn prevented.
REJECTED = "A person rejected this call, so it did not run. They wrote: Read the log instead."
NOT_RUN = "The turn was ended before anybody ran this tool."


def calls(words: str) -> dict[str, Any]:
    """An input whose turn prints a word in each step."""
    commands = [{"tool": "bash", "input": {"command": f"echo {word}"}} for word in words.split()]
    return {"script": [*({"tools": [command]} for command in commands), {"text": "done"}]}


def bodies(client: Sojourn, session: str, kind: str) -> list[Any]:
    return [event["body"] for event in client.call("GET", f"/sessions/{session}/events", type=kind)["data"]]


def outputs(client: Sojourn, session: str) -> list[str]:
    return [body["output"] for body in bodies(client, session, "tool.result")]


def go_on(client: Sojourn) -> None:
    """The third equal call waits for a person. After a confirmation counting begins anew."""
    session = client.create(agent="loops-py", input=calls("red red red red red green"))["session"]["id"]
    asked: list[tuple[str, str, str, bool]] = []

    def confirm(action: Any) -> str:
        asked.append((action["kind"], action["reason"], action["input"]["command"], "always" in action))
        return "once"

    turn = client.run(session, on_confirmation=confirm)["last_turn"]
    assert turn and turn["yield_reason"] == "completed", turn
    assert asked == [("confirmation", "loop", "echo red", False)], asked
    results = bodies(client, session, "tool.result")
    assert [result["output"] for result in results] == ["red\n"] * 5 + ["green\n"], results
    repeats = [body.get("repeats") for body in bodies(client, session, "tool.call")]
    assert repeats == [None, None, {"calls": 1, "times": 3}, None, None, None], repeats


def give_up(client: Sojourn) -> None:
    """After a rejection the model may do something else; a second loop ends the turn, and a message starts the next."""
    session = client.create(agent="loops-py", input=calls("a b a b a b c c c never"))["session"]["id"]
    decision = {"decision": "reject", "message": "Read the log instead."}
    turn = client.run(session, on_confirmation=lambda action: decision)["last_turn"]
    assert turn and turn["error"] and (turn["state"], turn["error"]["code"]) == ("error", "doom_loop"), turn
    results = bodies(client, session, "tool.result")
    expected = ["a\n", "b\n", "a\n", "b\n", "a\n", REJECTED, "c\n", "c\n", NOT_RUN]
    assert [result["output"] for result in results] == expected, results
    repeats = [body["repeats"] for body in bodies(client, session, "tool.call") if "repeats" in body]
    assert repeats == [{"calls": 2, "times": 3}, {"calls": 1, "times": 3, "ends_turn": True}], repeats
    client.steer(session, json.dumps(calls("log")))
    turn = client.settled(session)["last_turn"]
    assert turn and turn["state"] == "ok" and outputs(client, session)[-1] == "log\n", turn


def settings(client: Sojourn) -> None:
    """`stop` ends the turn without a question, and a retry counts anew; `off` lets everything run."""
    stop = {"policy": "stop", "repeats": 2}
    session = client.create(agent="loops-py", doom_loop=stop, input=calls("a a b"))["session"]["id"]
    turn = client.settled(session)["last_turn"]
    assert turn and turn["error"] and turn["error"]["code"] == "doom_loop", turn
    assert turn["error"]["message"].startswith("the agent made the same call 2 times in a row"), turn
    client.retry_turn(session, turn["id"])
    turn = client.settled(session)["last_turn"]
    assert turn and (turn["state"], turn["attempt"]) == ("ok", 2), turn
    results = bodies(client, session, "tool.result")
    assert [result["output"] for result in results] == ["a\n", NOT_RUN, "b\n"], results

    client.call("PATCH", f"/sessions/{session}", json={"doom_loop": {"policy": "off"}})
    client.steer(session, json.dumps(calls("a a a a a a")))
    turn = client.settled(session)["last_turn"]
    assert turn and turn["yield_reason"] == "completed" and outputs(client, session)[-6:] == ["a\n"] * 6, turn


def main() -> None:
    with Sojourn(URL, KEY) as client:
        client.call("POST", "/agents", json=AGENT)
        go_on(client)
        give_up(client)
        settings(client)


if __name__ == "__main__":
    main()
    print("the Python client: loops wait for a person, or end their turn")
