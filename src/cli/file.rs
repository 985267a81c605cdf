//! `sojourn file ...`: stored files, and those that are attached to messages.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    client::{Client, Connection, query},
    print,
};

/// File commands.
#[derive(Debug, Subcommand)]
pub(super) enum File {
    /// List files, newest first
    List {
        /// Only the files of this session
        #[arg(long)]
        session: Option<String>,
    },
    /// Upload a file; it exists until it is deleted
    Upload {
        file: PathBuf,
        /// Name in the sandbox [default: that of the file]
        #[arg(long)]
        name: Option<String>,
    },
    /// Show a file
    Get { file: String },
    /// Write the bytes of a file to standard output, or to a file
    Download {
        file: String,
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
    /// Delete a file that no session uses
    Delete { file: String },
}

/// Runs a command.
pub(super) async fn run(command: File, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        File::List { session } => {
            let columns = [
                ("FILE", "id"),
                ("NAME", "name"),
                ("TYPE", "media_type"),
                ("BYTES", "bytes"),
                ("KEPT", "kept"),
                ("CREATED", "created_at"),
            ];
            let path = format!("/files{}", query([("session", session)]));
            print::page(&client, &path, &columns, json).await?;
        }
        File::Upload { file, name } => {
            print::field(&upload(&client, &file, name).await?, json, "id");
        }
        File::Get { file } => print::document(&client.get(&format!("/files/{file}")).await?),
        File::Download { file, output } => {
            client.download_to(&format!("/files/{file}/content"), output.as_deref()).await?;
        }
        File::Delete { file } => drop(client.delete(&format!("/files/{file}")).await?),
    }
    Ok(())
}

async fn upload(client: &Client, file: &Path, name: Option<String>) -> anyhow::Result<Value> {
    let content = fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let name = name.or_else(|| Some(file.file_name()?.to_string_lossy().into_owned()));
    let path = format!("/files{}", query([("name", name)]));
    client.upload(&path, "application/octet-stream", content).await
}

/// Uploads files. Returns the parts of a message that has them.
pub(super) async fn attach(client: &Client, files: &[PathBuf]) -> anyhow::Result<Vec<Value>> {
    let mut content = Vec::with_capacity(files.len());
    for file in files {
        let stored = upload(client, file, None).await.with_context(|| file.display().to_string())?;
        let kind = if stored["image"].is_null() { "document" } else { "image" };
        content.push(json!({ "type": kind, "source": { "type": "file", "file_id": stored["id"] } }));
    }
    Ok(content)
}
