//! `sojourn skill ...`: folders with instructions that agents read.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::Value;

use super::{
    client::{Client, Connection, query},
    print,
};

/// Skill commands.
#[derive(Debug, Subcommand)]
pub(super) enum Skill {
    /// List versions of skills, newest first
    List {
        /// Only the versions of the skill with this name
        #[arg(long)]
        name: Option<String>,
    },
    /// Upload a folder with a SKILL.md; prints the version, which is the newest one if the files are the same
    Push { folder: PathBuf },
    /// Show a version
    Get { skill: String },
    /// Write the tar archive of a version to standard output, or to a file
    Download {
        skill: String,
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
    /// Delete a version that no agent and no session uses
    Delete { skill: String },
}

/// Runs a command.
pub(super) async fn run(command: Skill, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        Skill::List { name } => {
            let columns = [
                ("SKILL", "id"),
                ("NAME", "name"),
                ("VERSION", "version"),
                ("FILES", "files"),
                ("BYTES", "bytes"),
                ("CREATED", "created_at"),
            ];
            print::page(&client, &format!("/skills{}", query([("name", name)])), &columns, json).await?;
        }
        Skill::Push { folder } => {
            let skill = push(&client, &folder).await?;
            let line = format!(
                "{} {} version {}",
                print::cell(&skill["id"]),
                print::cell(&skill["name"]),
                skill["version"]
            );
            print::answer(&skill, json, &line);
        }
        Skill::Get { skill } => print::document(&client.get(&format!("/skills/{skill}")).await?),
        Skill::Download { skill, output } => {
            client.download_to(&format!("/skills/{skill}/content"), output.as_deref()).await?;
        }
        Skill::Delete { skill } => drop(client.delete(&format!("/skills/{skill}")).await?),
    }
    Ok(())
}

async fn push(client: &Client, folder: &Path) -> anyhow::Result<Value> {
    let mut archive = tar::Builder::new(Vec::new());
    add(&mut archive, folder, Path::new(""))?;
    client.upload("/skills", "application/x-tar", archive.into_inner()?).await
}

/// Adds the files of a directory, which is at `below` in the archive.
fn add(archive: &mut tar::Builder<Vec<u8>>, directory: &Path, below: &Path) -> anyhow::Result<()> {
    let shown = directory.display();
    let entries = fs::read_dir(directory).with_context(|| format!("{shown} cannot be read"))?;
    for entry in entries {
        let entry = entry?;
        let (path, below) = (entry.path(), below.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            add(archive, &path, &below)?;
        } else if kind.is_file() {
            let content = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(entry.metadata()?.permissions().mode() & 0o777);
            archive.append_data(&mut header, below, content.as_slice())?;
        } else {
            bail!("{} is a link or a device; a skill has files and directories only", path.display());
        }
    }
    Ok(())
}
