"""An agent asks a question and gets an answer, a webhook reports the end; another calls tools
of this process; then a sandbox without an agent.

tests/clients runs this.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sojourn_client import AsyncSojourn, Sojourn, SojournError, WebhookError, verify_webhook

URL, KEY = os.environ["SOJOURN_URL"], os.environ["SOJOURN_API_KEY"]
# Characters that look like line ends but must not split a frame.
TEXT = "green \u2028\u2029\x85\x0b\x1c\r\n\ndata: {}\n\n"

deliveries: list[tuple[bytes, dict[str, str]]] = []
told = threading.Event()


class Receiver(BaseHTTPRequestHandler):
    """A webhook receiver; verification needs the raw body."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        deliveries.append((body, dict(self.headers)))
        self.send_response(204)
        self.end_headers()
        told.set()

    def log_message(self, format: str, *args: object) -> None:
        pass


def ask(hook: str) -> tuple[str, str]:
    """Runs a session that asks a question; returns its id and the secret of its webhook."""
    with Sojourn(URL, KEY) as client:
        client.call("POST", "/agents", json={"name": "example", "prompt": "Play.", "model": "scripted/inline"})
        question = {"tool": "ask", "input": {"question": "Which colour?", "options": ["blue", "green"]}}
        created = client.create(
            agent="example",
            input={"script": [{"text": "I ask first.", "tools": [question]}]},
            destinations=[{"url": hook, "types": ["turn.completed"]}],
        )
        session = created["session"]["id"]
        for event in client.follow(session):
            if event["type"] == "turn.completed":
                break
        result = client.result(session)
        assert result["last_turn"] and result["last_turn"]["yield_reason"] == "needs_input"
        client.steer(session, TEXT)
        result = client.settled(session)
        assert result["last_turn"] and result["last_turn"]["yield_reason"] == "completed"

        # A stream has each event of the log once, whatever characters it contains.
        seen, ended = [], 0
        for event in client.follow(session, level="internal"):
            seen.append(event)
            ended += event["type"] == "turn.completed"
            if ended == 2:
                break
        assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
        assert any(event["body"].get("text") == TEXT for event in seen)
        assert [one["id"] for one in client.pages("/sessions", limit=1)][0] == session

        try:
            client.get("ses_01hzzzzzzzzzzzzzzzzzzzzzzz")
        except SojournError as error:
            assert (error.status, error.type) == (404, "not_found")
        else:
            raise AssertionError("an unknown session was found")
        use(client)
        invoke(client)
        run(client)
        return session, created["destinations"][0]["secret"] or ""


def invoke(client: Sojourn) -> None:
    """An invoke token starts sessions of its agent until it is revoked."""
    tokens = "/agents/example/invoke-tokens"
    made = client.call("POST", tokens, json={"name": "example"})
    with Sojourn(URL, made["token"]) as outside:
        session = outside.invoke("example", input={"script": [{"text": "done"}]})["session"]["id"]
        result = client.settled(session)
        assert result["last_turn"] and result["last_turn"]["yield_reason"] == "completed"
        client.call("DELETE", f"{tokens}/{made['id']}")
        try:
            outside.invoke("example", input="x")
        except SojournError as error:
            assert error.status == 401
        else:
            raise AssertionError("a revoked token started a session")


def custom(name: str) -> dict[str, object]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "custom", "name": name, "description": f"{name} of a city", "input_schema": schema}


#: A step with two calls of custom tools, and one without.
CALLS = [{"tools": [{"tool": name, "input": {"city": "Paris"}} for name in ("weather", "time")]}, {"text": "done"}]


def run(client: Sojourn) -> None:
    """The agent calls tools that run in this process."""
    tools = [custom("weather"), custom("time")]
    session = client.create(agent="example", tools=tools, input={"script": CALLS})["session"]["id"]
    waiting = client.settled(session)
    assert waiting["last_turn"] and waiting["last_turn"]["state"] == "waiting"
    # Another process has claimed a call and died.
    pending = f"/sessions/{session}/pending"
    [weather, _] = client.call("GET", pending)["data"]
    client.call("POST", f"{pending}/{weather['id']}/claim", json={"seconds": 2})
    ran: list[str] = []

    def weather_of(arguments: dict[str, str], call_id: str) -> object:
        ran.append(call_id)
        return {"city": arguments["city"], "sky": "\u2028\n\x01" * 8_000}

    def time_of(arguments: dict[str, str], call_id: str) -> object:
        ran.append(call_id)
        raise LookupError("no clock")

    result = client.run(session, {"weather": weather_of, "time": time_of})
    assert result["last_turn"] and result["last_turn"]["yield_reason"] == "completed"
    assert len(ran) == len(set(ran)) == 2
    events = client.call("GET", f"/sessions/{session}/events", type="user.custom_tool_result", level="progress")["data"]
    sent = {event["body"].get("is_error", False): event["body"]["content"][0]["text"] for event in events}
    assert sent[True] == "LookupError: no clock"
    assert sent[False].startswith('{"city": "Paris"') and sent[False].endswith("[the rest was cut]")
    assert 29_880 < len(json.dumps(sent[False], ensure_ascii=False).encode()) <= 29_900
    confirm(client)
    answer(client)


def answer(client: Sojourn) -> None:
    """The agent asks within its turn."""
    options = [{"label": "staging"}, {"label": "production"}]
    questions = [{"question": "Where to?", "options": options}, {"question": "When?", "options": [{"label": "now"}]}]
    steps = [
        {"tools": [{"tool": "ask", "input": {"questions": questions}}]},
        {"tools": [{"tool": "ask", "input": {"questions": questions[:1]}}]},
        {"text": "done"},
    ]
    asking = {"mode": "wait"}
    session = client.create(agent="example", ask=asking, input={"script": steps})["session"]["id"]
    result = client.run(session, on_question=lambda action: ["staging", "at noon"][: len(action["questions"])])
    assert result["last_turn"] and result["last_turn"]["yield_reason"] == "completed"
    results = client.call("GET", f"/sessions/{session}/events", type="tool.result", level="progress")["data"]
    assert [event["body"]["output"] for event in results] == ["1. staging\n2. at noon", "staging"]


def confirm(client: Sojourn) -> None:
    """The agent asks before it runs a command."""
    rules = [{"tool": "bash", "policy": "ask"}]
    commands = [{"tool": "bash", "input": {"command": command}} for command in ("echo yes", "echo no")]
    script = [{"tools": commands}, {"text": "done"}]
    session = client.create(agent="example", permissions=rules, input={"script": script})["session"]["id"]

    def decide(action: dict[str, object]) -> object:
        if action["input"] == {"command": "echo yes"}:
            return "once"
        return {"decision": "reject", "message": "Not that one."}

    client.run(session, on_confirmation=decide)
    results = client.call("GET", f"/sessions/{session}/events", type="tool.result", level="progress")["data"]
    outputs = sorted(event["body"]["output"] for event in results)
    assert outputs[0].endswith("They wrote: Not that one.") and outputs[1] == "yes\n", outputs


def use(client: Sojourn) -> None:
    """A sandbox without an agent: files in, a command, files out."""
    sandbox = client.create()["session"]["id"]
    written = client.write_file(sandbox, "notes/a.txt", TEXT.encode())
    assert (written["path"], written["bytes"]) == ("/workspace/notes/a.txt", len(TEXT.encode()))
    ran = client.exec(sandbox, "wc -c < notes/a.txt; echo late >&2; exit 3", timeout_seconds=30)
    assert (ran["exit_code"], ran["stdout"].strip(), ran["stderr"]) == (3, str(written["bytes"]), "late\n")
    *said, end = client.follow_exec(sandbox, "echo first; sleep 1; echo late >&2; exit 3")
    output = [(frame["stream"], frame["text"]) for frame in said if frame["type"] == "exec.output"]
    assert output == [("stdout", "first\n"), ("stderr", "late\n")]
    assert end["type"] == "exec.ended" and end["exit_code"] == 3
    assert [entry["name"] for entry in client.list_files(sandbox, "notes")["entries"]] == ["a.txt"]
    assert client.read_file(sandbox, "notes/a.txt") == TEXT.encode()
    assert client.exec(sandbox, ["truncate", "-s", "0", "notes/a.txt"])["exit_code"] == 0
    assert client.read_file(sandbox, "notes/a.txt") == b""
    try:
        client.read_file(sandbox, "none")
    except SojournError as error:
        assert (error.status, error.type) == (404, "not_found")
    else:
        raise AssertionError("a missing file was read")


async def run_together(client: AsyncSojourn) -> None:
    """Two calls of one step run at the same time, each once, whoever of two processes runs them."""
    tools = [custom("weather"), custom("time")]
    session = (await client.create(agent="example", tools=tools, input={"script": CALLS}))["session"]["id"]
    both = asyncio.Barrier(2)
    ran: list[str] = []

    async def answer(arguments: dict[str, str], call_id: str) -> str:
        ran.append(call_id)
        await both.wait()
        return f"answer of {call_id}"

    handlers = {"weather": answer, "time": answer}
    results = await asyncio.gather(*(client.run(session, handlers) for _ in range(2)))
    assert all(result["last_turn"]["yield_reason"] == "completed" for result in results if result["last_turn"])
    assert len(ran) == len(set(ran)) == 2


async def follow_together(session: str) -> None:
    """Follows two sessions and the list at the same time."""
    async with AsyncSojourn(URL, KEY) as client:
        made = [await client.create(agent="example", input={"script": [{"text": "done"}]}) for _ in range(2)]
        wanted = {one["session"]["id"] for one in made}

        async def listed() -> None:
            rest = set(wanted)
            async for frame in client.follow_list():
                if frame["type"] == "session.listed" and frame["session"]["status"] == "idle":
                    rest.discard(frame["session"]["id"])
                if not rest:
                    return

        results = await asyncio.gather(listed(), *(client.settled(one) for one in wanted))
        assert all(one["last_turn"]["yield_reason"] == "completed" for one in results if one)
        assert session in {one["id"] async for one in client.pages("/sessions", limit=2)}
        await run_together(client)
        sandbox = (await client.create())["session"]["id"]
        await client.write_file(sandbox, "data", bytes(range(256)))
        ran, data = await asyncio.gather(client.exec(sandbox, "sleep 1; echo done"), client.read_file(sandbox, "data"))
        assert (ran["stdout"], data) == ("done\n", bytes(range(256)))
        output, end = [frame async for frame in client.follow_exec(sandbox, "echo done")]
        assert output["type"] == "exec.output" and output["text"] == "done\n"
        assert end["type"] == "exec.ended" and end["exit_code"] == 0


def verify(session: str, secret: str) -> None:
    """A delivery verifies; a changed one does not."""
    assert told.wait(20)
    body, headers = deliveries[0]
    delivery = verify_webhook(body, headers, secret)
    assert (delivery["type"], delivery["sessionId"]) == ("turn.completed", session)
    old = {**{name.lower(): value for name, value in headers.items()}, "webhook-timestamp": "1"}
    for changed in [(body + b" ", headers, secret), (body, headers, secret + "x"), (body, old, secret), (body, {}, secret)]:
        try:
            verify_webhook(*changed)
        except WebhookError:
            continue
        raise AssertionError("a changed delivery was accepted")


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    session, secret = ask(f"http://127.0.0.1:{server.server_address[1]}/hook")
    verify(session, secret)
    asyncio.run(asyncio.wait_for(follow_together(session), 60))
    server.shutdown()
    print("the Python client: streams, answers, custom tools, webhooks, files, commands and errors work")


if __name__ == "__main__":
    main()
