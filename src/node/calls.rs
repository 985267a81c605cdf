//! The calls of workers, and which of them a grant permits.

use super::connections::Agent;
use crate::sandbox::{
    Fault, Images, Node, Sandbox, SandboxFence,
    node::{
        grant::Scope,
        protocol::{Answer, Call, Done},
    },
};

impl Agent {
    /// Checks that a call is within a grant: a call of the node under a grant of the node, a call of a sandbox under
    /// one that names it and the organization and session to which it belongs.
    pub(super) fn permitted(&self, scope: &Scope, call: &Call) -> Result<Option<SandboxFence>, Fault> {
        let refused =
            |reason: &str| Err(Fault::Unavailable(format!("the grant is not for this call: {reason}")));
        let Scope::Sandbox { org, session, sandbox, epoch } = *scope else {
            return if is_of_node(call) { Ok(None) } else { refused("it names no sandbox") };
        };
        if is_of_node(call) {
            return refused("it is one of the node");
        }
        if let Call::Create { spec } = call {
            if (spec.org, spec.session, spec.sandbox) != (org, session, sandbox) {
                return refused("it is for another sandbox");
            }
        } else if self.local.owner(sandbox).is_some_and(|owner| owner != (org, session)) {
            return refused("the sandbox is of another session");
        }
        Ok(Some(SandboxFence { org, session, sandbox, epoch }))
    }

    /// Carries out a call without parts. Returns the last frame of its answer.
    pub(super) async fn run(
        &self,
        fence: Option<SandboxFence>,
        call: Call,
        payload: Vec<u8>,
    ) -> (Answer, Vec<u8>) {
        let ran = match fence {
            None => self.run_on_node(call).await,
            Some(fence) => self.run_in_sandbox(fence, call, payload).await.map_err(Answer::Fault),
        };
        match ran {
            Ok((done, payload)) => (Answer::Done(done), payload),
            Err(answer) => (answer, Vec::new()),
        }
    }

    async fn run_on_node(&self, call: Call) -> Result<(Done, Vec<u8>), Answer> {
        let local = &self.local;
        let done = match call {
            Call::Status {} => {
                let status = local.status().await.map_err(Answer::Fault)?;
                Done::Status(status, local.capabilities())
            }
            Call::KeepAlive {} => nothing(local.keep_alive().await).map_err(Answer::Fault)?,
            Call::List {} => Done::Found(local.list().await.map_err(Answer::Fault)?),
            Call::Touch { sandbox } => nothing(local.touch(sandbox).await).map_err(Answer::Fault)?,
            Call::Stats { sandbox } => Done::Stats(local.stats(sandbox).await.map_err(Answer::Fault)?),
            Call::Destroy { sandbox } => nothing(local.destroy(sandbox).await).map_err(Answer::Fault)?,
            Call::Erase { org, session } => {
                nothing(local.erase(org, session).await).map_err(Answer::Fault)?
            }
            Call::HasRootfs { rootfs } => Done::Is(local.has_rootfs(&rootfs).await.map_err(Answer::Fault)?),
            Call::StoredRootfs { rootfs } => {
                Done::StoredRootfs(local.stored_rootfs(&rootfs).await.map_err(Answer::Fault)?)
            }
            Call::MakeImage { rootfs } => {
                // It goes on when the worker hangs up: what it publishes must not be interrupted.
                let local = local.clone();
                let made = self.builds.spawn(async move { local.make_image(&rootfs).await }).await;
                let made = made.map_err(|error| Answer::Fault(Fault::Unavailable(error.to_string())))?;
                made.map_err(Answer::NotBuilt)?;
                Done::Nothing
            }
            Call::BuildLog { rootfs } => {
                let log = local.build_log(&rootfs).await.map_err(Answer::Fault)?;
                return Ok((Done::Log, log.into_bytes()));
            }
            Call::TakeBuildLog { rootfs } => {
                let log = local.take_build_log(&rootfs).await.map_err(Answer::Fault)?;
                return Ok((Done::Log, log.into_bytes()));
            }
            Call::RemoveUnusedRootfs { surplus } => {
                Done::Count(local.remove_unused_rootfs(&surplus).await.map_err(Answer::NotBuilt)? as u64)
            }
            _ => {
                return Err(Answer::Fault(Fault::Unavailable(
                    "this call needs a grant of a sandbox".to_owned(),
                )));
            }
        };
        Ok((done, Vec::new()))
    }

    async fn run_in_sandbox(
        &self,
        fence: SandboxFence,
        call: Call,
        payload: Vec<u8>,
    ) -> Result<(Done, Vec<u8>), Fault> {
        let local = &self.local;
        let done = match call {
            Call::Create { spec } => Done::Files(local.create(&spec, fence.epoch).await?),
            Call::Attach {} => nothing(local.attach(fence).await)?,
            Call::Running {} => Done::Count(local.running(fence).await?),
            Call::Freeze {} => nothing(local.freeze(fence).await)?,
            Call::Quiesce {} => nothing(local.quiesce(fence).await)?,
            Call::Start { exec } => nothing(local.start(fence, &exec).await)?,
            Call::Wait { exec_id } => Done::Exit(local.wait(fence, &exec_id).await?),
            Call::Output { exec_id, range } => {
                return Ok((Done::Output, local.output(fence, &exec_id, range).await?));
            }
            Call::WriteInput { exec_id, offset } => {
                let text = String::from_utf8(payload)
                    .map_err(|_| Fault::Refused("input of a command must be UTF-8".to_owned()))?;
                nothing(local.write_input(fence, &exec_id, offset, &text).await)?
            }
            Call::ReadInput { exec_id, offset, bytes_max } => {
                let input = local.read_input(fence, &exec_id, offset, bytes_max).await?;
                return Ok((Done::Output, input));
            }
            Call::Kill { exec_id } => nothing(local.kill(fence, &exec_id).await)?,
            Call::Signal { exec_id, signal } => nothing(local.signal(fence, &exec_id, signal).await)?,
            Call::ReadFile { path, offset, bytes_max } => {
                let part = local.read_file(fence, &path, offset, bytes_max).await?;
                return Ok((Done::File(part.size), part.content));
            }
            Call::WriteFile { path } => nothing(local.write_file(fence, &path, &payload).await)?,
            _ => return Err(Fault::Unavailable("this call needs a grant of the node".to_owned())),
        };
        Ok((done, Vec::new()))
    }
}

/// Whether a call concerns the node, not a sandbox under a lease.
fn is_of_node(call: &Call) -> bool {
    matches!(
        call,
        Call::Status {}
            | Call::KeepAlive {}
            | Call::List {}
            | Call::Touch { .. }
            | Call::Stats { .. }
            | Call::Destroy { .. }
            | Call::Erase { .. }
            | Call::HasRootfs { .. }
            | Call::StoredRootfs { .. }
            | Call::MakeImage { .. }
            | Call::BuildLog { .. }
            | Call::TakeBuildLog { .. }
            | Call::RemoveUnusedRootfs { .. }
            | Call::Install { .. }
    )
}

fn nothing(result: Result<(), Fault>) -> Result<Done, Fault> {
    result.map(|()| Done::Nothing)
}
