//! A session's sandbox from the command line: commands, copies, directories.

use std::{
    fs::{self, File},
    io::{Write, stderr, stdin, stdout},
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    base::Origin,
    cli::{
        client::{Client, query},
        print::{self, Column},
    },
    domain::OperationId,
};

/// How often a command that goes on is asked for.
const POLL: Duration = Duration::from_secs(1);
/// Exit code when nobody knows how the command ended.
const NO_END: u8 = 125;

/// What can be done with the sandbox of a session.
#[derive(Debug, Subcommand)]
pub enum Use {
    /// Run a command in the session's sandbox; its exit code is the program's
    Exec(Exec),
    /// Copy a file into or out of the session's sandbox
    Cp {
        /// SESSION:PATH, or a file of this machine
        from: String,
        /// SESSION:PATH, or a file or directory of this machine
        to: String,
    },
    /// Write a directory of the session's sandbox to standard output, as a tar archive
    Tar {
        session: String,
        /// Absolute, or below /workspace
        path: Option<String>,
    },
    /// Unpack a tar archive from standard input below a directory of the session's sandbox
    Untar {
        session: String,
        /// Absolute, or below /workspace
        path: Option<String>,
    },
    /// List a directory of the session's sandbox
    Ls {
        session: String,
        /// Absolute, or below /workspace
        path: Option<String>,
    },
}

/// A command to run in the sandbox of a session.
#[derive(Debug, Args)]
pub struct Exec {
    pub session: String,
    /// Where: an absolute path [default: /workspace]
    #[arg(long, value_name = "DIRECTORY")]
    cwd: Option<String>,
    /// Wall time at most, in seconds
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// A variable, as NAME=VALUE
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// One word is a line for bash, several are a program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// Does it. Returns the exit code.
pub async fn run(client: &Client, wanted: Use, json: bool) -> anyhow::Result<u8> {
    match wanted {
        Use::Exec(wanted) => return exec(client, wanted, json).await,
        Use::Cp { from, to } => copy(client, &from, &to).await?,
        Use::Tar { session, path } => {
            let path = format!("/sessions/{session}/archive.tar{}", query([("path", path)]));
            client.download(&path, &mut stdout().lock()).await?;
        }
        Use::Untar { session, path } => {
            let path = format!("/sessions/{session}/archive.tar{}", query([("path", path)]));
            let input = tokio::fs::File::from_std(stdin().as_fd().try_clone_to_owned()?.into());
            let written = client.upload_archive(&path, input).await?;
            print::answer(&written, json, &print::cell(&written["path"]));
        }
        Use::Ls { session, path } => list(client, &session, path, json).await?,
    }
    Ok(0)
}

/// Runs a command; its output and exit code are those of the program.
async fn exec(client: &Client, wanted: Exec, json: bool) -> anyhow::Result<u8> {
    let mut body = json!({ "timeout_seconds": wanted.timeout, "env": variables(&wanted.env)? });
    body["command"] = match wanted.command.as_slice() {
        [line] => json!(line),
        words => json!(words),
    };
    if let Some(cwd) = &wanted.cwd {
        body["working_dir"] = json!(cwd);
    }
    let path = format!("/sessions/{}/exec", wanted.session);
    // Sent again after a cut, it is the same command.
    let key: OperationId = Origin::system().id();
    let mut ran = client.post_once(&path, &body, &key.to_string()).await?;
    while matches!(ran["state"].as_str(), Some("queued" | "running")) {
        let _ = writeln!(stderr(), "{} is {} ...", print::cell(&ran["id"]), print::cell(&ran["state"]));
        tokio::time::sleep(POLL).await;
        ran = client.get(&format!("{path}/{}", print::cell(&ran["id"]))).await?;
    }
    if json {
        print::document(&ran);
    } else {
        show(&ran)?;
    }
    match ran["exit_code"].as_i64() {
        Some(code) => Ok(u8::try_from(code).unwrap_or(NO_END)),
        None => {
            let error = &ran["error"];
            eprintln!("{}: {}", print::cell(&error["code"]), print::cell(&error["message"]));
            Ok(NO_END)
        }
    }
}

fn show(ran: &Value) -> anyhow::Result<()> {
    let text = |name: &str| ran[name].as_str().unwrap_or_default();
    stdout().write_all(text("stdout").as_bytes())?;
    stderr().write_all(text("stderr").as_bytes())?;
    for (name, kept) in [("stdout", text("stdout").len()), ("stderr", text("stderr").len())] {
        let written = ran[format!("{name}_bytes")].as_u64().unwrap_or_default();
        if written > 0 && kept == 0 || written as usize > kept.max(256 << 10) {
            eprintln!("{name} had {written} bytes; only its beginning was kept");
        }
    }
    Ok(())
}

fn variables(given: &[String]) -> anyhow::Result<Value> {
    let pair = |one: &String| {
        let (name, value) = one.split_once('=').with_context(|| format!("`{one}` is not NAME=VALUE"))?;
        Ok((name.to_owned(), json!(value)))
    };
    Ok(Value::Object(given.iter().map(pair).collect::<anyhow::Result<_>>()?))
}

/// Copies one file: `session:path` is one of a session, anything else is one of here.
async fn copy(client: &Client, from: &str, to: &str) -> anyhow::Result<()> {
    match (place(from), place(to)) {
        (Some((session, path)), None) => {
            let name = path.rsplit('/').next().unwrap_or_default();
            let local = PathBuf::from(to);
            let local = if local.is_dir() { local.join(name) } else { local };
            download(client, session, path, &local).await
        }
        (None, Some((session, path))) => {
            let content = fs::read(from).with_context(|| from.to_owned())?;
            let name = Path::new(from).file_name().map(|name| name.to_string_lossy().into_owned());
            let path = match path.ends_with('/') || path.is_empty() {
                true => format!("{path}{}", name.unwrap_or_default()),
                false => path.to_owned(),
            };
            let query = query([("path", Some(path))]);
            client.upload_in_place(&format!("/sessions/{session}/files{query}"), content).await.map(drop)
        }
        _ => bail!("one of the two is SESSION:PATH, the other a file of this machine"),
    }
}

/// Parts of a file until there is no more, under another name until then.
async fn download(client: &Client, session: &str, path: &str, local: &Path) -> anyhow::Result<()> {
    let query = query([("path", Some(path.to_owned()))]);
    let partial = local.with_added_extension("part");
    let mut file = File::create(&partial).with_context(|| partial.display().to_string())?;
    let source = format!("/sessions/{session}/files{query}");
    let copied = client.download_parts(&source, &mut file).await;
    match copied {
        Ok(()) => fs::rename(&partial, local).with_context(|| local.display().to_string()),
        Err(error) => {
            let _ = fs::remove_file(&partial);
            Err(error)
        }
    }
}

/// Names what a directory holds.
async fn list(client: &Client, session: &str, path: Option<String>, json: bool) -> anyhow::Result<()> {
    let listed = client.get(&format!("/sessions/{session}/files/list{}", query([("path", path)]))).await?;
    if json {
        print::document(&listed);
        return Ok(());
    }
    let columns = [
        Column::text("TYPE", "type"),
        Column::text("BYTES", "bytes"),
        Column::text("MODIFIED", "modified_at"),
        Column::text("NAME", "name"),
    ];
    print::rows(listed["entries"].as_array().cloned().unwrap_or_default(), &columns, false);
    if listed["truncated"] == true {
        eprintln!("there are more");
    }
    Ok(())
}

/// `ses_...:path`.
fn place(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(session, _)| session.starts_with("ses_"))
}
