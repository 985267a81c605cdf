"""Creates resources of every kind in a service, then has schemathesis call every operation.

Run by `run`, inside `scripts/with-service`. Ids are passed to schemathesis as dictionaries: each
operation mostly gets existing ids, and operations that remove resources get separate ids.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

URL = os.environ["SOJOURN_URL"]
KEY = os.environ["SOJOURN_API_KEY"]
EXAMPLES = int(os.environ["EXAMPLES"])
CASES = int(os.environ["CASES"])
SCRATCH = Path(os.environ["SCRATCH"])
HERE = Path(__file__).parent
# Number of resources that operations may remove.
SPARE = 60

# A valid request may still be rejected by rules outside the schema: names in use,
# addresses that are not public, unknown models.
UNCHECKED = "positive_data_acceptance"
# Streams do not end; their frames are tested elsewhere.
STREAMS = ["streamEvents", "connectEvents"]


def call(method, path, body=None):
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{URL}/v3{path}", data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def settled(session):
    for _ in range(300):
        if call("GET", f"/sessions/{session}")["status"] in ("idle", "failed", "awaiting_input"):
            return
        time.sleep(0.1)
    raise SystemExit(f"{session} does not become idle")


def fill():
    """Creates one resource of each kind, and spare ones; returns ids by dictionary name."""
    hook = {"url": "http://127.0.0.1:9/hook"}
    script = [{"text": "I look.", "tools": [{"tool": "glob", "input": {"pattern": "*"}}]}, {"text": "Done."}]
    agent = call("POST", "/agents", {"name": "main", "prompt": "", "model": "scripted/inline"})
    started = {"agent": "main", "input": {"script": script}, "destinations": [hook], "metadata": {"team": "blue"}}
    session = call("POST", "/sessions", started)
    main = session["session"]["id"]
    settled(main)
    rows = lambda path: [row["id"] for row in call("GET", path)["data"]]
    webhook = call("POST", "/webhooks", hook)["id"]
    call("POST", f"/webhooks/{webhook}/test", {})
    environment = {"name": "main", "config": {"network": {"allow": [{"host": "api.example.com"}]}}}
    many = lambda make: [make(number)["id"] for number in range(SPARE)]
    agents = f"/agents/{agent['id']}"
    never = {"cron": "0 0 1 1 *", "input": "Look.", "enabled": False}
    schedule = lambda number: call("POST", f"{agents}/schedules", never)
    inbound = lambda number: call("POST", f"{agents}/hooks", {"kind": "generic", "title": f"spare {number}"})
    token = lambda number: call("POST", f"{agents}/invoke-tokens", {"name": f"spare {number}"})
    key = lambda number: call("POST", "/keys", {"name": f"spare {number}", "scopes": ["sessions:read"]})
    return {
        "session": [main],
        "agent": [agent["id"]],
        "turn": rows(f"/sessions/{main}/turns"),
        "event": rows(f"/sessions/{main}/events"),
        "destination": rows(f"/sessions/{main}/destinations"),
        "delivery": rows(f"/sessions/{main}/deliveries"),
        "webhook": [webhook],
        "delivery": rows(f"/webhooks/{webhook}/deliveries"),
        "environment": [call("POST", "/environments", environment)["id"]],
        "credential": [call("POST", "/credentials", {"provider": "openai", "key": "sk-contract"})["id"]],
        "key": [key(-1)["id"]],
        "exec": [call("POST", f"/sessions/{main}/exec", {"command": "echo hello"})["id"]],
        "schedule": [schedule(-1)["id"]],
        "inbound": [inbound(-1)["id"]],
        "invoke_token": [token(-1)["id"]],
        # The operator key is not used here: these requests are answered 401.
        "organization": [call("GET", "/organization")["id"]],
        "revision": ["1", agent["active_revision"]["id"]],
        # The maximum number.
        "spare_webhook": [call("POST", "/webhooks", hook)["id"] for _ in range(12)],
        "spare_destination": [call("POST", f"/sessions/{main}/destinations", hook)["id"] for _ in range(12)],
        "spare_session": many(lambda number: call("POST", "/sessions", {})["session"]),
        "spare_agent": many(lambda number: call(
            "POST", "/agents", {"name": f"spare {number}", "prompt": "", "model": "scripted/noop"})),
        "spare_environment": many(lambda number: call(
            "POST", "/environments", {"name": f"spare {number}", "config": {}})),
        "spare_credential": many(lambda number: call(
            "POST", "/credentials", {"provider": "openai", "key": f"sk-spare-{number}"})),
        "spare_key": many(key),
        "spare_schedule": many(schedule),
        "spare_inbound": [inbound(number)["id"] for number in range(12)],
        "spare_invoke_token": [token(number)["id"] for number in range(12)],
    }


# Dictionary of each path parameter; a missing one is an error.
PARAMETERS = {
    "session_id": "session", "agent_id": "agent", "turn_id": "turn", "event_id": "event",
    "destination_id": "destination", "delivery_id": "delivery", "webhook_id": "webhook",
    "environment_id": "environment", "credential_id": "credential", "key_id": "key", "revision": "revision",
    "webhook_delivery_id": "delivery", "exec_id": "exec", "schedule_id": "schedule", "trigger_id": "inbound",
    "invoke_token_id": "invoke_token", "organization_id": "organization",
}
# Operations that remove the resource or make it unusable.
REMOVES = {
    "deleteSession": ("session_id", "spare_session"), "archiveSession": ("session_id", "spare_session"),
    "stopSession": ("session_id", "spare_session"), "pauseSession": ("session_id", "spare_session"),
    "deleteAgent": ("agent_id", "spare_agent"), "deleteEnvironment": ("environment_id", "spare_environment"),
    "deleteCredential": ("credential_id", "spare_credential"), "revokeKey": ("key_id", "spare_key"),
    "rotateKey": ("key_id", "spare_key"), "deleteSchedule": ("schedule_id", "spare_schedule"),
    "deleteTrigger": ("trigger_id", "spare_inbound"),
    "revokeInvokeToken": ("invoke_token_id", "spare_invoke_token"),
    "deleteWebhook": ("webhook_id", "spare_webhook"), "deleteDestination": ("destination_id", "spare_destination"),
}


def configuration(ids, named):
    unknown = named - PARAMETERS.keys()
    if unknown:
        sys.exit(f"tests/contract/call.py has no ids for {sorted(unknown)}")
    bind = lambda dictionary: f'{{ dictionary = "{dictionary}", probability = 0.9 }}'
    lines = [f'hooks = "{HERE / "hooks.py"}"', "[parameters]"]
    lines += [f'"path.{name}" = {bind(PARAMETERS[name])}' for name in sorted(named)]
    for name, values in ids.items():
        lines += [f"[dictionaries.{name}]", f"values = {json.dumps(values)}"]
    for operation, (name, dictionary) in REMOVES.items():
        lines += ["[[operations]]", f'include-operation-id = "{operation}"',
                  f'parameters = {{ "path.{name}" = {bind(dictionary)} }}']
    return "\n".join(lines) + "\n"


def main():
    ids = fill()
    document = HERE / "../../openapi.yaml"
    named = set()
    for line in document.read_text().splitlines():
        if line.startswith("  /"):
            named |= {part[1:-1] for part in line.strip().rstrip(":").split("/") if part.startswith("{")}
    settings = SCRATCH / "schemathesis.toml"
    settings.write_text(configuration(ids, named))
    report = SCRATCH / "report.ndjson"
    command = [
        HERE / "venv/bin/schemathesis", "--config-file", settings, "run", document, "--url", URL,
        "-H", f"Authorization: Bearer {KEY}", "--checks", "all", "--exclude-checks", UNCHECKED,
        "--max-examples", str(EXAMPLES), "--request-timeout", "35", "--continue-on-failure",
        "--generation-database", "none", "--suppress-health-check", "all", "--no-color",
    ]
    command += [word for stream in STREAMS for word in ("--exclude-operation-id", stream)]
    began = time.monotonic()
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=SCRATCH)
    print(ran.stdout)
    took = time.monotonic() - began
    count = int((SCRATCH / "calls").read_text())
    print(f"{count} calls in {took:.0f} s")
    if count < CASES:
        sys.exit(f"only {count} calls: at least {CASES} are promised")
    sys.exit(ran.returncode)


main()
