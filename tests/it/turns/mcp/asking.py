"""A server of the protocol's version 2026-07-28 on standard input and output, which asks a person before it answers.

It notes in /workspace/seen the calls that it gets, and answers the one with the response once /workspace/go exists.
"""

import json
import os
import sys
import threading
import time

VERSION = "2026-07-28"
FORM = {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]}
QUESTION = {"method": "elicitation/create", "params": {"mode": "form", "message": "Where to?", "requestedSchema": FORM}}


def send(id, result):
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", **result}}), flush=True)


def finish(id, responses):
    while not os.path.exists("/workspace/go"):
        time.sleep(0.02)
    send(id, {"content": [{"type": "text", "text": json.dumps(responses)}]})


def call(id, params):
    state = params.get("requestState")
    with open("/workspace/seen", "a") as seen:
        seen.write(f"call {state}\n")
    if state is None:
        asked = {"inputRequests": {"where": QUESTION}, "requestState": "first"}
        send(id, {**asked, "resultType": "input_required"})
    else:
        threading.Thread(target=finish, args=[id, params["inputResponses"]], daemon=True).start()


for line in sys.stdin:
    request = json.loads(line)
    method, id = request.get("method"), request.get("id")
    if id is None:
        continue
    if method == "server/discover":
        info = {"name": "asking", "version": "1"}
        cached = {"ttlMs": 60_000, "cacheScope": "private"}
        send(id, {"supportedVersions": [VERSION], "capabilities": {"tools": {}}, "serverInfo": info, **cached})
    elif method == "tools/list":
        tool = {"name": "deploy", "inputSchema": {"type": "object"}}
        send(id, {"tools": [tool], "ttlMs": 60_000, "cacheScope": "private"})
    elif method == "tools/call":
        call(id, request["params"])
    else:
        error = {"code": -32601, "message": "unknown method"}
        print(json.dumps({"jsonrpc": "2.0", "id": id, "error": error}), flush=True)
