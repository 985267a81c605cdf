//! One MCP server of an agent for one lease: its connection, which is made when something first needs it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    base::limit::MCP_LISTS_PER_TURN_MAX,
    domain::{
        SandboxId,
        log_fold::McpLists,
        mcp::{self, McpServer},
    },
    lifecycle::{self, LeasedSandbox},
    mcp::{Clients, Connection, Endpoint, Failure, Program},
};

/// Characters of the hash of a server that name its processes.
const PROCESS_NAME_CHARS: usize = 16;

/// A server of the agent.
pub(super) struct Server {
    pub(super) config: McpServer,
    /// How it is reached; or why that cannot be done.
    reach: Result<Reach, Failure>,
    connection: tokio::sync::Mutex<Option<Connected>>,
    state: Mutex<State>,
    clients: Clients,
    /// Its sandbox, if it is a process.
    sandbox: Arc<LeasedSandbox>,
}

/// How a server is reached.
pub(super) enum Reach {
    Http(Endpoint),
    /// As a process in the sandbox, of this command.
    Process(Vec<String>),
}

/// A connection, and the sandbox in which its server runs.
#[derive(Clone)]
struct Connected {
    connection: Arc<Connection>,
    sandbox: Option<SandboxId>,
}

/// Why a server was not reached.
pub(super) enum Obstacle {
    Failure(Failure),
    /// There is no sandbox for it.
    Sandbox(lifecycle::Error),
}

impl From<Failure> for Obstacle {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<lifecycle::Error> for Obstacle {
    fn from(error: lifecycle::Error) -> Self {
        Self::Sandbox(error)
    }
}

#[derive(Default)]
struct State {
    /// Whether it is known to need the handshake of the older versions.
    is_legacy: bool,
    /// Whether it did not know a tool that it had listed.
    is_stale: bool,
    /// Lists that were read because of a change.
    lists: u32,
    /// The last failure of a connection.
    failed: Option<(Instant, Failure)>,
}

/// Purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A list, or a call that was not begun.
    Call,
    /// A call that an earlier worker, or connection, began: in the sandbox that has it.
    Recovery,
    /// To tell a process that runs of a cancel.
    Cancel,
}

impl Server {
    pub(super) fn new(
        config: McpServer,
        reach: Result<Reach, Failure>,
        (clients, sandbox): (&Clients, &Arc<LeasedSandbox>),
        known: &McpLists,
    ) -> Self {
        let is_legacy =
            known.listed(&config).is_some_and(|listed| mcp::has_handshake(&listed.protocol_version));
        let state = Mutex::new(State { is_legacy, ..State::default() });
        let connection = tokio::sync::Mutex::default();
        let (clients, sandbox) = (clients.clone(), Arc::clone(sandbox));
        Self { config, reach, connection, state, clients, sandbox }
    }

    /// Returns whether it runs in the sandbox.
    pub(super) fn is_process(&self) -> bool {
        matches!(self.reach, Ok(Reach::Process(_)))
    }

    /// Keeps the sandbox from being rotated while a process in it is used.
    pub(super) fn begin_use(&self) -> Option<lifecycle::Use<'_>> {
        self.is_process().then(|| self.sandbox.begin_use())
    }

    /// Returns the connection to it, within `time`.
    pub(super) async fn connect(
        &self,
        purpose: Purpose,
        time: Duration,
    ) -> Result<Arc<Connection>, Obstacle> {
        let asked_at = Instant::now();
        let mut current = self.connection.lock().await;
        if let Some((at, failure)) = &self.state().failed
            && *at >= asked_at
        {
            // Another call has waited for it.
            return Err(failure.clone().into());
        }
        let reach = self.reach.as_ref().map_err(Clone::clone)?;
        let handle = match reach {
            Reach::Http(_) => None,
            Reach::Process(_) if purpose == Purpose::Call => Some(self.sandbox.acquire().await?),
            Reach::Process(_) => Some(self.sandbox.reacquire().await?),
        };
        let sandbox = handle.as_ref().map(|handle| handle.fence.sandbox);
        let is_current = |Connected { connection, sandbox: of }: &&Connected| {
            !connection.is_closed() && !connection.is_spent() && *of == sandbox
        };
        if let Some(connected) = current.as_ref().filter(is_current) {
            return Ok(Arc::clone(&connected.connection));
        }
        let is_legacy = self.state().is_legacy;
        let connected = match (reach, handle) {
            (Reach::Http(endpoint), _) => self.clients.connect(endpoint, is_legacy, time).await,
            (Reach::Process(command), Some(handle)) => self.run_in((command, purpose), handle, time).await?,
            (Reach::Process(_), None) => unreachable!("a sandbox was acquired for it"),
        };
        {
            let mut state = self.state();
            // It may speak another version by now.
            state.is_legacy &= connected.is_ok();
            // A cancel starts no process, so its failure is not that of a call.
            let failed = connected.as_ref().err().filter(|_| purpose != Purpose::Cancel);
            state.failed = failed.map(|failure| (Instant::now(), failure.clone()));
        }
        let connection = Arc::new(connected?);
        *current = Some(Connected { connection: Arc::clone(&connection), sandbox });
        Ok(connection)
    }

    /// Connects to the process of a server in a sandbox.
    async fn run_in(
        &self,
        (command, purpose): (&[String], Purpose),
        handle: lifecycle::SandboxHandle,
        time: Duration,
    ) -> Result<Result<Connection, Failure>, lifecycle::Error> {
        let context = self.sandbox.context();
        let hash = self.config.server_hash();
        let program = Program {
            sandbox: Arc::clone(&handle.sandbox),
            fence: handle.fence,
            name: format!("{}-{}", self.config.name, &hash[hash.len() - PROCESS_NAME_CHARS..]),
            argv: command.to_vec(),
            cwd: context.working_dir.clone().unwrap_or_default(),
            env: context.env_under(&[]),
            may_start: purpose != Purpose::Cancel,
        };
        let is_legacy = self.state().is_legacy;
        let connected = self.clients.run(&program, is_legacy, time).await;
        if connected.is_err() {
            self.sandbox.record_if_gone(&handle, "it was gone when a tool used it").await?;
        }
        Ok(connected)
    }

    /// Notes the version of the protocol that it speaks.
    pub(super) fn note_version(&self, version: &str) {
        self.state().is_legacy = mcp::has_handshake(version);
    }

    /// Notes that it did not know a tool that it had listed.
    pub(super) fn note_unknown_tool(&self) {
        self.state().is_stale = true;
    }

    /// Returns whether its tools changed since they were listed, as far as it says so, and not too often.
    pub(super) async fn has_changed(&self) -> bool {
        let is_told =
            self.connection.lock().await.as_ref().is_some_and(|connected| connected.connection.take_change());
        let mut state = self.state();
        let has_changed = std::mem::take(&mut state.is_stale) || is_told;
        if has_changed {
            state.lists += 1;
        }
        has_changed && state.lists <= MCP_LISTS_PER_TURN_MAX
    }

    /// Drops a connection that failed.
    pub(super) async fn forget(&self, failed: &Arc<Connection>) {
        let mut current = self.connection.lock().await;
        if current.as_ref().is_some_and(|connected| Arc::ptr_eq(&connected.connection, failed)) {
            *current = None;
        }
    }

    /// Ends its connection; a process stays.
    pub(super) async fn close(&self) {
        let connected = self.connection.lock().await.take();
        if let Some(connection) = connected.and_then(|connected| Arc::into_inner(connected.connection)) {
            connection.close().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
