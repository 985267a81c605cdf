//! Blocks a service at one step, without its knowledge.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, PgConnection};

use super::wait_until;
use crate::support::{program::Program, service::Ground};

/// Step at which a service is blocked.
#[derive(Clone, Copy, Debug)]
pub enum Point {
    /// Before it writes a row: the change and table, and a condition on the row.
    Write(&'static str, &'static str),
    /// Before it writes an event of this type.
    Event(&'static str),
    /// Before a program does its work: `mount`, `mkfs.ext4`, or `run` and `delete` of the runtime.
    Before(&'static str),
    /// After the program's work, and before the service gets its result.
    After(&'static str),
}

/// Fate of the blocked work after the service was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The statement is not executed; the program is killed, too.
    IsLost,
    /// They finish before the service is restarted.
    GoesOn,
    /// The program finishes when it is released later.
    GoesOnLate,
}

/// Wrapper of the machine's programs, under their names. A waiting one has its pid in the file `held`.
const PROGRAM: &str = r#"#!/bin/sh
here=${0%/*} name=${0##*/}
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
case " $* " in
*" run "*) step=run ;;
*" delete "*) step=delete ;;
*) step=$name ;;
esac
hold() {
    rm "$here/$1-$step" 2>/dev/null || return 0
    echo $$ > "$here/held.new" && mv "$here/held.new" "$here/held"
    until [ -e "$here/go" ]; do sleep 0.02; done
    goes_on=yes
}
hold before
"$name" "$@"
code=$?
hold after
[ -z "$goes_on" ] || rm "$here/held"
exit $code
"#;
const PROGRAMS: [&str; 3] = ["runc", "mount", "mkfs.ext4"];

/// The holder of this lock blocks all writes.
const LOCK: &str = "create schema hold;
    create function hold.here() returns trigger language plpgsql security definer as $$
    begin
        perform pg_advisory_xact_lock_shared(1);
        return coalesce(new, old);
    end
    $$;";
const OF_THE_LOCK: &str =
    "from pg_locks where locktype = 'advisory' and classid = 0 and objid = 1 and database = (
    select oid from pg_database where datname = current_database()
)";

/// One step at which a service is blocked after [`Hold::arm`].
pub struct Hold {
    at: Point,
    programs: tempfile::TempDir,
    database: PgConnection,
}

impl Hold {
    pub async fn at(ground: &Ground, at: Point) -> Self {
        let programs = tempfile::tempdir().expect("a directory");
        let program = programs.path().join("program");
        fs::write(&program, PROGRAM).expect("a script");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
        for name in PROGRAMS {
            symlink(&program, programs.path().join(name)).expect("a link");
        }
        ground.sql(LOCK).await;
        let trigger = match at {
            Point::Write(on, when) => Some((on, when.to_owned())),
            Point::Event(kind) => Some(("insert on event", format!("new.type = '{kind}'"))),
            Point::Before(_) | Point::After(_) => None,
        };
        if let Some((on, when)) = trigger {
            let each = format!("for each row when ({when}) execute function hold.here()");
            ground.sql(&format!("create trigger held before {on} {each}")).await;
        }
        Self { at, programs, database: ground.database.superuser().await }
    }

    /// Starts a service that can be blocked.
    pub fn program(&self, ground: &Ground, settings: &[&str]) -> Program {
        Program::with_programs(ground, settings, self.programs.path())
    }

    /// Blocks the service at its next arrival.
    pub async fn arm(&mut self) {
        let file = match self.at {
            Point::Before(step) => format!("before-{step}"),
            Point::After(step) => format!("after-{step}"),
            Point::Write(..) | Point::Event(_) => return self.sql("select pg_advisory_lock(1)").await,
        };
        fs::write(self.file(&file), "").expect("a file");
    }

    /// Waits until it is blocked.
    pub async fn is_reached(&mut self) {
        if self.is_program() {
            return wait_until("a program is held", || self.file("held").exists()).await;
        }
        for _ in 0..2_000 {
            if self.locks("not granted").await > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no process wrote it: {:?}", self.at);
    }

    /// Ends the block, after the service was killed.
    pub async fn let_go(&mut self, then: Then) {
        match (self.is_program(), then) {
            (_, Then::GoesOnLate) => {}
            (true, Then::IsLost) => {
                let pid = fs::read_to_string(self.file("held")).expect("a pid");
                let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a pid");
                kill_process(pid, Signal::KILL).expect("it waits");
            }
            (true, Then::GoesOn) => {
                fs::write(self.file("go"), "").expect("a file");
                wait_until("the program is done", || !self.file("held").exists()).await;
            }
            (false, Then::IsLost) => {
                self.sql(&format!("select pg_terminate_backend(pid) {OF_THE_LOCK} and not granted")).await;
                self.end_lock().await;
            }
            (false, Then::GoesOn) => self.end_lock().await,
        }
    }

    /// Waits until the lock has no holder and no waiter.
    async fn end_lock(&mut self) {
        self.sql("select pg_advisory_unlock(1)").await;
        while self.locks("true").await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn is_program(&self) -> bool {
        matches!(self.at, Point::Before(_) | Point::After(_))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.programs.path().join(name)
    }

    async fn locks(&mut self, which: &str) -> i64 {
        let query = format!("select count(*) {OF_THE_LOCK} and {which}");
        sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut self.database).await.expect("a count")
    }

    async fn sql(&mut self, statement: &str) {
        let statement = AssertSqlSafe(statement.to_owned());
        sqlx::raw_sql(statement).execute(&mut self.database).await.expect("it is executed");
    }
}
