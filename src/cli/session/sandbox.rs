//! A session's sandbox on the command line: commands, copies, directories.

use std::{
    fs::{self, File},
    io::{Write, stderr, stdin, stdout},
    os::fd::AsFd,
    path::{Path, PathBuf},
    pin::pin,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    base::{Origin, limit::DIRECT_OUTPUT_BYTES_MAX},
    cli::{
        client::{Client, query},
        print,
    },
    domain::OperationId,
};

/// Exit code when the result of the command is unknown.
const NO_END: u8 = 125;

/// Sandbox commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Use {
    /// Run a command in the session's sandbox; exits with the command's exit code
    Exec(Exec),
    /// Copy a file to or from the session's sandbox
    Cp {
        /// SESSION:PATH, or a local file
        from: String,
        /// SESSION:PATH, or a local file or directory
        to: String,
    },
    /// Write a directory of the session's sandbox to standard output as a tar archive
    Tar {
        session: String,
        /// Absolute path, or relative to /workspace
        path: Option<String>,
    },
    /// Unpack a tar archive from standard input into a directory of the session's sandbox
    Untar {
        session: String,
        /// Absolute path, or relative to /workspace
        path: Option<String>,
    },
    /// End a command of the session's sandbox and all processes it started
    Kill {
        session: String,
        exec: String,
        /// Send this signal instead: HUP, INT, QUIT, USR1, USR2, TERM or KILL
        #[arg(long)]
        signal: Option<String>,
    },
    /// Start the session's sandbox; reopens a stopped session
    Start { session: String },
    /// Cancel the running turn, checkpoint the files and remove the sandbox until the session is started
    /// again
    Stop {
        session: String,
        /// Reason, for the log
        #[arg(long)]
        reason: Option<String>,
        /// Stop all sessions below it too
        #[arg(long)]
        children: bool,
    },
    /// Pause a session: nothing starts until it is resumed
    Pause { session: String },
    /// Resume a paused session
    Resume { session: String },
    /// Process a session's pending work now, including a turn that waits for a retry
    Wake { session: String },
    /// Find the newest session of a client that is not archived
    Reattach { client_id: String },
    /// Checkpoint the session's files; with --list, list checkpoints
    Checkpoint {
        session: String,
        #[arg(long)]
        list: bool,
    },
    /// Restore a checkpoint; later changes of the files are lost
    Restore { session: String, checkpoint: String },
    /// Show or change the defaults of commands; a name without a value removes it
    Context {
        session: String,
        /// Working directory, an absolute path
        #[arg(long, value_name = "DIRECTORY")]
        cwd: Option<String>,
        /// Environment variable as NAME=VALUE; NAME removes it
        #[arg(long = "env", value_name = "NAME=VALUE")]
        env: Vec<String>,
        /// Client state as KEY=JSON; KEY removes it
        #[arg(long = "state", value_name = "KEY=JSON")]
        state: Vec<String>,
    },
    /// List a directory of the session's sandbox
    Ls {
        session: String,
        /// Absolute path, or relative to /workspace
        path: Option<String>,
    },
}

/// A command to run in the session's sandbox.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    pub session: String,
    /// Working directory, an absolute path [default: /workspace]
    #[arg(long, value_name = "DIRECTORY")]
    cwd: Option<String>,
    /// Maximum wall-clock time in seconds
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// Environment variable as NAME=VALUE
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Command: one argument is a bash command line, several are a program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// Runs a command. Returns the exit code.
pub(super) async fn run(client: &Client, wanted: Use, json: bool) -> anyhow::Result<u8> {
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
            print::field(&written, json, "path");
        }
        Use::Kill { session, exec, signal } => {
            let path = format!("/sessions/{session}/exec/{exec}/kill");
            let ended = client.post(&path, &json!({ "signal": signal })).await?;
            print::field(&ended, json, "state");
        }
        Use::Start { session } => act(client, &session, "start", &json!({}), json).await?,
        Use::Stop { session, reason, children } => {
            let body = json!({ "reason": reason, "children": children });
            act(client, &session, "stop", &body, json).await?
        }
        Use::Pause { session } => act(client, &session, "pause", &json!({}), json).await?,
        Use::Resume { session } => act(client, &session, "resume", &json!({}), json).await?,
        Use::Wake { session } => act(client, &session, "wake", &json!({}), json).await?,
        Use::Reattach { client_id } => {
            let found = client.post("/sessions/reattach", &json!({ "client_id": client_id })).await?;
            if found["reattached"] != true {
                bail!("the client has no open session");
            }
            print::answer(&found["session"], json, &print::cell(&found["session"]["id"]));
        }
        Use::Checkpoint { session, list: true } => checkpoints(client, &session, json).await?,
        Use::Checkpoint { session, list: false } => {
            let saved = client.post(&format!("/sessions/{session}/checkpoints"), &json!({})).await?;
            print::field(&saved, json, "id");
        }
        Use::Restore { session, checkpoint } => {
            let body = json!({ "checkpoint_id": checkpoint });
            let restored = client.post(&format!("/sessions/{session}/restore"), &body).await?;
            print::field(&restored, json, "id");
        }
        Use::Context { session, cwd, env, state } => context(client, &session, cwd, &env, &state).await?,
        Use::Ls { session, path } => list(client, &session, path, json).await?,
    }
    Ok(0)
}

/// Runs a command with its output and exit code passed through.
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
    // The idempotency key makes a repeated request after a connection failure start no second command.
    let key: OperationId = Origin::system().id();
    let begun = client.claim_slot(&path, &body, &key.to_string()).await?;
    let path = format!("{path}/{}", print::cell(&begun["id"]));
    let ended = follow(client, &path, !json).await?;
    if json {
        print::document(&client.get(&path).await?);
    }
    match ended["exit_code"].as_i64() {
        Some(code) => Ok(u8::try_from(code).unwrap_or(NO_END)),
        None => {
            let error = &ended["error"];
            eprintln!("{}: {}", print::cell(&error["code"]), print::cell(&error["message"]));
            Ok(NO_END)
        }
    }
}

/// Waits for the end of a command and prints its output meanwhile.
async fn follow(client: &Client, path: &str, shows: bool) -> anyhow::Result<Value> {
    let mut frames = pin!(client.follow_exec(path));
    while let Some(frame) = frames.next().await {
        let frame = frame?;
        if frame["type"] == "exec.ended" {
            for name in ["stdout", "stderr"].into_iter().filter(|_| shows) {
                let written = frame[format!("{name}_bytes")].as_u64().unwrap_or_default();
                if written > DIRECT_OUTPUT_BYTES_MAX {
                    eprintln!("{name} had {written} bytes; only the beginning was stored");
                }
            }
            return Ok(frame);
        }
        let text = frame["text"].as_str().filter(|_| shows).unwrap_or_default();
        if frame["stream"] == "stderr" {
            stderr().write_all(text.as_bytes())?;
        } else {
            stdout().write_all(text.as_bytes())?;
            stdout().flush()?;
        }
    }
    bail!("the stream ended before the command did")
}

fn variables(given: &[String]) -> anyhow::Result<Value> {
    let pair = |one: &String| {
        let (name, value) = one.split_once('=').with_context(|| format!("`{one}` is not NAME=VALUE"))?;
        Ok((name.to_owned(), json!(value)))
    };
    Ok(Value::Object(given.iter().map(pair).collect::<anyhow::Result<_>>()?))
}

/// Copies one file; `session:path` is a path in a session, anything else a local path.
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
        _ => bail!("exactly one of the two must be SESSION:PATH, the other a local file"),
    }
}

/// Downloads a file in parts to a temporary name, which is renamed at the end.
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

pub(super) async fn act(
    client: &Client,
    session: &str,
    verb: &str,
    body: &Value,
    json: bool,
) -> anyhow::Result<()> {
    let shown = client.post(&format!("/sessions/{session}/{verb}"), body).await?;
    print::field(&shown, json, "status");
    Ok(())
}

async fn checkpoints(client: &Client, session: &str, json: bool) -> anyhow::Result<()> {
    let columns =
        [("CHECKPOINT", "id"), ("CREATED", "created_at"), ("BYTES", "bytes"), ("MANUAL", "by_hand")];
    print::page(client, &format!("/sessions/{session}/checkpoints"), &columns, json).await
}

/// Prints the context, after applying changes if any.
async fn context(
    client: &Client,
    session: &str,
    cwd: Option<String>,
    env: &[String],
    state: &[String],
) -> anyhow::Result<()> {
    let path = format!("/sessions/{session}/context");
    let mut change = serde_json::Map::new();
    if let Some(cwd) = cwd {
        change.insert("working_dir".to_owned(), json!(cwd));
    }
    let pairs = |given: &[String], read: fn(&str) -> anyhow::Result<Value>| {
        let pair = |one: &String| match one.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), read(value)?)),
            None => Ok((one.clone(), Value::Null)),
        };
        given.iter().map(pair).collect::<anyhow::Result<serde_json::Map<_, _>>>()
    };
    if !env.is_empty() {
        change.insert("env_vars".to_owned(), Value::Object(pairs(env, |value| Ok(json!(value)))?));
    }
    if !state.is_empty() {
        let read =
            |value: &str| serde_json::from_str(value).with_context(|| format!("`{value}` is not JSON"));
        change.insert("custom_state".to_owned(), Value::Object(pairs(state, read)?));
    }
    let shown = match change.is_empty() {
        true => client.get(&path).await?,
        false => client.patch(&path, &Value::Object(change)).await?,
    };
    print::document(&shown);
    Ok(())
}

/// Lists a directory.
async fn list(client: &Client, session: &str, path: Option<String>, json: bool) -> anyhow::Result<()> {
    let listed = client.get(&format!("/sessions/{session}/files/list{}", query([("path", path)]))).await?;
    if json {
        print::document(&listed);
        return Ok(());
    }
    let columns = [("TYPE", "type"), ("BYTES", "bytes"), ("MODIFIED", "modified_at"), ("NAME", "name")];
    print::rows(listed["entries"].as_array().cloned().unwrap_or_default(), &columns, false);
    if listed["truncated"] == true {
        eprintln!("more entries exist");
    }
    Ok(())
}

/// Splits `ses_...:path`.
fn place(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(session, _)| session.starts_with("ses_"))
}
