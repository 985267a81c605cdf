//! The embedded Postgres, started for real, in each kind of directory that it supports.
//!
//! As root these tests also create and remove clusters below `/var/lib/sojourn`.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Mutex,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use sojourn::{base::Origin, store::embedded::Embedded};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

/// A directory for one test; a cluster elsewhere is removed with it.
struct Home {
    dir: TempDir,
    data: PathBuf,
}

impl Home {
    fn new(below: &str) -> Self {
        let dir = TempDir::new().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        let data = dir.path().join(below);
        fs::create_dir_all(&data).expect("the data directory");
        Self { dir, data }
    }

    async fn start(&self) -> Embedded {
        Embedded::start(&self.data, &Origin::system(), &|_| {}).await.expect("the database starts")
    }

    fn cluster(&self) -> PathBuf {
        self.data.join("postgres").canonicalize().expect("a home of the cluster").join("pgdata")
    }

    fn postmaster(&self) -> Pid {
        let text = fs::read_to_string(self.cluster().join("postmaster.pid")).expect("a running server");
        let pid = text.lines().next().and_then(|line| line.parse().ok()).expect("its process");
        Pid::from_raw(pid).expect("a positive number")
    }

    fn is_running(&self) -> bool {
        self.cluster().join("postmaster.pid").exists()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let Ok(home) = self.data.join("postgres").canonicalize() else { return };
        if let Ok(text) = fs::read_to_string(home.join("pgdata/postmaster.pid")) {
            let pid = text.lines().next().and_then(|line| line.parse().ok()).and_then(Pid::from_raw);
            let _ended = pid.map(|pid| kill_process(pid, Signal::QUIT));
        }
        if !home.starts_with(self.dir.path()) {
            fs::remove_dir_all(home).expect("the cluster can be removed");
        }
    }
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.expect("the database takes the connection")
}

async fn run(url: &str, sql: &'static str) {
    let mut connection = connect(url).await;
    sqlx::raw_sql(sql).execute(&mut connection).await.expect(sql);
    connection.close().await.expect("a clean end");
}

async fn text(url: &str, sql: &'static str) -> String {
    let mut connection = connect(url).await;
    sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect(sql)
}

#[tokio::test]
async fn a_restart_keeps_what_was_written() {
    let home = Home::new("data");
    let first = home.start().await;
    let urls = first.urls();
    run(&urls.owner, "create table kept (word text); insert into kept values ('here')").await;
    assert!(first.stop().await.expect("a clean stop"), "the last user stops the server");
    assert!(!home.is_running());

    let second = home.start().await;
    assert_eq!(second.urls(), urls);
    assert_eq!(text(&urls.owner, "select word from kept").await, "here");
    assert!(second.stop().await.expect("a clean stop"));
}

#[tokio::test]
async fn no_role_of_the_service_has_more_rights_than_it_needs() {
    let home = Home::new("data");
    let embedded = home.start().await;
    let urls = embedded.urls();
    for (url, role) in
        [(&urls.owner, "sojourn_owner"), (&urls.app, "sojourn_app"), (&urls.system, "sojourn_system")]
    {
        assert_eq!(text(url, "select current_user::text").await, role);
        let rights =
            "select (rolsuper or rolbypassrls or rolcreaterole or rolcreatedb or rolreplication)::text
             from pg_roles where rolname = current_user";
        assert_eq!(text(url, rights).await, "false");
        assert_eq!(text(url, "show fsync").await, "on");
    }
    for url in [&urls.app, &urls.system] {
        let mut connection = connect(url).await;
        sqlx::raw_sql("create table mine (a int)")
            .execute(&mut connection)
            .await
            .expect_err("not its schema");
        sqlx::raw_sql("create temp table mine (a int)").execute(&mut connection).await.expect_err("no temp");
    }
    embedded.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_parent_that_is_closed_to_others_is_no_obstacle() {
    let home = Home::new("closed/data");
    let parent = home.data.parent().expect("a parent");
    fs::set_permissions(parent, fs::Permissions::from_mode(0o700)).expect("its mode");
    let embedded = home.start().await;
    assert_eq!(text(&embedded.urls().app, "select 'yes'").await, "yes");
    let elsewhere = home.data.join("postgres").is_symlink();
    assert_eq!(elsewhere, geteuid().is_root(), "only a separate user needs a separate directory");
    embedded.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn an_empty_data_directory_means_an_empty_database() {
    let home = Home::new("closed/data");
    let parent = home.data.parent().expect("a parent");
    fs::set_permissions(parent, fs::Permissions::from_mode(0o700)).expect("its mode");
    let old = home.start().await;
    run(&old.urls().owner, "create table old (a int)").await;
    old.stop().await.expect("a clean stop");
    let old_home = home.cluster().parent().expect("a home").to_owned();
    fs::remove_dir_all(&home.data).expect("the data directory is removed");

    let new = home.start().await;
    let left = text(&new.urls().owner, "select count(*)::text from pg_tables where tablename = 'old'").await;
    assert_eq!(left, "0");
    new.stop().await.expect("a clean stop");
    if old_home.exists() {
        fs::remove_dir_all(old_home).expect("the old cluster is removed");
    }
}

#[tokio::test]
async fn a_path_of_150_characters_is_no_obstacle() {
    let home = Home::new(&format!("{}/data", "it's a long way/".repeat(10)));
    assert!(home.data.as_os_str().len() > 150);
    let embedded = home.start().await;
    assert_eq!(text(&embedded.urls().system, "select 'yes'").await, "yes");
    embedded.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn the_server_of_a_killed_service_is_adopted() {
    let home = Home::new("data");
    let killed = home.start().await;
    let server = home.postmaster();
    // A killed process runs no cleanup: its locks are released, its server stays.
    drop(killed);

    let said = Mutex::new(Vec::new());
    let note = |line: &str| said.lock().expect("unpoisoned").push(line.to_owned());
    let next = Embedded::start(&home.data, &Origin::system(), &note).await.expect("the server is adopted");
    assert_eq!(home.postmaster(), server);
    assert!(said.lock().expect("unpoisoned").iter().any(|line| line.contains("adopting")), "{said:?}");
    assert_eq!(text(&next.urls().app, "select 'yes'").await, "yes");
    assert!(next.stop().await.expect("a clean stop"), "an adopted server is stopped like an own one");
    assert!(!home.is_running());
}

#[tokio::test]
async fn a_crash_of_the_server_loses_nothing() {
    let home = Home::new("data");
    let killed = home.start().await;
    run(&killed.urls().owner, "create table kept (word text); insert into kept values ('here')").await;
    kill_process(home.postmaster(), Signal::KILL).expect("the server is ours to kill");
    drop(killed);

    let next = home.start().await;
    assert_eq!(text(&next.urls().owner, "select word from kept").await, "here");
    next.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_number_in_a_stale_pid_file_may_belong_to_anyone_by_now() {
    let home = Home::new("data");
    home.start().await.stop().await.expect("a clean stop");
    let stale = format!("{}\n{}\n", std::process::id(), home.cluster().display());
    fs::write(home.cluster().join("postmaster.pid"), stale).expect("a stale file");
    home.start().await.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn the_last_of_several_users_stops_the_server() {
    let home = Home::new("data");
    let (serve, admin) = (home.start().await, home.start().await);
    assert_eq!(serve.urls(), admin.urls());
    assert!(!serve.stop().await.expect("a clean leave"), "another user still uses it");
    assert_eq!(text(&admin.urls().app, "select 'yes'").await, "yes");
    assert!(admin.stop().await.expect("a clean stop"));
}

#[tokio::test]
async fn two_processes_that_start_at_once_share_one_new_server() {
    let home = Home::new("data");
    let (one, other) = tokio::join!(home.start(), home.start());
    assert_eq!(one.urls(), other.urls());
    one.stop().await.expect("a clean leave");
    assert!(other.stop().await.expect("a clean stop"));
}

#[tokio::test]
async fn a_cluster_of_another_major_version_is_refused_in_one_line() {
    let home = Home::new("data");
    home.start().await.stop().await.expect("a clean stop");
    fs::write(home.cluster().join("PG_VERSION"), "9\n").expect("another version");
    let refused = Embedded::start(&home.data, &Origin::system(), &|_| {}).await.expect_err("refused");
    let line = refused.to_string();
    assert!(line.contains("was made by Postgres 9, found 1"), "{line}");
    assert!(!line.contains('\n'), "{line}");
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why_in_one_line() {
    let home = Home::new("data");
    home.start().await.stop().await.expect("a clean stop");
    fs::write(home.cluster().join("postgresql.auto.conf"), "max_connections = many\n")
        .expect("a bad setting");
    let refused = Embedded::start(&home.data, &Origin::system(), &|_| {}).await.expect_err("refused");
    let line = refused.to_string();
    assert!(line.contains("did not start: FATAL:"), "{line}");
    assert!(!line.contains('\n'), "{line}");
}

#[tokio::test]
async fn nobody_else_reaches_the_socket_or_the_files() {
    let home = Home::new("data");
    let embedded = home.start().await;
    let private = |path: &Path| {
        let data = path.metadata().expect("it is there");
        assert!(data.is_dir() && data.mode() & 0o077 == 0, "{}: {:o}", path.display(), data.mode());
        assert_ne!(data.uid(), 0, "{} does not belong to root", path.display());
    };
    private(&home.cluster());
    private(&embedded.log_dir());
    let pid_file = fs::read_to_string(home.cluster().join("postmaster.pid")).expect("a running server");
    private(Path::new(pid_file.lines().nth(4).expect("its fifth line is the directory of the socket")));
    assert_eq!(text(&embedded.urls().owner, "show listen_addresses").await, "");
    embedded.stop().await.expect("a clean stop");
}
