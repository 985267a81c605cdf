//! The skills that a session pins, in its sandbox: written before the first call that runs there.
//!
//! A file in the sandbox lists those that were written. It is the last one of the archive, and no command can change it.

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};

use super::Error;
use crate::{
    domain::{OrgId, SandboxId, exit::PreparationFailure, skill::PinnedSkill},
    sandbox::{Fault, SKILLS, Sandbox, SandboxFence},
    skill::Skills,
};

/// Name of the list.
const LIST: &str = ".list";
/// Bytes of one part of the archive.
const PART_BYTES: usize = 256 << 10;

/// The skills of one lease.
pub(super) struct PlacedSkills {
    skills: Skills,
    pinned: Vec<PinnedSkill>,
    /// The sandbox that has them.
    placed: Mutex<Option<SandboxId>>,
}

impl PlacedSkills {
    pub(super) fn new(skills: Skills, pinned: Vec<PinnedSkill>) -> Self {
        Self { skills, pinned, placed: Mutex::default() }
    }

    /// Writes the skills, unless the sandbox has these.
    ///
    /// # Errors
    /// `Stale`; `LogUnavailable` while the blob store does not answer; `PreparationFailure` if a skill is gone, or the
    /// sandbox cannot take it.
    pub(super) async fn place(&self, sandbox: &dyn Sandbox, fence: SandboxFence) -> Result<(), Error> {
        if self.pinned.is_empty() {
            return Ok(());
        }
        let mut placed = self.placed.lock().await;
        if *placed == Some(fence.sandbox) {
            return Ok(());
        }
        let list = self.list();
        let read = sandbox.read_file(fence, &format!("{SKILLS}/{LIST}"), 0, list.len() + 1).await;
        let has_them = match read {
            Ok(part) => part.content == list.as_bytes(),
            Err(Fault::NotFound(_) | Fault::Refused(_)) => false,
            Err(fault) => return not_placed(fault),
        };
        if !has_them && let Err(fault) = self.write(sandbox, fence, list).await? {
            return not_placed(fault);
        }
        *placed = Some(fence.sandbox);
        Ok(())
    }

    /// The name and the digest of each, a line each.
    fn list(&self) -> String {
        self.pinned.iter().map(|skill| format!("{} {}\n", skill.name, skill.sha256)).collect()
    }

    async fn write(
        &self,
        sandbox: &dyn Sandbox,
        fence: SandboxFence,
        list: String,
    ) -> Result<Result<(), Fault>, Error> {
        let (sender, receiver) = mpsc::channel(2);
        let send = async {
            for skill in &self.pinned {
                let entries = self.entries(fence.org, skill).await?;
                send_parts(&sender, entries).await;
            }
            send_parts(&sender, end(&list).into()).await;
            drop(sender);
            Ok::<_, Error>(())
        };
        // Without the end of the archive the sandbox reports a fault, which is less to the point.
        let (written, sent) = tokio::join!(sandbox.write_skills(fence, receiver), send);
        sent.map(|()| written)
    }

    async fn entries(&self, org: OrgId, skill: &PinnedSkill) -> Result<Bytes, Error> {
        let entries = self.skills.entries(org, skill.skill_id).await;
        let entries = entries.map_err(|error| {
            Error::LogUnavailable(format!("a skill of the session cannot be read: {error}"))
        })?;
        entries.ok_or_else(|| {
            let PinnedSkill { name, version, .. } = skill;
            failed(format!("version {version} of the skill `{name}` does not exist here"))
        })
    }
}

/// The end of the archive: the list, and the blocks that end an archive.
fn end(list: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(list.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_data(&mut header, LIST, list.as_bytes())
        .and_then(|()| archive.into_inner())
        .expect("memory accepts every byte")
}

async fn send_parts(sender: &mpsc::Sender<Result<Bytes, Fault>>, mut content: Bytes) {
    while !content.is_empty() {
        let part = content.split_to(content.len().min(PART_BYTES));
        // The response of the sandbox has the reason.
        if sender.send(Ok(part)).await.is_err() {
            return;
        }
    }
}

/// Returns the result of a placement that failed. If the sandbox does not answer, the call that needs it finds out, and the
/// skills are written again.
fn not_placed(fault: Fault) -> Result<(), Error> {
    match fault {
        Fault::Stale => Err(Error::Stale),
        Fault::Gone | Fault::Unavailable(_) => Ok(()),
        Fault::Refused(reason) | Fault::NotFound(reason) => {
            Err(failed(format!("the skills cannot be written to the sandbox: {reason}")))
        }
    }
}

fn failed(reason: String) -> Error {
    Error::PreparationFailure(PreparationFailure::Skill, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_names_the_directory_of_the_sandbox() {
        assert_eq!(crate::domain::skill::SKILLS_DIR, SKILLS);
    }
}
