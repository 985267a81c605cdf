"""Runs the services of deploy/compose.yaml from built images, with one session on each worker.

One worker uses the node agent, as in the file; another one makes its sandboxes itself, as an ordinary user.

There is no bridge network and no DNS here: all services share this machine's loopback, on free
ports. All other options of a service are read from the file; an unknown key is an error.
"""

import glob
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

import yaml

SCRATCH = pathlib.Path(os.environ["SCRATCH"])
COMPOSE = yaml.safe_load(pathlib.Path("deploy/compose.yaml").read_text())
PATIENCE_SECONDS = 60
# Keys that are not container options here: build, command, order, restarts, network.
ELSEWHERE = {"build", "command", "depends_on", "healthcheck", "networks", "ports", "restart", "stop_grace_period"}
# Output that exceeds an event: it is stored in the blob directory that both services share.
LONG = 29_000
# Privileges without root, as documented in the Dockerfile at the stage `node`.
ORDINARY = {
    "user": "10001:10001",
    "cap_drop": ["ALL"],
    "cap_add": ["SETGID", "SETUID"],
    "security_opt": ["seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"],
}

secret = {
    "POSTGRES_PASSWORD": secrets.token_hex(24),
    "SOJOURN_OWNER_PASSWORD": secrets.token_hex(24),
    "SOJOURN_APP_PASSWORD": secrets.token_hex(24),
    "SOJOURN_SYSTEM_PASSWORD": secrets.token_hex(24),
    "SOJOURN_MASTER_KEY": secrets.token_hex(32),
    "SOJOURN_BOOTSTRAP_API_KEY": secrets.token_hex(24),
}


def ok(what, holds=True, otherwise=""):
    if not holds:
        raise SystemExit(f"not ok - {what}: {otherwise}")
    print(f"ok - {what}", flush=True)


def until(what, look, otherwise=lambda: ""):
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        found = look()
        if found:
            ok(what)
            return found
        time.sleep(0.05)
    raise SystemExit(f"not ok - {what}: {otherwise()}")


def filled(text):
    """A value with its ${NAME}, ${NAME:-default} and ${NAME:?message} replaced."""

    def value(match):
        name, default = match[1], match[2] or ""
        return secret.get(name) or (default[2:] if default.startswith(":-") else "")

    return re.sub(r"\$\{(\w+)(:[-?][^}]*)?\}", value, str(text))


def docker(*arguments, check=True):
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    if check and done.returncode:
        raise SystemExit(f"not ok - docker {' '.join(arguments)}: {done.stderr}")
    return done


def logs(name):
    done = docker("logs", name, check=False)
    return done.stdout + done.stderr


class Postgres:
    """The database of the file, run with this machine's Postgres programs as the user nobody."""

    def __init__(self):
        service = COMPOSE["services"]["postgres"]
        first = shutil.which("postgres")
        newest = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda at: int(at.split("/")[4]))
        self.programs = pathlib.Path(first).resolve().parent if first else pathlib.Path(newest[-1])
        self.home = SCRATCH / "postgres"
        self.home.mkdir()
        shutil.chown(self.home, "nobody", "nogroup")
        password = self.home / "password"
        password.write_text(secret["POSTGRES_PASSWORD"])
        initdb = filled(service["environment"]["POSTGRES_INITDB_ARGS"]).split()
        data = self.home / "data"
        self.run("initdb", "--pgdata", data, "--username=postgres", "--auth=scram-sha-256", "--pwfile", password, *initdb)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        program, *options = service["command"]
        self.log = (self.home / "log").open("w+")
        self.process = subprocess.Popen(
            [self.programs / program, "-D", data, "-h", "127.0.0.1", "-p", str(self.port), "-k", self.home, *options],
            stdout=self.log, stderr=self.log, **self.user(),
        )

    def prepare(self):
        asked = [self.programs / "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={self.port}"]
        until("Postgres answers", lambda: subprocess.run(asked).returncode == 0, (self.home / "log").read_text)
        env = {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGPASSWORD": secret["POSTGRES_PASSWORD"]}
        env |= {name: filled(text) for name, text in COMPOSE["services"]["postgres"]["environment"].items()} | {"POSTGRES_USER": "postgres"}
        for script in sorted(glob.glob("deploy/postgres/*")):
            subprocess.run(["bash", script], check=True, env={**os.environ, **env})
        ok("the roles and the database are created")

    def user(self):
        return {"user": "nobody", "group": "nogroup", "extra_groups": [], "cwd": self.home}

    def run(self, program, *arguments):
        done = subprocess.run([self.programs / program, *arguments], capture_output=True, text=True, **self.user())
        ok(program, done.returncode == 0, done.stderr)

    def stop(self):
        # Fast shutdown: clients are disconnected.
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def options(service):
    """Options of `docker run` that correspond to the service of the Compose file."""
    unknown = set(service) - ELSEWHERE
    said = []
    for key, option in [("cap_drop", "cap-drop"), ("cap_add", "cap-add"), ("security_opt", "security-opt"),
                        ("tmpfs", "tmpfs"), ("volumes", "volume")]:
        unknown.discard(key)
        said += [f"--{option}={value}" for value in service.get(key, [])]
    for key, option in [("cgroup", "cgroupns"), ("user", "user")]:
        unknown.discard(key)
        said += [f"--{option}={service[key]}"] if key in service else []
    unknown -= {"read_only", "network_mode"}
    said += ["--read-only"] if service.get("read_only") else []
    unknown.discard("environment")
    ok("each key of the service is known", not unknown, unknown)
    return said


def environment_of(service):
    """Its variables; one without a value is passed on if it is set."""
    given = service["environment"].items()
    return {key: secret[key] if value is None else filled(value) for key, value in given if value is not None or key in secret}


def start(name, image, service, postgres, wait=False, **more):
    environment = environment_of(service)
    ok(f"{name} has no secret" if name == "node" else f"{name} has its secrets",
       any(value in str(environment) for value in secret.values()) == (name != "node"))
    for key, value in environment.items():
        environment[key] = value.replace("@postgres:5432/", f"@127.0.0.1:{postgres.port}/")
    environment = [f"--env={key}={value}" for key, value in (environment | more).items()]
    mode = [] if wait else ["--detach"]
    command = service.get("command", [])
    network = service.get("network_mode", "host")
    docker("run", *mode, f"--network={network}", f"--name={name}", *options(service), *environment, image, *command)


def stop(name, service):
    grace = service["stop_grace_period"].removesuffix("s")
    began = time.monotonic()
    docker("stop", "-t", grace, name)
    took = time.monotonic() - began
    code = docker("inspect", "--format={{.State.ExitCode}}", name).stdout.strip()
    ok(f"{name} stops cleanly within its grace period, in {took:.1f} s", code == "0" and took < int(grace), f"{code}: {logs(name)}")


def check_unprivileged(name):
    status = docker("exec", name, "cat", "/proc/1/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    ok(f"{name} runs as user 10001 without capabilities", fields["Uid"].split()[0] == "10001" and fields["NoNewPrivs"] == "1"
       and all(int(fields[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapBnd")), status)


class Api:
    def __init__(self, postgres):
        service = self.service = COMPOSE["services"]["api"]
        # Port 0 selects a free port; the service prints it.
        start("api", "sojourn-service", service, postgres, SOJOURN_LISTEN="127.0.0.1:0")
        said = until("api serves", lambda: re.search(r"sojourn serves (http://\S+:(\d+))", logs("api")), lambda: logs("api"))
        self.url = said[1] + "/v3"
        kind, *health = service["healthcheck"]["test"]
        health = [part.replace("/8080", f"/{said[2]}") for part in health]
        ok("its health check is a command", kind == "CMD")
        until("it is healthy", lambda: docker("exec", "api", *health, check=False).returncode == 0, lambda: logs("api"))
        check_unprivileged("api")
        written = docker("exec", "api", "touch", "/usr/local/touched", check=False)
        ok("its root file system is read-only", "Read-only file system" in written.stderr, written)

    def call(self, method, path, body=None):
        key = secret["SOJOURN_BOOTSTRAP_API_KEY"]
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def work(api, name, is_root, doctor_in, role):
    """Runs one session whose input and output exceed an event, with a command in a sandbox."""
    command = f"id -u; git --version; python3 -c 'print(6 * 7)'; yes '\"\"\"\"' | head -c {LONG}"
    steps = [{"text": "I look.", "tools": [{"tool": "bash", "input": {"command": command}}]}, {"text": f"Seen by {name}."}]
    made = api.call("POST", "/sessions", {"agent": "image", "input": {"script": steps, "long": "\"" * LONG}})
    session = f"/sessions/{made['session']['id']}"

    def ended():
        turns = api.call("GET", f"{session}/turns")["data"]
        return turns and turns[0].get("completed_at") and turns[0]

    turn = until(f"{name} ends a turn", ended, lambda: logs(name))
    result = api.call("GET", f"{session}/result")
    ok("its result is available", f"Seen by {name}." in json.dumps(result), (turn, result, logs(name)))
    event = api.call("GET", f"{session}/events?type=tool.result")["data"][0]
    ok("a long output is stored as a blob", event.get("body_truncated"), event)
    body = api.call("GET", f"{session}/events/{event['id']}/content")
    ok("api reads the blob", body["outcome"] == "ran" and body["output"].startswith("1000\ngit version ")
       and "\n42\n\"\"\"\"\n" in body["output"] and len(body["output"]) >= LONG, body)
    sandbox = api.call("GET", session)["sandbox"]["id"]
    groups = glob.glob(f"/sys/fs/cgroup/**/*{sandbox}*", recursive=True)
    ok("the sandbox has a cgroup with its limits" if is_root else "the sandbox has no cgroup", bool(groups) == is_root, groups)
    doctor = json.loads(docker("exec", doctor_in, "sojourn", "doctor", "--role", role, "--json", check=False).stdout)
    ok(f"doctor reports no problem in {doctor_in}", doctor["ok"], doctor)
    api.call("POST", f"{session}/archive", {})
    until("the sandbox is removed completely", lambda: not glob.glob(f"/sys/fs/cgroup/**/*{sandbox}*", recursive=True))


def check_rights():
    """Compares the agent's capabilities in the Dockerfile with those of the deployment."""
    stage = pathlib.Path("Dockerfile").read_text().split("# ---- sandboxes ----")[1]
    lists = re.findall(r"capabilities +((?:[A-Z_]+[ \n#]+)+[A-Z_]+),", stage)
    said = [sorted(re.findall("[A-Z_]+", one)) for one in lists]
    wanted = [sorted(one["cap_add"]) for one in (COMPOSE["services"]["node"], ORDINARY)]
    ok("the Dockerfile documents the granted capabilities", said == wanted, said)


def main():
    check_rights()
    postgres = Postgres()
    try:
        postgres.prepare()
        start("migrate", "sojourn-service", COMPOSE["services"]["migrate"], postgres, wait=True)
        ok("migrate prepares the schema")
        api = Api(postgres)
        api.call("POST", "/agents", {"name": "image", "prompt": "", "model": "scripted/inline"})
        service, node = COMPOSE["services"]["worker"], COMPOSE["services"]["node"]
        start("node", "sojourn-node", node, postgres)
        start("worker", "sojourn-service", service, postgres)
        work(api, "worker", is_root=True, doctor_in="node", role="node")
        check_unprivileged("worker")
        work(api, "worker", is_root=True, doctor_in="worker", role="worker")
        stop("worker", service)
        stop("node", node)
        blobs = [volume for volume in service["volumes"] if volume.endswith(":/data/blobs")]
        environment = {key: value for key, value in service["environment"].items() if key != "SOJOURN_NODE"}
        ordinary = ORDINARY | {"environment": environment, "volumes": blobs, "stop_grace_period": service["stop_grace_period"]}
        start("ordinary", "sojourn-node", ordinary | {"command": ["serve", "--role", "worker"]}, postgres)
        work(api, "ordinary", is_root=False, doctor_in="ordinary", role="worker")
        stop("ordinary", ordinary)
        stop("api", api.service)
    finally:
        postgres.stop()


main()
