//! Startup errors for the operator: invalid settings end in one clear line.

use std::{
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use sojourn::store::{Urls, migrate};
use sqlx::AssertSqlSafe;
use tokio::time::sleep;

use crate::support::{
    database::Database,
    gate::Gate,
    program::freeze,
    relay::{Mode, Relay, through},
    service::{Ground, Service},
    wait::wait_for,
};

/// Runs the binary with only these variables of ours.
fn sojourn(words: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("SOJOURN_") || name == "DATABASE_URL")
    {
        command.env_remove(name);
    }
    command
        .args(words)
        // Several of them run at once.
        .env("SOJOURN_LISTEN", "127.0.0.1:0")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

/// The only line that a failed start prints, besides progress.
#[track_caller]
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    lines[0].to_owned()
}

fn data_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("sojourn-it-").tempdir().expect("a directory")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[tokio::test]
async fn a_superuser_is_refused() {
    let (database, data) = (Database::create().await, data_dir());
    let url = database.superuser_url();
    let output = sojourn(&["serve"], &[("DATABASE_URL", &url), ("SOJOURN_DATA_DIR", path(data.path()))]);
    assert!(refusal(&output).contains("is a superuser or bypasses row level security"));
}

#[tokio::test]
async fn an_unreachable_database_is_reported() {
    let data = data_dir();
    // A port that was free a moment ago and has no listener.
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    let url = format!("postgres://nobody@127.0.0.1:{port}/nothing");
    let output = sojourn(
        &["serve"],
        &[
            ("DATABASE_URL", &url),
            ("SOJOURN_DATA_DIR", path(data.path())),
            ("SOJOURN_DATABASE_WAIT_SECONDS", "0.3"),
        ],
    );
    assert!(refusal(&output).contains("the database cannot be reached"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.matches("waiting for the database").count(), 1, "{text}");
    let output =
        sojourn(&["serve"], &[("DATABASE_URL", "mysql://x/y"), ("SOJOURN_MAX_CONCURRENT_TURNS", "0")]);
    assert!(refusal(&output).contains("DATABASE_URL must look like postgres://"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("SOJOURN_MAX_CONCURRENT_TURNS must be 1 to 1024"), "all problems at once: {text}");
}

#[tokio::test]
async fn processes_that_start_together_all_serve() {
    for ground in [Ground::empty().await, Ground::new().await] {
        let roles = ["all", "api", "worker"].map(|role| format!("--role={role}"));
        let starts = (0..10).map(|at| {
            let (ground, role) = (&ground, &roles[at % roles.len()]);
            async move { ground.serve(&[role]).await }
        });
        let mut services = join_all(starts).await;
        let owner = services[0].owner();
        let session = owner.play(serde_json::json!([{ "text": "All of them." }])).await;
        owner.settled(&session, 1).await;
        assert_eq!(ground.count("select count(*) from org").await, 1, "the first organization");
        let files = std::fs::read_dir(ground.data_dir.path()).expect("the directory");
        let names: Vec<_> = files.map(|file| file.expect("a file").file_name()).collect();
        let is_left = |name: &std::ffi::OsString| {
            let name = name.to_string_lossy();
            name.contains("draft") || name.contains("writable")
        };
        assert!(!names.iter().any(is_left), "{names:?}");
        join_all(services.drain(..).map(Service::stop)).await;
    }
}

#[tokio::test]
async fn a_process_that_starts_before_its_database_waits_for_it() {
    let ground = Ground::new().await;
    // A port that was free a moment ago and has no listener.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let urls = through(&ground.urls(), free);
    let start = Service::on(&urls, ground.data_dir.path(), &[]);
    let open = async {
        sleep(Duration::from_millis(600)).await;
        let relay = Relay::start(&ground.urls(), Some(free), Mode::Reset).await;
        sleep(Duration::from_millis(600)).await;
        relay.set(Mode::Forward);
        relay
    };
    let (service, relay) = tokio::join!(start, open);
    let owner = service.owner();
    let session = owner.play(serde_json::json!([{ "text": "In time." }])).await;
    owner.settled(&session, 1).await;
    service.stop().await;
    drop(relay);
}

#[tokio::test]
async fn an_index_of_a_partitioned_table_is_created_on_the_months_that_exist() {
    let ground = Ground::new().await;
    let lacking = "select count(*)
                   from pg_inherits i
                   left join pg_index x on x.indrelid = i.inhrelid and x.indisvalid
                       and pg_get_indexdef(x.indexrelid) like '%(destination_id, ready_at)%'
                   where i.inhparent = 'delivery'::regclass and x.indexrelid is null";
    let is_valid = "select count(*) from pg_index where indexrelid = 'delivery_due'::regclass and indisvalid";
    // As the migration leaves it on a deployment with months, and with a part that an earlier try has left.
    ground
        .sql(
            "drop index delivery_due;
             create index delivery_due on only delivery (destination_id, ready_at) where ready_at is not null;
             create index delivery_default_delivery_due on delivery_default (destination_id, ready_at)
                 where ready_at is not null;
             update pg_index set indisvalid = false where indexrelid = 'delivery_default_delivery_due'::regclass",
        )
        .await;
    assert!(ground.count(lacking).await > 2, "the default partition and the months");
    assert_eq!(ground.count(is_valid).await, 0);
    migrate::schema(&ground.urls().owner).await.expect("the index is completed");
    assert_eq!((ground.count(lacking).await, ground.count(is_valid).await), (0, 1));
}

#[tokio::test]
async fn an_index_whose_creation_was_interrupted_is_created_again() {
    let ground = Ground::new().await;
    let owner = ground.urls().owner;
    for statement in ["drop index job_maintenance", "delete from _sqlx_migrations where version = 36"] {
        ground.sql(statement).await;
    }
    let is_valid =
        "select count(*) from pg_index where indexrelid = 'job_maintenance'::regclass and indisvalid";
    let read = async || {
        let mut reader = ground.database.superuser().await;
        let snapshot = "begin isolation level repeatable read; select count(*) from job";
        sqlx::raw_sql(snapshot).execute(&mut reader).await.expect("a snapshot");
        reader
    };
    // It waits for the snapshot, and its connection is ended.
    let mut reader = read().await;
    let end = async {
        let waiting = "from pg_stat_activity
                       where datname = current_database() and query like '%create index concurrently job_maint%'
                         and wait_event_type = 'Lock'";
        let count = format!("select count(*) {waiting}");
        wait_for("it waits", async || (ground.count(&count).await > 0).then_some(())).await;
        ground.sql(&format!("select pg_terminate_backend(pid) {waiting}")).await;
    };
    let (interrupted, ()) = tokio::join!(migrate::schema(&owner), end);
    interrupted.expect_err("the connection is gone");
    assert_eq!(ground.count(is_valid).await, 0);
    // The next one takes longer than the statements of a role that serves.
    let role = "do $$ begin
                    execute format(
                        'alter role %I in database %I set statement_timeout = ''500ms''',
                        (select tableowner from pg_tables where tablename = 'job'), current_database()
                    );
                end $$";
    ground.sql(role).await;
    let release = async {
        sleep(Duration::from_millis(1_500)).await;
        sqlx::raw_sql("rollback").execute(&mut reader).await.expect("the end");
    };
    let (migrated, ()) = tokio::join!(migrate::schema(&owner), release);
    migrated.expect("it is repeated");
    assert_eq!(ground.count(is_valid).await, 1);
    // The server went on alone, and nobody recorded it.
    ground.sql("delete from _sqlx_migrations where version = 36").await;
    migrate::schema(&owner).await.expect("it is repeated");
    assert_eq!(ground.count(is_valid).await, 1);
}

/// It holds the lock under which processes prepare the database.
#[tokio::test]
async fn a_process_that_is_frozen_at_its_start_delays_others_by_seconds() {
    let ground = Ground::new().await;
    ground.serve(&[]).await.stop().await;
    let Urls { owner, app, system } = ground.urls();
    let trigger = "create trigger block before update on deployment for each row execute function block();";
    let gate = Gate::close(&ground, trigger).await;
    let mut frozen = tokio::process::Command::new(env!("CARGO_BIN_EXE_sojourn"))
        .arg("migrate")
        .kill_on_drop(true)
        .env("DATABASE_URL", app)
        .env("SOJOURN_SYSTEM_DATABASE_URL", system)
        .env("SOJOURN_OWNER_DATABASE_URL", owner)
        .env("SOJOURN_DATA_DIR", ground.data_dir.path())
        .env("SOJOURN_MASTER_KEY", "a passphrase that is long enough for tests")
        .stdin(Stdio::null())
        .spawn()
        .expect("the binary runs");
    gate.is_reached().await;
    let id = frozen.id().expect("it runs");
    freeze(id);
    gate.open().await;
    let began = Instant::now();
    let service = ground.serve(&[]).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
    service.stop().await;
    let id = Pid::from_raw(i32::try_from(id).expect("a process id")).expect("a process id");
    kill_process(id, Signal::CONT).expect("it runs");
    // Whatever it had done already, it says that it lost the lock.
    assert!(!frozen.wait().await.expect("it ends").success());
}

#[tokio::test]
async fn a_process_without_the_owner_waits_for_the_schema() {
    let ground = Ground::empty().await;
    let Urls { owner, app, system } = ground.urls();
    let common = [
        ("DATABASE_URL", app.as_str()),
        ("SOJOURN_SYSTEM_DATABASE_URL", &system),
        ("SOJOURN_DATA_DIR", path(ground.data_dir.path())),
        ("SOJOURN_MASTER_KEY", "a passphrase that is long enough for tests"),
    ];
    let with = |more: &[(&'static str, &str)]| {
        let all = common.iter().chain(more);
        all.map(|(name, value)| (name.to_string(), value.to_string())).collect::<Vec<_>>()
    };
    let run = |words: &[&str], variables: &[(String, String)]| {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        sojourn(words, &variables)
    };
    let output = run(&["serve", "--role=worker"], &with(&[("SOJOURN_DATABASE_WAIT_SECONDS", "0.3")]));
    assert!(refusal(&output).contains("run `sojourn migrate`"), "{output:?}");

    let worker = ground.serve_without_owner(&["--role=worker"]);
    let migrated = async {
        sleep(Duration::from_millis(500)).await;
        let output = run(&["migrate"], &with(&[("SOJOURN_OWNER_DATABASE_URL", &owner)]));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let (worker, ()) = tokio::join!(worker, migrated);
    worker.stop().await;

    // The previous binary on a database that a later one migrated.
    ground
        .sql(
            "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
             values (9999, 'later', true, '', 0)",
        )
        .await;
    ground.serve(&[]).await.stop().await;
    ground.serve_without_owner(&["--role=worker"]).await.stop().await;

    // Roles that nobody granted anything.
    let output = run(
        &["serve", "--role=worker"],
        &[with(&[]), vec![("DATABASE_URL".to_owned(), system.clone())]].concat(),
    );
    assert!(refusal(&output).contains("was not migrated for the roles"), "{output:?}");
}

#[tokio::test]
async fn a_busy_port_is_reported() {
    let (database, data) = (Database::create().await, data_dir());
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let output = sojourn(
        &["serve"],
        &[
            ("DATABASE_URL", &database.owner_url),
            ("SOJOURN_DATA_DIR", path(data.path())),
            ("SOJOURN_LISTEN", &address),
        ],
    );
    let line = refusal(&output);
    assert!(line.contains(&address) && line.contains("cannot listen on"), "{line}");
}

#[tokio::test]
async fn an_unusable_data_directory_is_reported() {
    let data = data_dir();
    let file = data.path().join("file");
    std::fs::write(&file, "not a directory").expect("a file");
    let output = sojourn(&["serve"], &[("SOJOURN_DATA_DIR", path(&file.join("data")))]);
    assert!(refusal(&output).contains("SOJOURN_DATA_DIR"));
}

#[tokio::test]
async fn another_master_key_than_the_databases_is_refused() {
    let ground = Ground::new().await;
    ground.serve(&[]).await.stop().await;
    let output = sojourn(
        &["serve"],
        &[
            ("DATABASE_URL", &ground.database.app_url),
            ("SOJOURN_OWNER_DATABASE_URL", &ground.database.owner_url),
            ("SOJOURN_SYSTEM_DATABASE_URL", &ground.database.system_url),
            ("SOJOURN_DATA_DIR", path(ground.data_dir.path())),
            ("SOJOURN_MASTER_KEY", "another passphrase that is long enough"),
        ],
    );
    assert!(refusal(&output).contains("another SOJOURN_MASTER_KEY"));
    let output = sojourn(
        &["serve"],
        &[("SOJOURN_MASTER_KEY", "short"), ("SOJOURN_DATA_DIR", path(data_dir().path()))],
    );
    assert!(refusal(&output).contains("SOJOURN_MASTER_KEY must be"));
}

#[tokio::test]
async fn a_missing_sandbox_runtime_is_reported_by_the_turn() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--sandbox-runtime=no-such-runtime"]).await;
    let owner = service.owner();
    let script = serde_json::json!([{ "tools": [{ "tool": "bash", "input": { "command": "true" } }] }]);
    let session = owner.play(script).await;
    let log = owner.settled(&session, 1).await;
    let end = &log.last().expect("an end")["body"];
    assert_eq!(end["yield_reason"], "error");
    assert_eq!(end["error"]["code"], "sandbox_unavailable");
    assert!(end["error"]["message"].as_str().expect("words").contains("run scripts/setup"), "{end}");
    service.stop().await;
}

#[tokio::test]
async fn one_role_for_everything_keeps_orgs_apart_too() {
    let ground = Ground::new().await;
    let service = ground.serve_as_one_role().await;
    let owner = service.owner();
    let session = owner.play(serde_json::json!([{ "text": "Alone." }])).await;
    owner.settled(&session, 1).await;
    // The same role without an organization in its settings sees no row of any organization.
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&ground.database.owner_url)
        .await
        .expect("a connection");
    let (seen,): (i64,) =
        sqlx::query_as("select count(*) from session").fetch_one(&mut connection).await.expect("a count");
    assert_eq!(seen, 0);
    let refused = async |connection: &mut sqlx::PgConnection| {
        for change in ["update event set type = 'x'", "delete from event", "delete from audit"] {
            let changed = sqlx::raw_sql(AssertSqlSafe(change)).execute(&mut *connection).await;
            let error = changed.expect_err("history cannot be changed").to_string();
            assert!(error.contains("permission denied"), "{change}: {error}");
        }
    };
    refused(&mut connection).await;
    // Deleting a whole session works, too, and the privilege for it does not remain.
    assert_eq!(owner.delete(&format!("/sessions/{session}")).await.status, 204);
    owner.get(&format!("/sessions/{session}")).await.error(404);
    refused(&mut connection).await;
    service.stop().await;
}

#[tokio::test]
async fn a_second_organization_gets_a_key_of_its_own() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let session = owner.play(serde_json::json!([{ "text": "Mine." }])).await;
    let key = ground.organization("strangers").await;
    let stranger = service.caller(&key);
    assert_eq!(stranger.get("/sessions").await.ok()["data"].as_array().map(Vec::len), Some(0));
    stranger.get(&format!("/sessions/{session}")).await.error(404);
    service.stop().await;
}

#[tokio::test]
async fn the_key_of_the_first_organization_is_kept_for_its_owner_only() {
    let (database, data) = (Database::create().await, data_dir());
    let settings = [("DATABASE_URL", database.owner_url.as_str()), ("SOJOURN_DATA_DIR", path(data.path()))];
    assert!(sojourn(&["migrate"], &settings).status.success());
    let output = sojourn(&["admin", "create-org", "first"], &settings);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let key = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(sojourn::base::key::verify_check(key.trim()), Some(true));
    let mode = std::fs::metadata(data.path().join("master-key")).expect("a key file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_bootstrap_key_with_wrong_check_characters_is_refused() {
    let data = data_dir();
    let key = sojourn::base::key::generate(&sojourn::base::Origin::system());
    let last = if key.ends_with('0') { '1' } else { '0' };
    let mistyped = format!("{}{last}", &key[..key.len() - 1]);
    for wrong in [mistyped.as_str(), &key[..key.len() - 1], "sjk_live_chosen_by_hand"] {
        let variables = [("SOJOURN_BOOTSTRAP_API_KEY", wrong), ("SOJOURN_DATA_DIR", path(data.path()))];
        let line = refusal(&sojourn(&["serve"], &variables));
        assert!(line.contains("SOJOURN_BOOTSTRAP_API_KEY") && !line.contains(wrong), "{line}");
    }
}

#[test]
fn help_explains_every_setting() {
    let output = sojourn(&["serve", "--help"], &[]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for name in [
        "DATABASE_URL",
        "SOJOURN_OWNER_DATABASE_URL",
        "SOJOURN_LISTEN",
        "SOJOURN_DATA_DIR",
        "SOJOURN_BOOTSTRAP_API_KEY",
        "SOJOURN_MASTER_KEY",
        "SOJOURN_MAX_CONCURRENT_TURNS",
        "SOJOURN_LEASE_MS",
        "SOJOURN_ANTHROPIC_BASE_URL",
        "SOJOURN_OPENAI_BASE_URL",
        "SOJOURN_ALLOW_PRIVATE_WEBHOOKS",
        "SOJOURN_ALLOW_PRIVATE_MODELS",
        "SOJOURN_SCRIPTED",
        "SOJOURN_LOG",
    ] {
        assert!(text.contains(name), "{name} is not explained");
    }
}
