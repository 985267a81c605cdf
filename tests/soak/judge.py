"""The verdict on a soak: figures of each simulated day, growth, and what was lost or is stuck.

It reads the tables with statements of its own and the processes from /proc. It changes nothing.
"""

import os
import subprocess
import time

# Kept longer than a week, or by hour and agent: these may grow by the same amount each day, and no faster.
LONGER = {"audit", "delivery", "delivery_attempt", "removal", "schedule_run", "usage_hour"}
# Rows and bytes below which a difference means nothing.
ROWS_MIN, BYTES_MIN = 500, 4 << 20
# Largest growth between the middle and the end of the week.
GROWTH_MAX = 1.25
GAPS = """
    select count(*)
    from (select org_id, session_id, count(*) as events, max(seq) as last from event group by 1, 2) e
    full join session s using (org_id, session_id)
    where s.head is distinct from e.last or e.events is distinct from e.last
"""
UNSETTLED = """
    select count(*)
    from session
    where status in ('queued', 'running', 'failed') or running_turn_id is not null or queued_turn_id is not null
"""
OPEN = {
    "sessions that are not settled": UNSETTLED,
    "jobs of turns": "select count(*) from job where kind = 'turn'",
    "deliveries that wait": "select count(*) from delivery where status = 'pending'",
    "sessions past their retention": """
        select count(*)
        from session s
        join org t using (org_id)
        where s.status = 'archived' and s.stopped_at < now() - make_interval(days => t.retention_days, mins => 5)
    """,
    "tokens past their expiry": "select count(*) from client_token where expires_at < now() - interval '1 hour'",
    "stored answers past 24 hours": """
        select count(*) from idempotency where scope = 'header' and created_at < now() - interval '26 hours'
    """,
    "bodies that wait for the blob store": """
        select count(*) from event_content where created_at < now() - interval '10 minutes'
    """,
    "deleted sessions whose blobs were not removed": """
        select count(*) from purged_session_blobs where removed_at is null and created_at < now() - interval '1 hour'
    """,
    "deleted sessions whose blobs were not removed again after a day": """
        select count(*) from purged_session_blobs where created_at < now() - interval '26 hours'
    """,
    "objects that nothing needs": "select count(*) from object where not used and kept_until < now() - interval '1 hour'",
}
SETTLE_SECONDS = 180


class Judge:
    def __init__(self, postgres, service, scratch):
        self.postgres, self.service, self.scratch = postgres, service, scratch
        self.days, self.unsettled = [], []

    def sample(self, day, sessions):
        """Records the figures at the end of a day."""
        tables = self.postgres.query(
            "select c.relname from pg_class c where c.relnamespace = 'public'::regnamespace"
            " and c.relkind in ('r', 'p') and not c.relispartition order by 1"
        )
        count = " union all ".join(
            f"select '{name}', (select count(*) from {name}),"
            f" coalesce((select sum(pg_total_relation_size(relid)) from pg_partition_tree('{name}')), 0)"
            for (name,) in tables if name != "_sqlx_migrations"
        )
        rows = {name: (int(rows), int(size)) for name, rows, size in self.postgres.query(count)}
        blobs = sum(len(files) for _, _, files in os.walk(self.scratch / "data" / "blobs"))
        used = self.service.resources()
        self.days.append({"day": day, "sessions": sessions, "tables": rows, "blobs": blobs, "processes": used})
        memory = ", ".join(f"{name} {mib:.0f} MiB {files} files" for name, (mib, files) in used.items())
        print(f"soak: day {day}: {sessions} sessions created, {rows['session'][0]} there, "
              f"{rows['event'][0]} events, {blobs} blobs, {memory}", flush=True)

    def settle(self):
        """Waits until nothing is open any more; what still is, is a finding."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            counts = {what: int(self.postgres.query(statement)[0][0]) for what, statement in OPEN.items()}
            self.unsettled = [f"{count} {what}" for what, count in counts.items() if count]
            if not self.unsettled or time.monotonic() > end:
                return
            time.sleep(1)

    def findings(self, arrived):
        found = list(self.unsettled)
        gaps = int(self.postgres.query(GAPS)[0][0])
        if gaps:
            found.append(f"{gaps} sessions whose log has a gap or whose head differs from it")
        delivered = {
            row[0] for row in self.postgres.query("select delivery_id from delivery where status = 'delivered'")
        }
        if not delivered:
            found.append("no delivery is recorded as delivered")
        dead = int(self.postgres.query("select count(*) from delivery where status = 'dead_letter'")[0][0])
        if dead:
            found.append(f"{dead} deliveries were given up")
        orphans = self.blobs_without_a_session()
        if orphans:
            found.append(f"{orphans} blobs of sessions that are gone")
        if len(arrived) < len(delivered):
            found.append(f"{len(delivered)} deliveries are recorded as delivered, {len(arrived)} arrived")
        return found + self.growth()

    def blobs_without_a_session(self):
        """Files below data/blobs/ORGANIZATION/SESSION whose session has no row."""
        there = {row[0] for row in self.postgres.query("select session_id from session")}
        sessions = (self.scratch / "data" / "blobs").glob("*/*")
        gone = [place for place in sessions if place.is_dir() and place.name not in there]
        return sum(len(files) for place in gone for _, _, files in os.walk(place))

    def growth(self):
        """Tables, blobs and processes that still grow at the end of the week."""
        if len(self.days) < 5:
            return []
        middle, before, last = self.days[len(self.days) // 2], self.days[-2], self.days[-1]
        found = []
        for name, (rows, size) in last["tables"].items():
            rows_then, size_then = middle["tables"][name]
            if name in LONGER:
                first = self.days[1]["tables"][name][0] - self.days[0]["tables"][name][0]
                daily = rows - before["tables"][name][0]
                if daily > max(first * GROWTH_MAX, ROWS_MIN):
                    found.append(f"{name} grows faster: {first} rows on day 2, {daily} on the last")
                continue
            if rows > max(rows_then * GROWTH_MAX, ROWS_MIN):
                found.append(f"{name} grows: {rows_then} rows on day {middle['day']}, {rows} on day {last['day']}")
            if size > max(size_then * GROWTH_MAX, BYTES_MIN):
                found.append(f"{name} grows: {size_then} bytes on day {middle['day']}, {size} on day {last['day']}")
        if last["blobs"] > max(middle["blobs"] * GROWTH_MAX, 100):
            found.append(f"blobs grow: {middle['blobs']} on day {middle['day']}, {last['blobs']} on the last")
        for name, (memory, files) in last["processes"].items():
            memory_then, files_then = middle["processes"][name]
            if memory > memory_then * GROWTH_MAX + 16:
                found.append(f"memory of {name} grows: {memory_then:.0f} MiB, {memory:.0f} MiB")
            if files > files_then + 32:
                found.append(f"open files of {name} grow: {files_then}, {files}")
        return found

    def page(self, arguments, counts, findings):
        """A Markdown page with the figures and the findings."""
        root = os.path.dirname(__file__)
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True
        ).stdout.strip()
        lines = [
            "| commit | date | command | machine |", "|---|---|---|---|",
            f"| `{commit}` | {time.strftime('%Y-%m-%d')} | `tests/soak/run --minutes {arguments.minutes:g} "
            f"--days {arguments.days} --seed {arguments.seed}` | {os.cpu_count()} cores |", "",
            "| day | sessions created | sessions | events | turns | stored answers | jobs | deliveries | blobs | "
            "database | memory of api, workers |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for day in self.days:
            of = {name: rows for name, (rows, _) in day["tables"].items()}
            size = sum(size for _, size in day["tables"].values()) / (1 << 20)
            memory = ", ".join(f"{mib:.0f}" for mib, _ in day["processes"].values())
            lines.append(
                f"| {day['day']} | {day['sessions']} | {of['session']} | {of['event']} | {of['turn']} | "
                f"{of['idempotency']} | {of['job']} | {of['delivery']} | {day['blobs']} | {size:.0f} MiB | {memory} MiB |"
            )
        lines += ["", "| measure | value |", "|---|---|"]
        lines += [f"| {what} | {count} |" for what, count in sorted(counts.items())]
        lines += [f"| findings | {len(findings)} |", ""] + [f"- {finding}" for finding in findings]
        return "\n".join(lines) + "\n"
