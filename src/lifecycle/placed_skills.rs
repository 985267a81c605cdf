//! The skills that a session pins, in its sandbox: written before the first call that runs there.
//!
//! A file in the sandbox lists those that were written. It is the last one of the archive, and no command can change it.

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};

use super::Error;
use crate::{
    domain::{OrgId, SandboxId, exit::PreparationFailure, skill::PinnedSkill},
    sandbox::{Fault, SKILLS, SKILLS_LIST, Sandbox, SandboxFence},
    skill::Skills,
};

/// Bytes of one part of the archive.
const PART_BYTES: usize = 256 << 10;

/// The skills of one lease.
pub(super) struct PlacedSkills {
    skills: Skills,
    /// `None` if the session never had any.
    pinned: Option<Vec<PinnedSkill>>,
    /// The sandbox that has them.
    placed: Mutex<Option<SandboxId>>,
}

impl PlacedSkills {
    pub(super) fn new(skills: Skills, pinned: Option<Vec<PinnedSkill>>) -> Self {
        Self { skills, pinned, placed: Mutex::default() }
    }

    /// Writes the skills, unless the sandbox has these.
    ///
    /// # Errors
    /// `Stale`; `Unavailable` if the sandbox does not answer; `LogUnavailable` while the blob store does not answer;
    /// `PreparationFailure` if a skill is gone, or the sandbox cannot take it.
    pub(super) async fn place(&self, sandbox: &dyn Sandbox, fence: SandboxFence) -> Result<(), Error> {
        let Some(pinned) = &self.pinned else { return Ok(()) };
        let mut placed = self.placed.lock().await;
        if *placed == Some(fence.sandbox) {
            return Ok(());
        }
        let list = list_of(pinned);
        let read = sandbox.read_file(fence, &format!("{SKILLS}/{SKILLS_LIST}"), 0, list.len() + 1).await;
        let has_them = match read {
            Ok(part) => part.content == list.as_bytes(),
            Err(Fault::NotFound(_) | Fault::Refused(_)) => pinned.is_empty(),
            Err(fault) => return not_placed(fault),
        };
        if !has_them && let Err(fault) = self.write(sandbox, fence, pinned, list).await? {
            return not_placed(fault);
        }
        *placed = Some(fence.sandbox);
        Ok(())
    }

    async fn write(
        &self,
        sandbox: &dyn Sandbox,
        fence: SandboxFence,
        pinned: &[PinnedSkill],
        list: String,
    ) -> Result<Result<(), Fault>, Error> {
        let (sender, receiver) = mpsc::channel(2);
        let send = async {
            for skill in pinned {
                let entries = self.entries(fence.org, skill).await?;
                if !send_parts(&sender, entries).await {
                    break;
                }
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

/// The name and the digest of each, a line each.
fn list_of(pinned: &[PinnedSkill]) -> String {
    pinned.iter().map(|skill| format!("{} {}\n", skill.name, skill.sha256)).collect()
}

/// The end of the archive: the list, and the blocks that end an archive.
fn end(list: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(list.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_data(&mut header, SKILLS_LIST, list.as_bytes())
        .and_then(|()| archive.into_inner())
        .expect("memory accepts every byte")
}

/// Returns whether the sandbox took them all. Otherwise its response has the reason.
async fn send_parts(sender: &mpsc::Sender<Result<Bytes, Fault>>, mut content: Bytes) -> bool {
    while !content.is_empty() {
        let part = content.split_to(content.len().min(PART_BYTES));
        if sender.send(Ok(part)).await.is_err() {
            return false;
        }
    }
    true
}

/// Returns the result of a placement that failed. That a sandbox is gone is found out by the call that needs it.
fn not_placed(fault: Fault) -> Result<(), Error> {
    match fault {
        Fault::Stale => Err(Error::Stale),
        Fault::Gone => Ok(()),
        Fault::Unavailable(reason) => Err(Error::Unavailable(reason)),
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
