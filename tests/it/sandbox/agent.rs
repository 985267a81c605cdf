//! The node agent: the suite through it, over a unix socket and over TLS, and what it refuses.

use std::{fs, path::PathBuf, sync::Arc, thread, time::Duration};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sojourn::{
    base::Origin,
    domain::{SandboxId, rootfs::RootFs},
    node::local::{Config, Local},
    node::{Agent, Listener},
    sandbox::{
        Exec, Fault, Images, Node, Sandbox, SandboxFence,
        node::{GrantKey, NodeAddress, RemoteNode, TlsFiles},
    },
};
use tokio::{net::UnixStream, runtime::Runtime, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Provider, World, conforms, limits,
    local::LocalProvider,
    registry::{Ground, has_programs},
    run,
};
use crate::support::wait::WAIT_MAX;

/// Checks that `make test` runs through the agent: each kind of call. `make test-full` runs all.
pub const SHORT: [&str; 23] = [
    "a_command_reports_its_output_and_its_exit_code",
    "output_can_be_read_while_the_command_runs",
    "a_kill_ends_a_tree_that_fled_and_ignores_term",
    "a_signal_reaches_a_command_and_what_it_started",
    "a_service_takes_its_input_once_and_does_not_count_as_running",
    "an_unknown_command_is_not_found",
    "what_a_tool_writes_a_command_sees_and_the_other_way_round",
    "a_large_file_travels_in_parts",
    "the_escape_checklist_holds",
    "a_sandbox_reaches_what_its_egress_attachment_allows",
    "a_stale_epoch_changes_nothing",
    "a_second_sandbox_of_a_session_displaces_the_first",
    "a_command_outlives_the_worker_that_started_it",
    "the_sandbox_is_listed_with_its_owner",
    "a_directory_travels_in_one_piece_and_back",
    "a_hostile_archive_stays_in_its_directory",
    "skills_are_replaced_as_a_whole_and_no_command_changes_them",
    "a_scan_lists_every_file_with_its_state",
    "a_fetch_reads_files_and_nothing_in_their_place",
    "a_frozen_sandbox_stops_and_resumes_its_processes",
    "a_quiesced_sandbox_writes_nothing_until_it_is_attached",
    "files_come_back_as_they_were",
    "a_sandbox_that_was_not_restored_to_its_end_is_not_used",
];

/// The same over TLS.
pub const SHORT_OVER_TLS: [&str; 4] = [
    "a_command_reports_its_output_and_its_exit_code",
    "a_directory_travels_in_one_piece_and_back",
    "a_sandbox_reaches_what_its_egress_attachment_allows",
    "files_come_back_as_they_were",
];

const SECRET: [u8; 32] = [9; 32];
const NODE: Uuid = Uuid::from_u128(7);

/// An agent, and the directories of its sandboxes.
struct AgentProvider {
    local: LocalProvider,
    address: NodeAddress,
    files: Option<TlsFiles>,
    key_file: PathBuf,
    runtime: Runtime,
    stop: CancellationToken,
}

impl AgentProvider {
    fn new() -> Self {
        Self::of(LocalProvider::new())
    }

    fn of(local: LocalProvider) -> Self {
        let socket = local.config().run_dir.with_extension("sock");
        Self::start(local, NodeAddress::Unix(socket), None)
    }

    fn over_tls() -> Self {
        let local = LocalProvider::new();
        let files = certificates(&local.config().run_dir.with_extension("tls"));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self::start(local, NodeAddress::Tls { host: "127.0.0.1".to_owned(), port }, Some(files))
    }

    fn start(local: LocalProvider, address: NodeAddress, files: Option<TlsFiles>) -> Self {
        let key_file = local.config().run_dir.with_extension("key");
        fs::write(&key_file, key(SECRET).public()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let provider = Self { local, address, files, key_file, runtime, stop: CancellationToken::new() };
        drop(provider.serve(provider.stop.clone()));
        provider
    }

    /// Serves until `stop`.
    fn serve(&self, stop: CancellationToken) -> JoinHandle<()> {
        let sandboxes = Local::new(Config { node: NODE, ..self.local.config() }).unwrap();
        let agent = Arc::new(Agent::new(sandboxes, NODE, self.key_file.clone(), Origin::system()));
        let uid = rustix::process::geteuid().as_raw();
        let opened = self.apart(|runtime| {
            runtime.block_on(Listener::open(&self.address, self.files.as_ref(), uid)).unwrap()
        });
        self.runtime.spawn(agent.serve(opened, stop))
    }

    /// Runs something outside of the runtime that a test may be in.
    fn apart<T: Send>(&self, run: impl FnOnce(&Runtime) -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(|| run(&self.runtime)).join().unwrap())
    }

    fn connected(&self, key: GrantKey) -> Result<RemoteNode, Fault> {
        self.connected_with(key, self.files.as_ref())
    }

    fn connected_with(&self, key: GrantKey, files: Option<&TlsFiles>) -> Result<RemoteNode, Fault> {
        self.apart(|runtime| runtime.block_on(RemoteNode::connect(self.address.clone(), files, key)))
    }
}

impl Drop for AgentProvider {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Provider for AgentProvider {
    fn open(&self) -> Arc<dyn Sandbox> {
        Arc::new(self.connected(key(SECRET)).expect("the agent serves"))
    }

    fn rootfs(&self) -> RootFs {
        self.local.rootfs()
    }

    fn assert_nothing_left(&self, sandbox: SandboxId) {
        self.local.assert_nothing_left(sandbox);
    }
}

fn key(secret: [u8; 32]) -> GrantKey {
    GrantKey::of(&secret, &Origin::system())
}

/// An authority, and a certificate of it for both sides.
fn certificates(directory: &std::path::Path) -> TlsFiles {
    fs::create_dir_all(directory).unwrap();
    let write = |name: &str, text: String| {
        fs::write(directory.join(name), text).unwrap();
        directory.join(name)
    };
    let root = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = write("authority.pem", params.self_signed(&root).unwrap().pem());
    let own = KeyPair::generate().unwrap();
    let signed = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&own, &Issuer::new(params, root))
        .unwrap();
    TlsFiles {
        certificate: write("certificate.pem", signed.pem()),
        key: write("key.pem", own.serialize_pem()),
        authority,
    }
}

#[test]
fn sandboxes_of_a_node_agent_conform() {
    conforms(&AgentProvider::new, &SHORT);
}

#[test]
fn sandboxes_of_a_node_agent_conform_over_tls() {
    sojourn::net::install_tls();
    conforms(&AgentProvider::over_tls, &SHORT_OVER_TLS);
}

#[test]
fn a_node_agent_pulls_an_image_of_a_registry() {
    let ground = Ground::new();
    ground.publish_programs();
    let Ground { registry, provider, images: _images } = ground;
    let provider = AgentProvider::of(provider);
    let rootfs = provider.rootfs();
    let node = provider.connected(key(SECRET)).unwrap();
    provider.apart(|runtime| {
        runtime.block_on(async {
            assert!(!node.has_rootfs(&rootfs).await.unwrap());
            node.make_image(&rootfs).await.unwrap();
            assert!(node.has_rootfs(&rootfs).await.unwrap());
        });
    });
    registry.assert_understood();
    run(&provider, limits(), |world| Box::pin(has_programs(world)));
}

fn with_agent(check: impl for<'a> FnOnce(Arc<AgentProvider>, &'a World<'a>) -> super::Check<'a>) {
    let provider = Arc::new(AgentProvider::new());
    run(&*provider, limits(), |world| check(Arc::clone(&provider), world));
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, Fault>, why: &str) {
    assert!(matches!(&result, Err(Fault::Unavailable(words)) if words.contains(why)), "{result:?}");
}

#[test]
fn a_call_needs_a_grant_of_the_deployment_for_its_sandbox() {
    with_agent(|provider, world| {
        Box::pin(async move {
            is_refused(provider.connected(key([8; 32])).map(drop), "not signed by its deployment");
            let fence = world.fence;
            let (other, session) = (world.origin.id(), world.origin.id());
            for fence in [SandboxFence { org: other, ..fence }, SandboxFence { session, ..fence }] {
                is_refused(world.sandbox.attach(fence).await, "of another session");
                is_refused(world.sandbox.read_file(fence, "/etc/passwd", 0, 100).await, "of another session");
                is_refused(world.sandbox.egress_socket(fence, b"").await.map(drop), "of another session");
            }
            world.sandbox.attach(fence).await.unwrap();
            // The key was replaced: the agent reads the new one.
            fs::write(&provider.key_file, key([8; 32]).public()).unwrap();
            provider.connected(key([8; 32])).unwrap();
            is_refused(provider.connected(key(SECRET)).map(drop), "not signed by its deployment");
            fs::write(&provider.key_file, key(SECRET).public()).unwrap();
        })
    });
}

#[test]
fn a_caller_without_a_certificate_of_the_authority_is_refused() {
    sojourn::net::install_tls();
    let provider = AgentProvider::over_tls();
    assert!(provider.connected(key(SECRET)).is_ok());
    let stranger = certificates(&provider.local.config().run_dir.with_extension("stranger"));
    let own = provider.files.clone().unwrap();
    let disguised = TlsFiles { authority: own.authority, ..stranger.clone() };
    for files in [&stranger, &disguised] {
        let refused = provider.connected_with(key(SECRET), Some(files));
        assert!(matches!(refused.map(drop), Err(Fault::Unavailable(_))));
    }
    is_unavailable(provider.connected_with(key(SECRET), None).map(drop));
}

fn is_unavailable(result: Result<(), Fault>) {
    assert!(matches!(result, Err(Fault::Unavailable(_))), "{result:?}");
}

#[test]
fn a_sandbox_and_its_commands_outlive_the_agent() {
    let local = LocalProvider::new();
    let socket = local.config().run_dir.with_extension("sock");
    let key_file = local.config().run_dir.with_extension("key");
    fs::write(&key_file, key(SECRET).public()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stop = CancellationToken::new();
    let (address, lasting) = (NodeAddress::Unix(socket), CancellationToken::new());
    let provider = Arc::new(AgentProvider { local, address, files: None, key_file, runtime, stop: lasting });
    let first = provider.serve(stop.clone());
    run(&*provider, limits(), |world| {
        let provider = Arc::clone(&provider);
        Box::pin(async move {
            let exec: Exec = world.shell("long", "sleep 2; echo done");
            world.sandbox.start(world.fence, &exec).await.unwrap();
            let waiting = world.sandbox.wait(world.fence, &exec.id);
            let replaced = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                stop.cancel();
                first.await.unwrap();
                tokio::time::sleep(Duration::from_millis(300)).await;
                drop(provider.serve(provider.stop.clone()));
            };
            // The call is repeated at the next agent; calls that begin meanwhile wait for it.
            let (waited, (), attached) = tokio::join!(timeout(WAIT_MAX, waiting), replaced, async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                world.sandbox.attach(world.fence).await
            });
            attached.unwrap();
            let exit = waited.unwrap().unwrap();
            assert_eq!(exit.code, 0);
        })
    });
}

#[test]
fn a_caller_that_says_nothing_or_nonsense_disturbs_nobody() {
    with_agent(|provider, world| {
        Box::pin(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let NodeAddress::Unix(path) = &provider.address else { unreachable!() };
            let silent = UnixStream::connect(path).await.unwrap();
            for (nonsense, answer) in [
                (b"GET / HTTP/1.1\r\n\r\n".as_slice(), ""),
                (b"\xff\xff\xff\xff\0\0\0\0", ""),
                (b"\0\0\0\x02\0\0\0\0{}", "does not know this call"),
            ] {
                let mut stream = UnixStream::connect(path).await.unwrap();
                stream.write_all(nonsense).await.unwrap();
                stream.shutdown().await.unwrap();
                let mut answered = Vec::new();
                // It hangs up: with a reset, if there is something that it did not read.
                let _ = timeout(WAIT_MAX, stream.read_to_end(&mut answered)).await.unwrap();
                let said = String::from_utf8_lossy(&answered);
                assert!(said.contains(answer) && said.is_empty() == answer.is_empty(), "{said}");
            }
            world.sandbox.attach(world.fence).await.unwrap();
            drop(silent);
        })
    });
}

#[test]
fn the_images_and_the_state_of_a_node_are_asked_through_its_agent() {
    let provider = AgentProvider::new();
    let node = provider.connected(key(SECRET)).unwrap();
    provider.apart(|runtime| {
        runtime.block_on(async {
            assert_eq!(node.status().await.unwrap().node, NODE);
            assert!(node.has_rootfs(&RootFs::default()).await.unwrap());
            let unknown = RootFs { image: "unknown".to_owned(), ..RootFs::default() };
            assert!(!node.has_rootfs(&unknown).await.unwrap());
            let refused = node.make_image(&unknown).await.unwrap_err().to_string();
            assert!(refused.contains("there is no image `unknown`"), "{refused}");
            assert_eq!(node.remove_unused_rootfs(std::slice::from_ref(&unknown)).await, Ok(0));
            assert_eq!(node.stored_rootfs(&unknown).await, Ok(None));
            node.keep_alive().await.unwrap();
        });
    });
}
