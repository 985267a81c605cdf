//! The ports of sandboxes and images, by calls to a node agent.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{
    caller::{Caller, Connection, Failed, answer, unexpected},
    egress,
    grant::{GrantKey, Scope},
    link::{Dialer, NodeAddress, TlsFiles},
    protocol::{Answer, Call, Done},
};
use crate::{
    base::limit::EGRESS_CONNECTIONS_MAX,
    domain::{
        OrgId, SandboxId, SessionId,
        rootfs::{RootFs, StoredRootFs},
    },
    sandbox::{
        BuildError, Capabilities, EgressSocket, Exec, Exit, Fault, FilePart, Files, Found, Images, Install,
        Node, NodeStatus, OutputRange, Sandbox, SandboxFence, ScanEntry, Signal, Spec, Stats, scan,
    },
};

/// The sandboxes of a node agent. Cheap to clone.
#[derive(Clone)]
pub struct RemoteNode {
    caller: Arc<Caller>,
    /// Those that the agent said last.
    capabilities: Arc<Mutex<Capabilities>>,
}

impl RemoteNode {
    /// Asks an agent which node it is and what its sandboxes can do.
    ///
    /// # Errors
    /// `Unavailable`: it does not answer, or does not know the key of the grants.
    pub async fn connect(
        address: NodeAddress,
        files: Option<&TlsFiles>,
        grants: GrantKey,
    ) -> Result<Self, Fault> {
        let dialer = Dialer::new(address, files).map_err(|error| Fault::Unavailable(error.to_string()))?;
        let (caller, capabilities) = Caller::connect(dialer, grants).await?;
        Ok(Self { caller: Arc::new(caller), capabilities: Arc::new(Mutex::new(capabilities)) })
    }

    /// Opens a connection to an agent, and closes it.
    ///
    /// # Errors
    /// `Unavailable` when it accepts none.
    pub async fn reach(address: NodeAddress, files: Option<&TlsFiles>) -> Result<(), Fault> {
        let dialer = Dialer::new(address, files).map_err(|error| Fault::Unavailable(error.to_string()))?;
        dialer.open().await.map(drop).map_err(|error| dialer.lost(&error))
    }

    /// The node.
    pub fn id(&self) -> Uuid {
        self.caller.node()
    }

    async fn nothing(&self, scope: impl Into<Scope>, call: Call, payload: &[u8]) -> Result<(), Fault> {
        match self.caller.call(scope, call, payload).await? {
            (Done::Nothing, _) => Ok(()),
            _ => Err(unexpected()),
        }
    }

    async fn log(&self, call: Call) -> Result<String, Fault> {
        match self.caller.call(Scope::Node, call, &[]).await? {
            (Done::Log, log) => Ok(String::from_utf8_lossy(&log).into_owned()),
            _ => Err(unexpected()),
        }
    }
}

#[async_trait]
impl Sandbox for RemoteNode {
    fn capabilities(&self) -> Capabilities {
        *self.capabilities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn create(&self, spec: &Spec, epoch: i64) -> Result<Files, Fault> {
        match self.caller.call(spec.fence(epoch), Call::Create { spec: spec.clone() }, &[]).await? {
            (Done::Files(files), _) => Ok(files),
            _ => Err(unexpected()),
        }
    }

    async fn attach(&self, fence: SandboxFence) -> Result<(), Fault> {
        self.nothing(fence, Call::Attach {}, &[]).await
    }

    async fn running(&self, fence: SandboxFence) -> Result<u64, Fault> {
        match self.caller.call(fence, Call::Running {}, &[]).await? {
            (Done::Count(count), _) => Ok(count),
            _ => Err(unexpected()),
        }
    }

    async fn freeze(&self, fence: SandboxFence) -> Result<(), Fault> {
        self.nothing(fence, Call::Freeze {}, &[]).await
    }

    async fn keep_alive(&self) -> Result<(), Fault> {
        self.nothing(Scope::Node, Call::KeepAlive {}, &[]).await
    }

    async fn touch(&self, sandbox: SandboxId) -> Result<(), Fault> {
        self.nothing(Scope::Node, Call::Touch { sandbox }, &[]).await
    }

    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault> {
        match self.caller.call(Scope::Node, Call::Stats { sandbox }, &[]).await? {
            (Done::Stats(stats), _) => Ok(stats),
            _ => Err(unexpected()),
        }
    }

    async fn quiesce(&self, fence: SandboxFence) -> Result<(), Fault> {
        self.nothing(fence, Call::Quiesce {}, &[]).await
    }

    async fn pack(&self, fence: SandboxFence, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        self.caller.take(fence, Call::Pack {}, &[], &parts).await
    }

    async fn unpack(
        &self,
        fence: SandboxFence,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.caller.give(fence, Call::Unpack {}, parts).await
    }

    async fn start(&self, fence: SandboxFence, exec: &Exec) -> Result<(), Fault> {
        self.nothing(fence, Call::Start { exec: exec.clone() }, &[]).await
    }

    async fn wait(&self, fence: SandboxFence, exec_id: &str) -> Result<Exit, Fault> {
        match self.caller.call(fence, Call::Wait { exec_id: exec_id.to_owned() }, &[]).await? {
            (Done::Exit(exit), _) => Ok(exit),
            _ => Err(unexpected()),
        }
    }

    async fn output(&self, fence: SandboxFence, exec_id: &str, range: OutputRange) -> Result<Vec<u8>, Fault> {
        let call = Call::Output { exec_id: exec_id.to_owned(), range };
        match self.caller.call(fence, call, &[]).await? {
            (Done::Output, output) if output.len() <= range.bytes_max => Ok(output),
            _ => Err(unexpected()),
        }
    }

    async fn write_input(
        &self,
        fence: SandboxFence,
        exec_id: &str,
        offset: u64,
        text: &str,
    ) -> Result<(), Fault> {
        let call = Call::WriteInput { exec_id: exec_id.to_owned(), offset };
        self.nothing(fence, call, text.as_bytes()).await
    }

    async fn read_input(
        &self,
        fence: SandboxFence,
        exec_id: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Fault> {
        let call = Call::ReadInput { exec_id: exec_id.to_owned(), offset, bytes_max };
        match self.caller.call(fence, call, &[]).await? {
            (Done::Output, input) if input.len() <= bytes_max => Ok(input),
            _ => Err(unexpected()),
        }
    }

    async fn kill(&self, fence: SandboxFence, exec_id: &str) -> Result<(), Fault> {
        self.nothing(fence, Call::Kill { exec_id: exec_id.to_owned() }, &[]).await
    }

    async fn signal(&self, fence: SandboxFence, exec_id: &str, signal: Signal) -> Result<(), Fault> {
        self.nothing(fence, Call::Signal { exec_id: exec_id.to_owned(), signal }, &[]).await
    }

    async fn read_file(
        &self,
        fence: SandboxFence,
        path: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<FilePart, Fault> {
        let call = Call::ReadFile { path: path.to_owned(), offset, bytes_max };
        match self.caller.call(fence, call, &[]).await? {
            (Done::File(size), content) if content.len() <= bytes_max => Ok(FilePart { content, size }),
            _ => Err(unexpected()),
        }
    }

    async fn write_file(&self, fence: SandboxFence, path: &str, content: &[u8]) -> Result<(), Fault> {
        self.nothing(fence, Call::WriteFile { path: path.to_owned() }, content).await
    }

    async fn read_tree(
        &self,
        fence: SandboxFence,
        path: &str,
        parts: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault> {
        self.caller.take(fence, Call::ReadTree { path: path.to_owned() }, &[], &parts).await
    }

    async fn scan(&self, fence: SandboxFence, entries_max: u64) -> Result<Vec<ScanEntry>, Fault> {
        let take = |parts: mpsc::Sender<Bytes>| async move {
            self.caller.take(fence, Call::Scan { entries_max }, &[], &parts).await
        };
        scan::collect(entries_max, take).await
    }

    async fn fetch(
        &self,
        fence: SandboxFence,
        paths: &[Vec<u8>],
        parts: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault> {
        for payload in scan::payloads(paths)? {
            self.caller.take(fence, Call::Fetch {}, &payload, &parts).await?;
        }
        Ok(())
    }

    async fn write_tree(
        &self,
        fence: SandboxFence,
        path: &str,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.caller.give(fence, Call::WriteTree { path: path.to_owned() }, parts).await
    }

    async fn write_skills(
        &self,
        fence: SandboxFence,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.caller.give(fence, Call::WriteSkills {}, parts).await
    }

    async fn egress_socket(&self, fence: SandboxFence, certificates: &[u8]) -> Result<EgressSocket, Fault> {
        egress::open(Arc::clone(&self.caller), fence, certificates).await
    }

    async fn destroy(&self, sandbox: SandboxId) -> Result<(), Fault> {
        self.nothing(Scope::Node, Call::Destroy { sandbox }, &[]).await
    }

    async fn erase(&self, org: OrgId, session: SessionId) -> Result<(), Fault> {
        self.nothing(Scope::Node, Call::Erase { org, session }, &[]).await
    }

    async fn list(&self) -> Result<Vec<Found>, Fault> {
        match self.caller.call(Scope::Node, Call::List {}, &[]).await? {
            (Done::Found(found), _) => Ok(found),
            _ => Err(unexpected()),
        }
    }
}

#[async_trait]
impl Images for RemoteNode {
    async fn has_rootfs(&self, rootfs: &RootFs) -> Result<bool, Fault> {
        match self.caller.call(Scope::Node, Call::HasRootfs { rootfs: rootfs.clone() }, &[]).await? {
            (Done::Is(has), _) => Ok(has),
            _ => Err(unexpected()),
        }
    }

    async fn stored_rootfs(&self, rootfs: &RootFs) -> Result<Option<StoredRootFs>, Fault> {
        match self.caller.call(Scope::Node, Call::StoredRootfs { rootfs: rootfs.clone() }, &[]).await? {
            (Done::StoredRootfs(stored), _) => Ok(stored),
            _ => Err(unexpected()),
        }
    }

    async fn make_image(&self, rootfs: &RootFs) -> Result<(), BuildError> {
        let made = self.caller.call(Scope::Node, Call::MakeImage { rootfs: rootfs.clone() }, &[]).await?;
        drop(made);
        Ok(())
    }

    async fn begin_install(
        &self,
        rootfs: &RootFs,
        container: SandboxId,
        certificates: &[u8],
        bytes_max: Option<u64>,
    ) -> Result<Option<Install>, BuildError> {
        let call = Call::Install { rootfs: rootfs.clone(), container, bytes_max };
        let begun = async {
            let mut connection = self.caller.begin(Scope::Node, call, certificates).await?;
            let answered = answer(&mut connection).await.map_err(|error| self.caller.lost(&error))?;
            Ok::<_, Fault>((answered, connection))
        };
        match begun.await.map_err(Failed::Fault)? {
            ((Answer::Done(_), _), _) => Ok(None),
            ((Answer::NotBuilt(error), _), _) => Err(error),
            ((Answer::Fault(fault), _), _) => Err(Failed::Fault(fault).into()),
            ((Answer::Begun, _), connection) => Ok(Some(install(Arc::clone(&self.caller), connection))),
            _ => Err(Failed::Fault(unexpected()).into()),
        }
    }

    async fn build_log(&self, rootfs: &RootFs) -> Result<String, Fault> {
        self.log(Call::BuildLog { rootfs: rootfs.clone() }).await
    }

    async fn take_build_log(&self, rootfs: &RootFs) -> Result<String, Fault> {
        self.log(Call::TakeBuildLog { rootfs: rootfs.clone() }).await
    }

    async fn remove_unused_rootfs(&self, surplus: &[RootFs]) -> Result<usize, BuildError> {
        let call = Call::RemoveUnusedRootfs { surplus: surplus.to_vec() };
        match self.caller.call(Scope::Node, call, &[]).await? {
            (Done::Count(count), _) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
            _ => Err(Failed::Fault(unexpected()).into()),
        }
    }
}

#[async_trait]
impl Node for RemoteNode {
    async fn status(&self) -> Result<NodeStatus, Fault> {
        match self.caller.call(Scope::Node, Call::Status {}, &[]).await? {
            (Done::Status(status, capabilities), _) if status.node == self.id() => {
                *self.capabilities.lock().unwrap_or_else(PoisonError::into_inner) = capabilities;
                Ok(status)
            }
            (Done::Status(..), _) => Err(Fault::Unavailable(
                "another node answers at the address of this worker's node".to_owned(),
            )),
            _ => Err(unexpected()),
        }
    }
}

/// An installation that the agent has begun. `run` reads what the agent announces, and gives the connections to
/// `egress`.
fn install(caller: Arc<Caller>, mut announced: Connection) -> Install {
    let (arrived, arrivals) = mpsc::channel(EGRESS_CONNECTIONS_MAX);
    let run = async move {
        loop {
            let answered =
                answer(&mut announced).await.map_err(|error| Failed::Fault(caller.lost(&error)))?;
            match answered {
                (Answer::Connection { id }, _) => {
                    let connected = egress::connected(&caller, Scope::Node, id).await;
                    let connected = connected.map_err(|fault| io::Error::other(fault.to_string()));
                    // Without a proxy, the connection ends.
                    let _ = arrived.send(connected).await;
                }
                (Answer::Done(_), _) => return Ok(()),
                (Answer::NotBuilt(error), _) => return Err(error),
                (Answer::Fault(fault), _) => return Err(Failed::Fault(fault).into()),
                _ => return Err(Failed::Fault(unexpected()).into()),
            }
        }
    };
    let egress = stream::unfold(arrivals, async |mut arrivals: mpsc::Receiver<_>| {
        Some((arrivals.recv().await?, arrivals))
    });
    Install { egress: egress.boxed(), run: Box::pin(run) }
}
