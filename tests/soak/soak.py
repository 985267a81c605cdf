"""A simulated week of production, compressed into an hour.

A real deployment (one API, two workers, Postgres) serves several organizations. Every few seconds the wall clock of
all its processes jumps ahead, so that schedules, retries, tokens, idle sandboxes and retention see a week pass, while
leases and timeouts see ordinary seconds. Each jump expires every lease at once. At the end of each simulated day the
program counts all tables, their sizes, the blobs, the backlogs and the resources of the processes. It fails if one of
them still grows at the end of the week, other than the tables that are kept longer than a week, and if a session, an
event or a delivery is lost or stuck.
"""

import argparse
import collections
import os
import pathlib
import random
import subprocess
import tempfile
import threading
import time

from ground import KEY, OPERATOR_KEY, Clock, Postgres, Receiver, Service
from judge import Judge

DAY = 86_400
# Jumps of the clock in a day: a lease, a retry and an idle time pass between two of them.
JUMPS = 24
ORGANIZATIONS = 6
# Sessions per real second of all organizations.
RATE = 6.0
SHELL = [{"text": "I look.", "tools": [{"tool": "bash", "input": {"command": "echo $RANDOM >> log; wc -l < log"}}]}]


class Organization:
    """Producer of one organization: sessions with turns, archived or left alone after their work."""

    def __init__(self, service, receiver, number, key):
        self.service, self.number, self.key = service, number, key
        self.open = collections.deque()
        self.counts = collections.Counter()
        self.call("PATCH", "/organization", {"retention_days": 1})
        self.call("POST", "/webhooks", {"url": receiver.url, "types": ["turn.completed"]})
        agent = {"name": "soak", "prompt": "Play the script.", "model": "scripted/inline"}
        self.agent = self.call("POST", "/agents", agent)["id"]
        self.call("POST", f"/agents/{self.agent}/schedules", {"cron": "30 * * * *", "input": "An hour has passed."})

    def call(self, method, path, body=None):
        """A request that is repeated until the service answers it; the key makes that safe."""
        headers = {"idempotency-key": f"{self.number}-{random.getrandbits(64)}"} if method == "POST" else None
        for _ in range(60):
            status, answer = self.service.call(method, path, body, self.key, check=False, headers=headers)
            if 200 <= status < 300:
                return answer
            if status not in (0, 429, 503):
                raise RuntimeError(f"{method} {path}: {status} {answer}")
            self.counts["repeated requests"] += 1
            time.sleep(0.5)
        raise RuntimeError(f"{method} {path}: no answer in 30 s")

    def step(self):
        """Creates a session, sends a message to an older one, and archives the oldest."""
        uses_sandbox = random.random() < 0.03
        script = SHELL if uses_sandbox else [{"text": "Done.", "delay_ms": random.choice([0, 50, 500])}]
        made = self.call("POST", "/sessions", {
            "agent": self.agent, "key": f"{self.number}-{self.counts['sessions']}", "input": {"script": script},
            "metadata": {"text": "x" * random.choice([0, 100, 2000])},
        })
        self.counts["sessions"] += 1
        self.open.append(made["session"]["id"])
        if random.random() < 0.5:
            session = random.choice(self.open)
            text = "y" * (40_000 if random.random() < 0.02 else 200)
            self.call("POST", f"/sessions/{session}/messages", {"text": text})
            self.counts["messages"] += 1
        while len(self.open) > 40:
            session = self.open.popleft()
            if random.random() < 0.1:
                self.call("DELETE", f"/sessions/{session}")
                self.counts["deleted"] += 1
            else:
                self.call("POST", f"/sessions/{session}/archive")
                self.counts["archived"] += 1

    def archive_scheduled(self):
        """Archives idle sessions that the schedule started."""
        for session in self.call("GET", "/sessions?status=idle&limit=100")["data"]:
            if session["id"] not in self.open and session["source"] != "api":
                self.call("POST", f"/sessions/{session['id']}/archive")
                self.counts["scheduled"] += 1

    def finish(self):
        while self.open:
            self.call("POST", f"/sessions/{self.open.popleft()}/archive")


def produce(organization, stop, failures):
    """Runs one producer at its rate until `stop`."""
    due = time.monotonic()
    rounds = 0
    try:
        while not stop.is_set():
            organization.step()
            rounds += 1
            if rounds % 20 == 0:
                organization.archive_scheduled()
            due += ORGANIZATIONS / RATE
            stop.wait(max(0.0, due - time.monotonic()))
            # What could not be produced in time is left out.
            due = max(due, time.monotonic() - 5)
    except Exception as error:  # noqa: BLE001 - reported by the main thread
        failures.append(f"organization {organization.number}: {error}")
        stop.set()


def organizations(service, receiver):
    yield Organization(service, receiver, 0, KEY)
    for number in range(1, ORGANIZATIONS):
        made = service.call("POST", "/admin/organizations", {"name": f"soak-{number}"}, OPERATOR_KEY)[1]
        yield Organization(service, receiver, number, made["key"])


def week(arguments, scratch):
    clock = Clock(scratch)
    postgres = Postgres(scratch, clock)
    service = Service(scratch, postgres, clock)
    receiver, judge = Receiver(), Judge(postgres, service, scratch)
    producers = list(organizations(service, receiver))
    stop, failures = threading.Event(), []
    threads = [threading.Thread(target=produce, args=(one, stop, failures)) for one in producers]
    for thread in threads:
        thread.start()
    pause = arguments.minutes * 60 / (arguments.days * JUMPS)
    for day in range(1, arguments.days + 1):
        # The receiver is down for one day; its deliveries arrive the day after.
        receiver.is_down = day == arguments.days // 2
        for _ in range(JUMPS):
            if stop.wait(pause):
                break
            clock.advance(DAY / JUMPS - pause)
        if stop.is_set():
            break
        sessions = sum(one.counts["sessions"] for one in producers)
        judge.sample(day, sessions)
    stop.set()
    for thread in threads:
        thread.join()
    if not failures:
        for one in producers:
            one.finish()
        judge.settle()
    counts = sum((one.counts for one in producers), collections.Counter())
    counts["webhook attempts"], counts["webhooks that arrived"] = receiver.attempts, len(receiver.arrived)
    findings = failures + judge.findings(receiver.arrived)
    service.stop()
    postgres.stop()
    return judge, counts, findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="real time of the whole week")
    parser.add_argument("--days", type=int, default=7, help="simulated days, at least 5 for a verdict on growth")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--write", type=pathlib.Path, help="also write the page to this file")
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="sojourn-soak-"))
    scratch.chmod(0o755)
    (scratch / "data").mkdir()
    print(f"soak: {arguments.days} days in {arguments.minutes:g} minutes, seed {arguments.seed}, files in {scratch}")
    judge, counts, findings = week(arguments, scratch)
    page = judge.page(arguments, counts, findings)
    print(page)
    if arguments.write:
        arguments.write.write_text(page)
    if not findings:
        subprocess.run([os.path.join(os.path.dirname(__file__), "../../scripts/remove-data"), scratch], check=True)
    raise SystemExit(1 if findings else 0)


if __name__ == "__main__":
    main()
