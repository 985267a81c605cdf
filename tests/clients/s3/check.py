"""A session is hibernated and restored, with its files and large events in a bucket."""

import hashlib
import json
import os
import time
import urllib.request

import boto3

PREFIX = "some/prefix/"
PATIENCE_SECONDS = 120


def call(method, path, body=None):
    request = urllib.request.Request(
        os.environ["SOJOURN_URL"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['SOJOURN_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def objects():
    page = boto3.client("s3").list_objects_v2(Bucket="sojourn")
    return sorted(entry["Key"] for entry in page.get("Contents", []))


def until(what, look):
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        found = look()
        if found:
            print(f"ok - {what}")
            return found
        time.sleep(0.1)
    raise SystemExit(f"not ok - {what}: {objects()}")


def events(kind):
    return call("GET", f"{session}/events?limit=500&type={kind}")["data"]


def script(command):
    tool = {"tool": "bash", "input": {"command": command}}
    return {"script": [{"tools": [tool]}, {"text": "Done."}]}


call("POST", "/agents", {"name": "s3", "prompt": "", "model": "scripted/inline"})
# More than one part of an upload, and incompressible.
first = script("head -c 12000000 /dev/urandom > bulk; sha256sum bulk > sum; yes '\"\"\"\"' | head -c 29000")
session = "/sessions/" + call("POST", "/sessions", {"agent": "s3", "input": first})["session"]["id"]
until("the sandbox is hibernated", lambda: events("sandbox.terminated"))
saved = [key for key in objects() if "/checkpoints/" in key]
assert len(saved) == 1 and saved[0].startswith(PREFIX), saved
content = boto3.client("s3").get_object(Bucket="sojourn", Key=saved[0])["Body"].read()
assert hashlib.sha256(content).hexdigest() == saved[0].rsplit("/", 1)[1]
assert len(content) == events("sandbox.checkpoint_created")[0]["body"]["bytes"] > 12_000_000
print("ok - the checkpoint is in the bucket, named by its digest")

spilled = next(event for event in events("tool.result") if event.get("body_truncated"))
assert any("/events/" in key for key in objects())
whole = call("GET", f"{session}/events/{spilled['id']}/content")
assert len(json.dumps(whole)) >= 29_000
print("ok - a large event is read completely")

call("POST", f"{session}/messages", {"text": json.dumps(script("sha256sum -c sum"))})
results = until("the sandbox is restored", lambda: [one for one in events("tool.result") if "bulk: OK" in one["body"]["output"]])
assert len(results) == 1 and len(events("sandbox.checkpoint_restored")) == 1
call("POST", f"{session}/archive", {})
until("archive removes its checkpoints", lambda: not [key for key in objects() if "/checkpoints/" in key])
