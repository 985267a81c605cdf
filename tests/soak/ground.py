"""The deployment of a soak: Postgres, processes of the service, a receiver, and the clock that all of them read."""

import glob
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

KEY = "sjk_test_the_first_organization_of_the_soak"
OPERATOR_KEY = "the operator of a simulated week of production"
MASTER_KEY = "a passphrase that is long enough for a soak"
BIN = os.environ["SOJOURN_BIN"]
FAKETIME = os.environ.get("LIBFAKETIME") or "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
ROLES = ("owner", "app", "system")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Clock:
    """The wall clock of every process of the deployment, ahead of the machine's. Timers are not moved."""

    def __init__(self, scratch):
        self.file = scratch / "clock"
        self.ahead = 0.0
        self.advance(0)

    def advance(self, seconds):
        """Moves the clock forward; every process sees it within a second."""
        self.ahead += seconds
        beside = self.file.with_suffix(".new")
        beside.write_text(f"+{self.ahead:.0f}")
        beside.chmod(0o644)
        beside.rename(self.file)

    def environment(self):
        return {
            "LD_PRELOAD": FAKETIME,
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


class Postgres:
    def __init__(self, scratch, clock):
        first = shutil.which("postgres")
        newest = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda at: int(at.split("/")[4]))
        self.programs = pathlib.Path(first).resolve().parent if first else pathlib.Path(newest[-1])
        self.home = scratch / "postgres"
        self.home.mkdir()
        shutil.chown(self.home, "nobody", "nogroup")
        data = self.home / "data"
        self.user = {"user": "nobody", "group": "nogroup", "extra_groups": [], "cwd": self.home}
        subprocess.run(
            [self.programs / "initdb", "-D", data, "--username=postgres", "--auth=trust"],
            check=True, stdout=subprocess.DEVNULL, **self.user,
        )
        self.port = free_port()
        self.log = (self.home / "log").open("w")
        options = ["listen_addresses=127.0.0.1", f"port={self.port}", f"unix_socket_directories={self.home}",
                   "max_connections=200", "autovacuum_naptime=5s"]
        self.process = subprocess.Popen(
            [self.programs / "postgres", "-D", data, *(word for option in options for word in ("-c", option))],
            stdout=self.log, stderr=self.log, env={**os.environ, **clock.environment()}, **self.user,
        )
        self.until_ready()
        for role in ROLES:
            self.sql(f"create role sojourn_{role} login nosuperuser nobypassrls", "postgres")
        self.sql("create database sojourn owner sojourn_owner", "postgres")
        self.sql("grant connect on database sojourn to sojourn_app, sojourn_system", "postgres")

    def until_ready(self):
        for _ in range(300):
            if self.query("select 1", "postgres", check=False):
                return
            time.sleep(0.1)
        raise SystemExit("soak: Postgres does not start: " + (self.home / "log").read_text()[-2000:])

    def query(self, statement, database="sojourn", check=True):
        """Rows of a statement as lists of strings, as a superuser."""
        done = subprocess.run(
            [self.programs / "psql", "-h", self.home, "-p", str(self.port), "-U", "postgres", "-d", database,
             "-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-c", statement],
            capture_output=True, text=True,
        )
        if done.returncode and check:
            raise SystemExit(f"soak: {statement}: {done.stderr}")
        return [line.split("\t") for line in done.stdout.splitlines()] if not done.returncode else []

    def sql(self, statement, database="sojourn"):
        self.query(statement, database)

    def url(self, role):
        return f"postgres://sojourn_{role}@127.0.0.1:{self.port}/sojourn"

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


class Service:
    """Processes of the service on one data directory, all below the clock."""

    def __init__(self, scratch, postgres, clock):
        self.scratch, self.environment = scratch, {**os.environ, **clock.environment()}
        self.common = [
            f"--data-dir={scratch / 'data'}", f"--database-url={postgres.url('app')}",
            f"--system-database-url={postgres.url('system')}", f"--master-key={MASTER_KEY}",
            "--first-session=off", "--log=warn", "--allow-private-webhooks=on", "--allow-shared-host=on",
            f"--operator-key={OPERATOR_KEY}",
            f"--bootstrap-api-key={KEY}", "--requests-per-second=100000",
        ]
        subprocess.run(
            [BIN, "migrate", *self.common[:4], f"--owner-database-url={postgres.url('owner')}"],
            check=True, env=self.environment,
        )
        self.port = free_port()
        self.processes = {
            "api": self.start("api", "--role=api", f"--listen=127.0.0.1:{self.port}"),
            "worker-1": self.start("worker-1", "--role=worker"),
            "worker-2": self.start("worker-2", "--role=worker"),
        }
        for _ in range(600):
            if self.call("GET", "/healthz", None, prefix="", check=False)[0] == 200:
                return
            time.sleep(0.1)
        raise SystemExit("soak: the API does not start: " + (scratch / "api.log").read_text()[-2000:])

    def start(self, name, *more):
        log = (self.scratch / f"{name}.log").open("a")
        return subprocess.Popen([BIN, "serve", *self.common, *more], stderr=log, stdout=log, env=self.environment)

    def call(self, method, path, body=None, key=KEY, prefix="/v3", check=True, headers=None):
        """Status and decoded body of a request."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json", **(headers or {})}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{prefix}{path}", data=data, method=method, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text, status = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            text, status = error.read(), error.code
        except (urllib.error.URLError, OSError) as error:
            text, status = str(error).encode(), 0
        if check and not 200 <= status < 300:
            raise RuntimeError(f"{method} {path}: {status} {text[:300]!r}")
        try:
            return status, json.loads(text)
        except ValueError:
            return status, None

    def resources(self):
        """Memory in MiB and open files of each process; fails when one has ended."""
        used = {}
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise SystemExit(f"soak: {name} ended with {process.returncode}")
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            used[name] = (kilobytes / 1024, len(os.listdir(f"/proc/{process.pid}/fd")))
        return used

    def stop(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(60)


class Receiver:
    """A receiver of webhooks that fails every tenth attempt, and every one while it is down."""

    def __init__(self):
        self.arrived, self.attempts, self.is_down = set(), 0, False
        self.lock = threading.Lock()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers.get("content-length", 0)))
                with receiver.lock:
                    receiver.attempts += 1
                    fails = receiver.is_down or receiver.attempts % 10 == 0
                    if not fails:
                        receiver.arrived.add(self.headers["webhook-id"])
                self.send_response(500 if fails else 204)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
