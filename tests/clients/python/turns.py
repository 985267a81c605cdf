"""Turns with a service: a failed one is retried, and those of a tree are canceled."""

from __future__ import annotations

import asyncio
import os

from sojourn_client import AsyncSojourn, Sojourn, SojournError

URL, KEY = os.environ["SOJOURN_URL"], os.environ["SOJOURN_API_KEY"]


def failing(name: str) -> dict[str, object]:
    """An input whose turn fails once. `name` differs, because equal histories share their faults."""
    return {"script": [{"text": f"{name} is done", "fault": {"kind": "refused"}}]}


def conflict(error: SojournError) -> tuple[int, str | None]:
    return error.status, error.code


def main() -> None:
    with Sojourn(URL, KEY) as client:
        client.call("POST", "/agents", json={"name": "turns", "prompt": "", "model": "scripted/inline"})
        session = client.create(agent="turns", input=failing("python"))["session"]["id"]
        failed = client.settled(session)["last_turn"]
        assert failed and failed["error"] and failed["error"]["code"] == "model_refused_request", failed
        assert client.retry_turn(session, failed["id"])["session"]["id"] == session
        result = client.settled(session)
        turn = result["last_turn"]
        assert turn and (turn["id"], turn["attempt"], turn["state"]) == (failed["id"], 2, "ok"), turn
        try:
            client.retry_turn(session, failed["id"])
            raise AssertionError("a completed turn was retried")
        except SojournError as error:
            assert conflict(error) == (409, "turn_not_failed"), error


SLOW = {"script": [{"text": "slow", "delay_ms": 60_000}]}


def tree() -> None:
    with Sojourn(URL, KEY) as client:
        top = client.create(agent="turns")["session"]["id"]
        low = client.create(agent="turns", input=SLOW, parent_session_id=top)["session"]["id"]
        client.cancel(top, children=True)
        turn = client.settled(low)["last_turn"]
        assert turn and turn["yield_reason"] == "canceled", turn
        assert client.archive(top, children=True)["status"] == "archived"
        assert client.get(low)["status"] == "archived"


async def same_with_asyncio() -> None:
    async with AsyncSojourn(URL, KEY) as client:
        top = (await client.create(agent="turns"))["session"]["id"]
        low = (await client.create(agent="turns", input=SLOW, parent_session_id=top))["session"]["id"]
        await client.cancel(top, children=True)
        canceled = (await client.settled(low))["last_turn"]
        assert canceled and canceled["yield_reason"] == "canceled", canceled
        session = (await client.create(agent="turns", input=failing("asyncio")))["session"]["id"]
        failed = (await client.settled(session))["last_turn"]
        assert failed and failed["state"] == "error", failed
        await client.retry_turn(session, failed["id"])
        turn = (await client.settled(session))["last_turn"]
        assert turn and (turn["id"], turn["state"]) == (failed["id"], "ok"), turn


if __name__ == "__main__":
    main()
    tree()
    asyncio.run(asyncio.wait_for(same_with_asyncio(), 60))
    print("the Python client: a failed turn is retried, a tree is canceled")
