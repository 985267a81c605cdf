//! The public key of the deployment's grants, which the service writes and the agent reads.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use rustix::fs::OFlags;
use uuid::Uuid;

use crate::{
    base::{Timestamp, limit::GRANT_KEY_FILE_BYTES_MAX},
    sandbox::{
        Fault,
        node::grant::{Grant, GrantCheck, SignedGrant},
    },
};

/// Checks grants against the key in a file. The file may be written after the agent started, and again when the
/// master key is rotated.
pub(super) struct Keys {
    node: Uuid,
    path: PathBuf,
    read: Mutex<Option<(String, Arc<GrantCheck>)>>,
}

impl Keys {
    pub(super) fn new(node: Uuid, path: PathBuf) -> Self {
        Self { node, path, read: Mutex::default() }
    }

    pub(super) fn check(&self, signed: &SignedGrant, now: Timestamp) -> Result<Grant, Fault> {
        let known = self.lock().clone();
        let checked = known.as_ref().map(|(_, check)| check.check(signed, now));
        if let Some(Ok(grant)) = checked {
            return Ok(grant);
        }
        let unread = |error: &dyn std::fmt::Display| {
            Fault::Unavailable(format!(
                "the node agent has no key of grants: {}: {error}",
                self.path.display()
            ))
        };
        let text = self.text().map_err(|error| unread(&error))?;
        if let (Some((before, _)), Some(refused)) = (&known, checked)
            && *before == text
        {
            return refused;
        }
        let check = Arc::new(GrantCheck::new(self.node, &text).ok_or_else(|| unread(&"it contains no key"))?);
        *self.lock() = Some((text, Arc::clone(&check)));
        check.check(signed, now)
    }

    /// Reads the file, which belongs to the service: never more than a key needs, and only from a file.
    fn text(&self) -> io::Result<String> {
        let mut text = String::new();
        let file = File::options()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&self.path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        file.take(GRANT_KEY_FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(String, Arc<GrantCheck>)>> {
        self.read.lock().expect("no code panics while it holds the lock of the key")
    }
}
