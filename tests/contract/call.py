"""Creates resources of every kind in a service, then has schemathesis call every operation.

Run by `run`, inside `scripts/with-service`. Ids are passed to schemathesis as dictionaries: each
operation mostly gets existing ids, and operations that remove resources get separate ids.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import refusals
import streams
from skill import skill

URL = os.environ["SOJOURN_URL"]
KEY = os.environ["SOJOURN_API_KEY"]
OPERATOR = os.environ["SOJOURN_OPERATOR_KEY"]
EXAMPLES = int(os.environ["EXAMPLES"])
CASES = int(os.environ["CASES"])
SEED = int(os.environ["SOJOURN_CONTRACT_SEED"])
# Whether the requests are those that `Rule.always` is about.
IS_DEFAULT = os.environ["IS_DEFAULT"] == "true"
SCRATCH = Path(os.environ["SCRATCH"])
HERE = Path(__file__).parent
# Number of resources that operations may remove.
SPARE = 60

# `valid_request_is_accepted` of `hooks.py` replaces it: it compares the error, not only the status.
REPLACED = "positive_data_acceptance"
# Streams do not end; `streams.py` reads them for a limited time.
STREAMS = ["streamEvents", "connectEvents"]


def call(method, path, body=None, key=KEY):
    kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
    headers = {"Authorization": f"Bearer {key}", "Content-Type": kind}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
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


def waiting(agent):
    """Creates a session whose turn waits for results; returns its id and those of its actions."""
    tool = {"type": "custom", "name": "ask_weather", "description": "The weather.", "input_schema": {"type": "object"}}
    calls = [{"tool": "ask_weather", "input": {"number": number}} for number in range(SPARE)]
    script = [{"tools": calls}, {"text": "Done."}]
    made = call("POST", "/sessions", {"agent": agent, "tools": [tool], "input": {"script": script}})
    session = made["session"]["id"]
    settled(session)
    return session, [row["id"] for row in call("GET", f"/sessions/{session}/pending?limit={SPARE}")["data"]]


def granted():
    """Creates a session in which rules were granted; returns its id and those of their events."""
    call("POST", "/agents", {
        "name": "asking", "prompt": "", "model": "scripted/inline", "permissions": [{"tool": "read", "policy": "ask"}]})
    calls = [{"tool": "read", "input": {"path": f"{number}/x"}} for number in range(12)]
    script = [{"tools": calls}, {"text": "Done."}]
    session = call("POST", "/sessions", {"agent": "asking", "input": {"script": script}})["session"]["id"]
    settled(session)
    for action in call("GET", f"/sessions/{session}/pending?limit=500")["data"]:
        event = {"type": "user.tool_confirmation", "action_id": action["id"], "decision": "always",
                 "rule": action["always"][0]}
        call("POST", f"/sessions/{session}/events", {"events": [event]})
    settled(session)
    rules = call("GET", f"/sessions/{session}/permissions")["granted"]
    return session, [rule["event_id"] for rule in rules]


def failed():
    """Creates a session whose turn failed and fails again; returns its id and that of the turn."""
    script = [{"text": "Never.", "fault": {"kind": "refused", "times": 1000}}]
    session = call("POST", "/sessions", {"agent": "main", "input": {"script": script}})["session"]["id"]
    settled(session)
    return session, call("GET", f"/sessions/{session}/turns")["data"][0]["id"]


def saved():
    """Creates a session with a checkpoint; returns the ids of both."""
    session = call("POST", "/sessions", {})["session"]["id"]
    call("PUT", f"/sessions/{session}/files?path=saved", "A file.")
    return session, call("POST", f"/sessions/{session}/checkpoints", {})["id"]


def fill():
    """Creates one resource of each kind, and spare ones; returns the main ones, and ids by dictionary name."""
    hook = {"url": "http://127.0.0.1:9/hook"}
    script = [{"text": "I look.", "tools": [{"tool": "glob", "input": {"pattern": "*"}}]}, {"text": "Done."}]
    agent = call("POST", "/agents", {"name": "main", "prompt": "", "model": "scripted/inline"})
    started = {"agent": "main", "input": {"script": script}, "destinations": [hook], "metadata": {"team": "blue"}}
    session = call("POST", "/sessions", started)
    main = session["session"]["id"]
    settled(main)
    call("PUT", f"/sessions/{main}/files?path=contract", "A file.")
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
    organization = lambda number: call("POST", "/admin/organizations", {"name": f"spare {number}"}, OPERATOR)
    main_inbound = inbound(-1)
    credential = call("POST", "/credentials", {"provider": "openai", "key": "sk-contract", "name": "contract"})["id"]
    to_claim, to_answer = waiting("main"), waiting("main")
    existing = {
        "agent": agent["id"], "credential": credential, "trigger": main_inbound["id"],
        "trigger_secret": main_inbound["secret"], "file": "contract", "to_claim": to_claim, "to_answer": to_answer,
        "granted": granted(), "saved": [saved() for _ in range(6)],
        "failed": [failed() for _ in range(6)],
    }
    return existing, {
        "session": [main],
        "agent": [agent["id"]],
        "action": to_claim[1],
        "turn": rows(f"/sessions/{main}/turns"),
        "event": rows(f"/sessions/{main}/events"),
        "destination": rows(f"/sessions/{main}/destinations"),
        "delivery": rows(f"/sessions/{main}/deliveries"),
        "webhook": [webhook],
        "webhook_delivery": rows(f"/webhooks/{webhook}/deliveries"),
        "environment": [call("POST", "/environments", environment)["id"]],
        "credential": [credential],
        "key": [key(-1)["id"]],
        "exec": [call("POST", f"/sessions/{main}/exec", {"command": "echo hello"})["id"]],
        "schedule": [schedule(-1)["id"]],
        "inbound": [main_inbound["id"]],
        "invoke_token": [token(-1)["id"]],
        # Organizations that the operator changes are not the one that is called with.
        "organization": [organization(-1)["id"]],
        "file": [call("POST", "/files?name=a.json", {"a": 1})["id"]],
        "skill": [call("POST", "/skills", skill("contract"))["id"]],
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
        "spare_file": many(lambda number: call("POST", f"/files?name={number}.json", {"number": number})),
        "spare_skill": many(lambda number: call("POST", "/skills", skill(f"spare-{number}"))),
        "spare_organization": [organization(number)["id"] for number in range(12)],
        "spare_schedule": many(schedule),
        "spare_inbound": [inbound(number)["id"] for number in range(12)],
        "spare_invoke_token": [token(number)["id"] for number in range(12)],
    }


# Dictionary of each path parameter; a missing one is an error.
PARAMETERS = {
    "session_id": "session", "action_id": "action", "agent_id": "agent", "turn_id": "turn", "event_id": "event",
    "destination_id": "destination", "delivery_id": "delivery", "webhook_id": "webhook",
    "environment_id": "environment", "credential_id": "credential", "key_id": "key", "revision": "revision",
    "webhook_delivery_id": "webhook_delivery", "exec_id": "exec", "schedule_id": "schedule", "trigger_id": "inbound",
    "invoke_token_id": "invoke_token", "organization_id": "organization", "file_id": "file", "skill_id": "skill",
}
# Operations that remove the resource or make it unusable.
REMOVES = {
    "deleteOrganization": ("organization_id", "spare_organization"),
    "suspendOrganization": ("organization_id", "spare_organization"),
    "deleteSession": ("session_id", "spare_session"), "archiveSession": ("session_id", "spare_session"),
    "stopSession": ("session_id", "spare_session"), "pauseSession": ("session_id", "spare_session"),
    "deleteAgent": ("agent_id", "spare_agent"), "deleteEnvironment": ("environment_id", "spare_environment"),
    "deleteCredential": ("credential_id", "spare_credential"), "revokeKey": ("key_id", "spare_key"),
    "rotateKey": ("key_id", "spare_key"), "deleteSchedule": ("schedule_id", "spare_schedule"),
    "deleteTrigger": ("trigger_id", "spare_inbound"),
    "revokeInvokeToken": ("invoke_token_id", "spare_invoke_token"),
    "deleteFile": ("file_id", "spare_file"), "deleteSkill": ("skill_id", "spare_skill"), "deleteWebhook": ("webhook_id", "spare_webhook"),
    "deleteDestination": ("destination_id", "spare_destination"),
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
    existing, ids = fill()
    document = HERE / "../../openapi.yaml"
    text = document.read_text()
    named = set(re.findall(r"[{](\w+)[}]", " ".join(re.findall(r"^  (/.*):$", text, re.MULTILINE))))
    operations = set(re.findall(r"^      operationId: (\w+)$", text, re.MULTILINE))
    settings = SCRATCH / "schemathesis.toml"
    settings.write_text(configuration(ids, named))
    print(f"SOJOURN_CONTRACT_SEED={SEED}")
    # First, because the calls below delete the session in the end.
    problems = streams.read(document, ids, URL, KEY)
    met, unmet = examples(existing)
    problems += unmet
    os.environ["EXISTING"] = json.dumps(existing)
    runs = [
        run("organization", settings, document, KEY, ["--exclude-tag", "admin", *EXCLUDE_STREAMS]),
        # Last, because it suspends and deletes organizations, that of the first run too.
        # The operator can still read and change a deleted organization.
        run("operator", settings, document, OPERATOR, ["--include-tag", "admin"], ["use_after_free"]),
    ]
    problems += [f"schemathesis of the {name} failed" for name, code, _ in runs if code]
    results = [result for *_, result in runs]
    for result in results:
        problems += [f"{said}\n    {request}" for said, request in result["unlisted"].items()]
    problems += unused(results, met) + never_accepted(operations, results)
    calls = sum(result["calls"] for result in results)
    print(f"{calls} calls")
    if calls < CASES:
        problems.append(f"only {calls} calls: at least {CASES} are promised")
    for problem in problems:
        print(f"FAILED: {problem}")
    sys.exit(1 if problems else 0)


EXCLUDE_STREAMS = [word for stream in STREAMS for word in ("--exclude-operation-id", stream)]


def run(name, settings, document, key, selection, unchecked=()):
    """Has schemathesis call the selected operations; returns the name, its exit code and its result."""
    command = [
        HERE / "venv/bin/schemathesis", "--config-file", settings, "run", document, "--url", URL,
        "-H", f"Authorization: Bearer {key}", "--checks", "all", "--exclude-checks", ",".join([REPLACED, *unchecked]),
        "--max-examples", str(EXAMPLES), "--seed", str(SEED), "--request-timeout", "35",
        "--continue-on-failure", "--generation-database", "none", "--suppress-health-check", "all",
        "--no-color", *selection,
    ]
    began = time.monotonic()
    result = SCRATCH / f"{name}.json"
    environment = os.environ | {"RESULT": str(result), "PYTHONPATH": str(HERE), "PYTHONHASHSEED": "0"}
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=SCRATCH, env=environment)
    print(ran.stdout)
    print(f"{name}: {time.monotonic() - began:.0f} s")
    return name, ran.returncode, json.loads(result.read_text())


def examples(existing):
    """Sends the examples of `refusals.py`; returns the indices of the rules met, and problems."""
    met, problems = set(), []
    for index, rule in enumerate(refusals.REFUSES):
        if rule.example is None:
            continue
        method, path, body = rule.example
        try:
            call(method, path.format(**existing), body)
            problems.append(f"accepted: {method} {path}: {rule.why}")
        except urllib.error.HTTPError as refused:
            error = json.load(refused)["error"]
            if refusals.rule_of(rule.operations.split()[0], error) == index:
                met.add(index)
            else:
                problems.append(f"refused by another rule: {method} {path}: {error}")
    return met, problems


def unused(results, met):
    """Entries of `refusals.py` that explained nothing; `met` are those that an example met."""
    used = met | {int(index) for result in results for index in result["used"]}
    rules = [rule for index, rule in enumerate(refusals.REFUSES) if index not in used]
    for rule in rules:
        print(f"not met: {rule.operations} {rule.code} {rule.param} {rule.message}")
    return [f"unused: {rule.message}: {rule.why}" for rule in rules if rule.always and IS_DEFAULT]


def never_accepted(operations, results):
    """Operations that refused every valid request, so that nothing else of them was tested."""
    accepted = {operation for result in results for operation in result["accepted"]}
    never = operations - accepted - set(STREAMS) - refusals.NEVER_ACCEPTED.keys()
    again = accepted & refusals.NEVER_ACCEPTED.keys()
    said = lambda operation: [result["refused"].get(operation, {}) for result in results]
    return [f"{operation} accepted no valid request: {said(operation)}" for operation in sorted(never)] + [
        f"{operation} accepted a valid request, so its entry in NEVER_ACCEPTED is unused"
        for operation in sorted(again)
    ]


main()
