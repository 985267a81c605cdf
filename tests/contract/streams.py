"""Reads every stream of openapi.yaml for a limited time, with valid and invalid parameters.

A stream is found by its `x-item-schema`, and the WebSocket by its 101. A valid request must be answered with
frames of that schema, an invalid one with the error `invalid`.
"""

import base64
import itertools
import json
import os
import socket
import struct
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import yaml
from jsonschema_rs import Draft202012Validator

# Time for which one stream is read.
SECONDS = 0.5
# Streams that are read at once.
AT_ONCE = 8
# Frames of at least this many streams have to arrive.
FRAMES_MIN = 50
STREAMS_MIN = 5
METHODS = ("get", "post", "put", "patch", "delete")
# Refused queries of the streams of a log: the log must have the event, and a turn of the id must exist.
OF_LOG = [
    ("after", "1000000", "events_lost"),
    ("turn_id", "x", "not_found"),
    ("turn_id", "ses_01jd0000000000000000000000", "not_found"),
]
# Queries that a stream refuses although they conform to the schema, by operation: parameter, value, code of the
# error, and the rule that a schema cannot express.
REFUSES = {
    # The list of overdue sessions changes with the time, so frames would be due without any change of a session.
    "listSessions": [("overdue", "true", "invalid"), ("overdue", "false", "invalid")],
    "listEvents": OF_LOG,
    "streamEvents": OF_LOG,
    "connectEvents": OF_LOG,
}
# Values that no schema here accepts, by the type of the parameter. Texts accept everything.
WRONG = {"integer": ["x", "-1", "1.5", "99999999999999999999"], "boolean": ["x", "2"], "enum": ["x", ""]}


class WithoutTimes(yaml.SafeLoader):
    """Reads times as texts, as JSON has them."""

    yaml_implicit_resolvers = {
        first: [one for one in resolvers if one[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def found(document):
    """Streams: operation id, path, parameters, documented statuses, schema of a frame, is a WebSocket."""
    for path, item in document["paths"].items():
        for method in METHODS:
            operation = item.get(method)
            if not operation:
                continue
            responses = operation["responses"]
            content = responses.get("200", {}).get("content", {}).get("text/event-stream")
            if content or "101" in responses:
                schema = content["x-item-schema"] if content else {"$ref": "#/components/schemas/EventFrame"}
                names = operation.get("parameters", [])
                yield operation["operationId"], path, names, set(responses), schema, not content


def resolved(document, schema):
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def kind_of(schema):
    if "enum" in schema:
        return "enum"
    kind = schema.get("type")
    return next((one for one in kind if one != "null"), None) if isinstance(kind, list) else kind


def values(document, parameter, ids):
    """Valid and invalid values of one parameter."""
    schema = resolved(document, parameter["schema"])
    kind = kind_of(schema)
    if kind == "enum":
        return [str(value) for value in schema["enum"] if value is not None], WRONG["enum"]
    if parameter["name"] == "after" and kind == "integer":
        return ["0", "1", "7"], WRONG["integer"]
    if kind == "integer":
        low, high = schema.get("minimum", 0), min(schema.get("maximum", 1_000), 1_000)
        wrong = WRONG["integer"] + ([str(schema["maximum"] + 1)] if "maximum" in schema else [])
        # A negative number is wrong only where the schema says so.
        return [str(low), str(high), str((low + high) // 2)], [one for one in wrong if one != "-1" or "minimum" in schema]
    if kind == "boolean":
        return ["true", "false"], WRONG["boolean"]
    if schema.get("format") == "date-time":
        return ["2026-01-31T12:00:00Z"], ["2026-01-31", "x", ""]
    if parameter["name"] == "turn_id":
        return ids["turn"], []
    if parameter["name"] == "type":
        return ["turn.completed", "turn.*", "agent.message"], []
    return [], []


def queries(document, name, names, ids, is_socket):
    """Queries with the error that is expected, or None: each value alone, and every valid pair."""
    usable = [one for one in names if one["in"] == "query" and one["name"] not in ("token", "cursor", "stream", "limit")]
    mode = {} if is_socket or not any(one["name"] == "stream" for one in names) else {"stream": "sse"}
    yield mode, None
    refused = {(parameter, value): code for parameter, value, code in REFUSES.get(name, [])}
    yield from ((mode | dict([one]), code) for one, code in refused.items())
    valid = []
    for parameter in usable:
        good, bad = values(document, parameter, ids)
        valid += [(parameter["name"], value) for value in good if (parameter["name"], value) not in refused]
        yield from ((mode | {parameter["name"]: value}, "invalid") for value in bad)
    yield from ((mode | dict([one]), None) for one in valid)
    yield from ((mode | dict(pair), None) for pair in itertools.combinations(valid, 2) if pair[0][0] != pair[1][0])


def request(url, target, key, more):
    """One request on a connection of its own: status, headers, and what arrives within the time."""
    host = urllib.parse.urlsplit(url)
    with socket.create_connection((host.hostname, host.port), timeout=10) as connection:
        head = [f"GET {target} HTTP/1.1", f"Host: {host.netloc}", f"Authorization: Bearer {key}", *more]
        connection.sendall("\r\n".join(head + ["", ""]).encode())
        received, until = b"", time.monotonic() + 10
        while time.monotonic() < until:
            connection.settimeout(max(0.01, until - time.monotonic()))
            try:
                part = connection.recv(65536)
            except TimeoutError:
                break
            if not part:
                break
            if b"\r\n\r\n" not in received and b"\r\n\r\n" in received + part:
                until = time.monotonic() + SECONDS
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return int(lines[0].split(" ")[1]), headers, body


def dechunked(body):
    whole = b""
    while b"\r\n" in body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        whole, body = whole + body[:length], body[length + 2:]
    return whole


def events(body):
    """Whole frames of server-sent events."""
    for frame in body.split(b"\n\n")[:-1]:
        data = [line[6:] for line in frame.decode().split("\n") if line.startswith("data: ")]
        if data:
            yield json.loads("\n".join(data))


def messages(body):
    """Whole text messages of a WebSocket."""
    while len(body) >= 2:
        code, length, at = body[0] & 15, body[1] & 127, 2
        if length >= 126:
            form, at = ("!H", 4) if length == 126 else ("!Q", 10)
            if len(body) < at:
                return
            length = struct.unpack(form, body[2:at])[0]
        if len(body) < at + length:
            return
        if code == 1:
            yield json.loads(body[at:at + length])
        body = body[at + length:]


def read(path, ids, url, key):
    """Reads all streams; returns what is not as documented."""
    document = yaml.load(path.read_text(), Loader=WithoutTimes)
    streams = list(found(document))
    problems = [] if len(streams) >= STREAMS_MIN else [f"only {len(streams)} streams found"]
    frames = calls = 0
    for name, template, names, documented, schema, is_socket in streams:
        target = template.replace("{session_id}", ids["session"][0]).replace("{exec_id}", ids["exec"][0])
        asked = list(queries(document, name, names, ids, is_socket))
        more = []
        if is_socket:
            nonce = base64.b64encode(os.urandom(16)).decode()
            more = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {nonce}"]
        ask = lambda query: request(url, f"{target}?{urllib.parse.urlencode(query[0])}", key, more)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(ask, asked))
        validator = Draft202012Validator(schema | {"components": document["components"]})
        of_stream = 0
        for (query, wanted), answer in zip(asked, answers):
            found_frames, problem = judge(wanted, answer, documented, is_socket, validator)
            of_stream += found_frames
            if problem:
                problems.append(f"{name} {query}: {problem}")
        print(f"{name}: {len(asked)} streams, {of_stream} frames")
        if of_stream == 0:
            problems.append(f"{name} sent no frame at all")
        frames, calls = frames + of_stream, calls + len(asked)
    print(f"{calls} streams, {frames} frames")
    if frames < FRAMES_MIN:
        problems.append(f"only {frames} frames: at least {FRAMES_MIN} are expected")
    return problems


def judge(wanted, answer, documented, is_socket, validator):
    """The number of frames of an answer, and what is wrong with it or None."""
    status, headers, body = answer
    said = f"{status} {body[:300]!r}"
    if str(status) not in documented:
        return 0, f"undocumented status: {said}"
    if wanted is not None:
        code = error_of(body) if status >= 400 else None
        return 0, None if code == wanted else f"expected the error {wanted}: {said}"
    if status != (101 if is_socket else 200):
        return 0, f"refused: {said}"
    if not is_socket and not headers.get("content-type", "").startswith("text/event-stream"):
        return 0, f"no stream: {said}"
    body = dechunked(body) if headers.get("transfer-encoding") == "chunked" else body
    count = 0
    for frame in messages(body) if is_socket else events(body):
        count += 1
        error = next(iter(validator.iter_errors(frame)), None)
        if error:
            return count, f"a frame is not of its schema: {error}\n{frame}"
    return count, None


def error_of(body):
    """The code of a refusal, else its type."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return error.get("code") or error["type"]
