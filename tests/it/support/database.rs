//! A fresh database for each test, copied from a template that was migrated once.
//!
//! All tests of a run share one private Postgres server. `SOJOURN_TEST_PG` names its directory, and then
//! whoever set it stops the server (`scripts/test`). Without it the server is in the build directory and
//! stops with its last user. Durability (fsync, synchronous_commit, full_page_writes) is off.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use sha2::{Digest, Sha256};
use sojourn::{
    base::{Origin, text},
    store::embedded::Embedded,
};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::{runtime, sync::Mutex};

/// Advisory lock for creating templates, shared by all test processes.
const TEMPLATE_LOCK: i64 = 0x736f_6a6f_7572_6e00;

/// A Postgres program: on PATH, otherwise of the newest installation.
pub fn program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = env::split_paths(&path).collect();
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut installed: Vec<PathBuf> = installed.map(|entry| entry.path().join("bin")).collect();
    installed.sort();
    places.extend(installed.into_iter().rev());
    let found = places.into_iter().map(|place| place.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is installed with Postgres"))
}

/// Database of one test, dropped with this value.
pub struct Database {
    /// Role that owns the schema.
    pub owner_url: String,
    /// Role with row-level security by organization.
    pub app_url: String,
    /// Role that sees all organizations.
    pub system_url: String,
    pub name: String,
    // The last test of this process leaves the server.
    server: Option<Arc<Server>>,
}

impl Database {
    /// Creates a database with the schema and no rows.
    pub async fn create() -> Self {
        let server = Server::shared().await;
        let template = server.template.clone();
        Self::copied(server, &template).await
    }

    /// Creates an empty database, as an operator does.
    pub async fn empty() -> Self {
        Self::copied(Server::shared().await, "template1").await
    }

    async fn copied(server: Arc<Server>, template: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Later runs detect leftovers by the process id.
        let name = format!("test_{}_{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut admin = server.connect("postgres").await;
        create_database(&mut admin, &name, template).await;
        admin.close().await.expect("a clean end");
        Self {
            owner_url: server.url("sojourn_owner", &name),
            app_url: server.url("sojourn_app", &name),
            system_url: server.url("sojourn_system", &name),
            name,
            server: Some(server),
        }
    }

    /// Copies the database as it is now. Open connections are closed; new ones are refused meanwhile.
    pub async fn save(&self) {
        let (name, mut admin) = (&self.name, self.admin().await);
        self.close(&mut admin).await;
        create_database(&mut admin, &format!("{name}_saved"), name).await;
        run(&mut admin, format!("alter database {name} with allow_connections true")).await;
        admin.close().await.expect("a clean end");
    }

    /// Makes the saved copy the database again, as a failover does that loses the last commits.
    pub async fn restore_saved(&self) {
        let (name, mut admin) = (&self.name, self.admin().await);
        self.close(&mut admin).await;
        run(&mut admin, format!("drop database {name} with (force)")).await;
        run(&mut admin, format!("alter database {name}_saved rename to {name}")).await;
        admin.close().await.expect("a clean end");
    }

    async fn admin(&self) -> PgConnection {
        self.server.as_ref().expect("present until the drop").connect("postgres").await
    }

    async fn close(&self, admin: &mut PgConnection) {
        let name = &self.name;
        run(admin, format!("alter database {name} with allow_connections false")).await;
        let sql =
            format!("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = '{name}'");
        run(admin, sql).await;
    }

    /// URL of a superuser connection; the service must refuse it.
    pub fn superuser_url(&self) -> String {
        self.server.as_ref().expect("present until the drop").url("postgres", &self.name)
    }

    /// Superuser connection, for a setup that no role of the service may do.
    pub async fn superuser(&self) -> PgConnection {
        self.server.as_ref().expect("present until the drop").connect(&self.name).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let server = self.server.take().expect("dropped once");
        let name = self.name.clone();
        // `drop` may run on a test's runtime, which must not be blocked.
        let dropped = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut admin = server.connect("postgres").await;
                run(&mut admin, format!("drop database {name} with (force)")).await;
                admin.close().await.expect("a clean end");
                Server::leave(server).await;
            });
        });
        let outcome = dropped.join();
        // When the test fails anyway, its own message must stay the last one.
        assert!(outcome.is_ok() || thread::panicking(), "the test's database could not be dropped");
    }
}

/// This process's use of the server.
struct Server {
    embedded: Embedded,
    template: String,
    // Whether another process stops the server.
    kept: bool,
}

static SERVER: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());

impl Server {
    async fn shared() -> Arc<Self> {
        let mut slot = SERVER.lock().await;
        if let Some(server) = slot.upgrade() {
            return server;
        }
        let kept = std::env::var_os("SOJOURN_TEST_PG").map(PathBuf::from);
        let dir = kept.clone().unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("database"));
        let embedded =
            Embedded::start(&dir, &Origin::system(), &|_| {}).await.expect("a Postgres for the tests");
        let template = format!("template_{}", migrations_hash());
        let server = Arc::new(Self { embedded, template, kept: kept.is_some() });
        server.prepare().await;
        *slot = Arc::downgrade(&server);
        server
    }

    async fn leave(server: Arc<Self>) {
        // Serialized with joining and leaving, so that the last user is certain to be the last.
        let _slot = SERVER.lock().await;
        if let Some(Self { embedded, kept: false, .. }) = Arc::into_inner(server) {
            embedded.stop().await.expect("the server of the tests stops");
        }
    }

    fn url(&self, role: &str, database: &str) -> String {
        let url = self.embedded.urls().owner;
        url.replace("sojourn_owner@", &format!("{role}@")).replace("/sojourn?", &format!("/{database}?"))
    }

    async fn connect(&self, database: &str) -> PgConnection {
        PgConnection::connect(&self.url("postgres", database)).await.expect("the server takes the superuser")
    }

    /// Once per server: settings, the template, and removal of databases of killed tests.
    async fn prepare(&self) {
        let mut admin = self.connect("postgres").await;
        sqlx::query("select pg_advisory_lock($1)")
            .bind(TEMPLATE_LOCK)
            .execute(&mut admin)
            .await
            .expect("the lock");
        for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
            run(&mut admin, format!("alter system set {setting} = off")).await;
        }
        run(&mut admin, "select pg_reload_conf()".to_owned()).await;
        let databases: Vec<String> = sqlx::query_scalar("select datname from pg_database")
            .fetch_all(&mut admin)
            .await
            .expect("a list");
        for name in databases.iter().filter(|name| is_leftover(name, &self.template)) {
            run(&mut admin, format!("drop database if exists {name} with (force)")).await;
        }
        if !databases.contains(&self.template) {
            self.make_template(&mut admin).await;
        }
        // Closing the connection releases the lock.
        admin.close().await.expect("a clean end");
    }

    async fn make_template(&self, admin: &mut PgConnection) {
        let draft = "template_draft";
        run(admin, format!("drop database if exists {draft} with (force)")).await;
        create_database(admin, draft, "template1").await;
        migrate_template(&self.url("sojourn_owner", draft)).await;
        // A template with connections cannot be copied.
        run(admin, format!("alter database {draft} with allow_connections false")).await;
        run(admin, format!("alter database {draft} rename to {}", self.template)).await;
    }
}

/// Migrates an empty database to the schema of this checkout.
async fn migrate_template(owner_url: &str) {
    sojourn::store::migrate::schema(owner_url).await.expect("the migrations run on an empty database");
}

async fn create_database(admin: &mut PgConnection, name: &str, template: &str) {
    run(admin, format!("create database {name} owner sojourn_owner template {template}")).await;
    // Privileges on a database are not copied with it.
    run(admin, format!("revoke all on database {name} from public")).await;
    run(admin, format!("grant connect on database {name} to sojourn_app, sojourn_system")).await;
}

async fn run(admin: &mut PgConnection, sql: String) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(admin).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Whether this is a template of other migrations, or a database of a finished process.
fn is_leftover(name: &str, template: &str) -> bool {
    if let Some(rest) = name.strip_prefix("test_") {
        let pid = rest.split('_').next().unwrap_or_default();
        return !Path::new("/proc").join(pid).exists();
    }
    let ours = name.starts_with("template_") && name != "template_draft";
    ours && name != template
}

/// Hash of the migrations; the same files in the same order share a template.
fn migrations_hash() -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.file_name().expect("an entry has a name").as_encoded_bytes());
        hash.update(Sha256::digest(fs::read(&file).expect("a migration can be read")));
    }
    text::hex(&hash.finalize()[..8])
}

mod tests {
    use super::*;

    async fn text(url: &str, sql: &'static str) -> String {
        let mut connection = PgConnection::connect(url).await.expect("the role may connect");
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect(sql)
    }

    #[tokio::test]
    async fn each_test_has_a_database_of_its_own() {
        let (one, other) = tokio::join!(Database::create(), Database::create());
        assert_ne!(one.owner_url, other.owner_url);
        let mut superuser = one.superuser().await;
        run(&mut superuser, "create table public.only_here (a int)".to_owned()).await;
        superuser.close().await.expect("a clean end");
        let count = "select count(*)::text from pg_tables where tablename = 'only_here'";
        assert_eq!(text(&one.owner_url, count).await, "1");
        assert_eq!(text(&other.owner_url, count).await, "0");
    }

    #[tokio::test]
    async fn each_url_has_the_role_that_it_says() {
        let database = Database::create().await;
        let who = "select current_user::text";
        assert_eq!(text(&database.owner_url, who).await, "sojourn_owner");
        assert_eq!(text(&database.app_url, who).await, "sojourn_app");
        assert_eq!(text(&database.system_url, who).await, "sojourn_system");
        assert_eq!(text(&database.app_url, "show fsync").await, "off");
    }

    #[test]
    fn only_unused_databases_are_leftovers() {
        let mine = format!("test_{}_0", process::id());
        for (name, leftover) in [
            (mine.as_str(), false),
            ("test_999999999_3", true),
            ("template_abc", false),
            ("template_old", true),
            ("template_draft", false),
            ("template0", false),
            ("template1", false),
            ("postgres", false),
            ("sojourn", false),
        ] {
            assert_eq!(is_leftover(name, "template_abc"), leftover, "{name}");
        }
    }
}
