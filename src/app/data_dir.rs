//! The data directory of a node: its master key, its id, and other small files.
//!
//! Several processes may start on one directory at the same moment: each file is created once, complete, and
//! all of them use what the first one wrote.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use uuid::Uuid;

use crate::{
    base::{Origin, seal::MasterKey},
    config,
};

/// Creates the data directory if missing and checks that it is writable.
pub(super) fn prepared(data_dir: &Path, origin: &Origin) -> anyhow::Result<PathBuf> {
    let named = || format!("SOJOURN_DATA_DIR: {} cannot be used", data_dir.display());
    fs::create_dir_all(data_dir).with_context(named)?;
    let data_dir = fs::canonicalize(data_dir).with_context(named)?;
    // Of this process only: others may start on the same directory at this moment.
    let probe = data_dir.join(format!(".writable-{}", Uuid::from_bytes(origin.bytes())));
    fs::write(&probe, b"").with_context(named)?;
    fs::remove_file(&probe).with_context(named)?;
    Ok(data_dir)
}

/// Master key from the settings, else the one in the data directory.
pub(super) fn master_key(
    database: &config::Database,
    data_dir: &Path,
    origin: &Origin,
) -> anyhow::Result<MasterKey> {
    let file = data_dir.join("master-key");
    let text = match &database.master_key {
        Some(text) => text.clone(),
        None => match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = MasterKey::generate(origin);
                write_secret(&file, &made.to_hex(), origin)?;
                // Another process may have been first: its key counts.
                fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?
            }
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", file.display())),
        },
    };
    parsed(&text, "SOJOURN_MASTER_KEY")
}

pub(super) fn parsed(text: &str, name: &str) -> anyhow::Result<MasterKey> {
    match MasterKey::parse(text) {
        Some(key) => Ok(key),
        None => bail!("{name} must be 64 hexadecimal characters or a phrase of 32 or more"),
    }
}

/// Id of this node, stored with its disks.
pub(super) fn node_id(data_dir: &Path, origin: &Origin) -> anyhow::Result<Uuid> {
    let file = data_dir.join("node-id");
    match fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().with_context(|| format!("{} contains no node id", file.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            write_secret(&file, &Uuid::from_bytes(origin.bytes()).to_string(), origin)?;
            // Another process of this node may have been first.
            Ok(fs::read_to_string(&file)?.trim().parse()?)
        }
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", file.display())),
    }
}

/// Writes a file that only its owner can read: complete, or not at all. Returns false, and changes nothing,
/// if the file exists.
pub(super) fn write_secret(file: &Path, text: &str, origin: &Origin) -> anyhow::Result<bool> {
    let named = || format!("{} cannot be written", file.display());
    let draft = file.with_extension(format!("draft-{}", Uuid::from_bytes(origin.bytes())));
    let mut open = fs::OpenOptions::new();
    let mut writer = open.write(true).create_new(true).mode(0o600).open(&draft).with_context(named)?;
    let written = writer.write_all(text.as_bytes()).and_then(|()| writer.sync_all());
    let linked = written.and_then(|()| fs::hard_link(&draft, file));
    fs::remove_file(&draft).with_context(named)?;
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(named),
    }
}
