"""A strict server of the protocol's version 2025-06-18 on standard input and output.

It notes in /workspace/seen what it gets, and refuses a second handshake, a request before the first one, and an id that
was used before.
"""

import json
import os
import sys
import threading
import time

ids, count, has_begun = set(), 0, False


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def note(line):
    with open("/workspace/seen", "a") as seen:
        seen.write(line + "\n")


def answer(request, text):
    send({"id": request["id"], "result": {"content": [{"type": "text", "text": text}]}})


def slow(request):
    while not os.path.exists("/workspace/go"):
        time.sleep(0.02)
    answer(request, "slow: done")


def call(request):
    global count
    name = request["params"]["name"]
    note("call " + name)
    if name == "count":
        count += 1
        answer(request, f"count: {count}")
    elif name == "env":
        answer(request, f"{os.environ.get('WORD')} in {os.getcwd()}")
    elif name == "slow":
        threading.Thread(target=slow, args=[request], daemon=True).start()
    elif name == "die":
        print("it fell over", file=sys.stderr)
        os._exit(3)
    elif name == "big":
        answer(request, "x" * 3_000_000)
    elif name == "ask":
        # A request of its own comes first.
        send({"id": "own", "method": "ping"})
        answer(request, "asked")


TOOLS = ["count", "env", "slow", "die", "big", "ask"]
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}}

print("starting up")
note(f"start {os.getpid()}")
for line in sys.stdin:
    request = json.loads(line)
    method, id = request.get("method"), request.get("id")
    note(method or f"answer {id}")
    if id is None or method is None:
        has_begun |= method == "notifications/initialized"
        continue
    if id in ids or (method == "initialize" and has_begun) or (method != "initialize" and not has_begun):
        send({"id": id, "error": {"code": -32600, "message": f"{method} {id} is not allowed now"}})
        continue
    ids.add(id)
    if method == "initialize":
        info = {"name": "strict", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        send({"id": id, "result": {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}})
    elif method == "tools/list":
        send({"id": id, "result": {"tools": [{"name": name, "inputSchema": SCHEMA} for name in TOOLS]}})
    elif method == "tools/call":
        call(request)
    else:
        send({"id": id, "error": {"code": -32601, "message": "unknown method"}})
