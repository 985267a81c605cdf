//! One clone of a source: its command in the sandbox, its egress grant, its result.

use std::time::Duration;

use super::{Cloned, EgressAttachment, Failed, Failure, SandboxSession};
use crate::{
    base::{
        limit::{
            EXEC_SUMMARY_BYTES_MAX, SOURCE_BYTES_MAX, SOURCE_OUTPUT_BYTES_MAX, SOURCE_STALL_SECONDS,
            SOURCE_TIMEOUT,
        },
        text::{self, hex},
    },
    domain::source::{self, PinnedSource, RepositoryLocation},
    egress::{Grant, PROOF_HEADER, Seen},
    sandbox::{
        CERTIFICATES, Cause, Exec, Exit, Fault, OutputRange, OutputStream, PROXY_PORT, Sandbox, SandboxFence,
    },
    store,
};

/// Script that runs in the sandbox.
const SCRIPT: &str = include_str!("clone.sh");
/// Exit codes of the script with a defined meaning; every other code counts as a network failure.
const PATH_TAKEN: i32 = 3;
const NO_REF: i32 = 4;
const NO_SHA: i32 = 5;
const NO_CHECKOUT: i32 = 6;
const DISK_TOO_SMALL: i32 = 7;
/// Message of git for a full disk, from the C library.
const NO_SPACE: &str = "No space left on device";

/// A clone whose start is in the log.
pub(super) struct Cloning<'a> {
    pub session: &'a SandboxSession,
    pub egress: &'a EgressAttachment,
    pub sandbox: &'a dyn Sandbox,
    pub sandbox_fence: SandboxFence,
    pub clone_id: String,
    pub source: &'a PinnedSource,
}

impl Cloning<'_> {
    /// Runs the clone to its end. Dropping the future revokes its egress grant; the command then fails, or
    /// the next worker kills it.
    pub(crate) async fn run(&self) -> Result<Cloned, Failed> {
        let place = source::place(&self.source.url)
            .map_err(|words| Failure::for_good(Failure::NOT_ALLOWED, format!("its URL {words}")))?;
        match place {
            RepositoryLocation::Local(path) => {
                let sent = self.send_bundle(&path).await?;
                let exit = self.execute(Vec::new(), &sent.directory).await?;
                self.outcome(exit, &Seen { bytes: sent.bytes, ..Seen::default() }).await
            }
            RepositoryLocation::Host { host, port, path } => {
                let proof = hex(&self.session.sandboxes.journal.origin().bytes::<20>());
                let credential = self.credential(&place_of(&host, port, &path)).await?;
                let settings = settings(&proof);
                let (bytes_max, seen) = (SOURCE_BYTES_MAX, Default::default());
                let grant = Grant { host, port, path, proof, credential, bytes_max, seen };
                let granted = self.egress.allow(grant);
                let exit = self.execute(settings, "").await?;
                self.outcome(exit, &granted.seen()).await
            }
        }
    }

    /// Id and key of the credential for the repository.
    async fn credential(
        &self,
        place: &RepositoryLocation,
    ) -> Result<Option<(String, crate::base::SecretString)>, Failed> {
        let Some(id) = self.source.credential_id else { return Ok(None) };
        let lost = |words: &str| Failure::for_good(Failure::AUTH_REQUIRED, words);
        match self.session.sandboxes.store.open_credential(self.session.fence.org, id).await {
            Ok(open) => {
                let fits = open.base_url.as_deref().is_some_and(|base| source::covers(base, place));
                if open.provider != source::PROVIDER || !fits {
                    return Err(lost("its credential is for something else").into());
                }
                Ok(Some((id.to_string(), open.key)))
            }
            Err(store::Error::NotFound) => Err(lost("the credential that it pinned was deleted").into()),
            Err(error) => Err(Failure::for_now(error.to_string()).into()),
        }
    }

    /// Runs the script. `directory` contains the parts of a bundle; empty without one.
    async fn execute(&self, env: Vec<(String, String)>, directory: &str) -> Result<Exit, Fault> {
        let PinnedSource { url, reference, sha, path, depth, .. } = self.source;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let depth = depth.map(|depth| depth.to_string()).unwrap_or_default();
        let mark = self.mark();
        let words = ["bash", "-c", SCRIPT, "clone", &mark, path, url, &text(reference)];
        let rest = [&text(sha), &depth, url, directory];
        let argv = words.into_iter().chain(rest).map(str::to_owned).collect();
        let exec = Exec {
            id: self.clone_id.clone(),
            argv,
            cwd: "/".to_owned(),
            env: fixed().into_iter().chain(env).collect(),
            timeout: SOURCE_TIMEOUT,
            output_bytes_max: SOURCE_OUTPUT_BYTES_MAX,
            is_service: false,
        };
        self.sandbox.start(self.sandbox_fence, &exec).await?;
        self.sandbox.wait(self.sandbox_fence, &self.clone_id).await
    }

    /// Result of the clone, from the command's exit and the host's responses.
    async fn outcome(&self, exit: Exit, seen: &Seen) -> Result<Cloned, Failed> {
        if exit.code == 0 && exit.cause == Cause::Exited {
            let said = self.said(OutputStream::Stdout, exit.stdout_bytes).await;
            let sha = said.lines().next().unwrap_or_default().trim();
            let is_sha = [40, 64].contains(&sha.len()) && sha.bytes().all(|byte| byte.is_ascii_hexdigit());
            return Ok(Cloned { sha: is_sha.then(|| sha.to_owned()), bytes: seen.bytes });
        }
        let words = self.said(OutputStream::Stderr, exit.stderr_bytes).await;
        Err(failure(&exit, seen, &words).into())
    }

    /// Unique name for the temporary files of this source.
    pub(crate) fn mark(&self) -> String {
        format!("{}-{}", self.session.fence.session, self.source.name)
    }

    /// The last bytes of an output, as far as the sandbox stores it.
    async fn said(&self, stream: OutputStream, written: u64) -> String {
        let kept = written.min(SOURCE_OUTPUT_BYTES_MAX);
        let offset = kept.saturating_sub(EXEC_SUMMARY_BYTES_MAX as u64);
        let range = OutputRange { stream, offset, bytes_max: EXEC_SUMMARY_BYTES_MAX };
        let bytes = self.sandbox.output(self.sandbox_fence, &self.clone_id, range).await.unwrap_or_default();
        text::truncate(text::printable(&bytes).trim(), EXEC_SUMMARY_BYTES_MAX).to_owned()
    }
}

fn place_of(host: &str, port: u16, path: &str) -> RepositoryLocation {
    RepositoryLocation::Host { host: host.to_owned(), port, path: path.to_owned() }
}

/// Reason of a failed clone: from the host's response if that is an error, else from the exit code.
fn failure(exit: &Exit, seen: &Seen, words: &str) -> Failure {
    if seen.is_too_large {
        let message = format!("it is larger than {} MiB; name a `depth`", SOURCE_BYTES_MAX >> 20);
        return Failure::for_good(Failure::TOO_LARGE, message);
    }
    match exit.cause {
        Cause::Timeout => {
            let message = format!("it was not cloned within {} s", SOURCE_TIMEOUT.as_secs());
            return Failure::for_good(Failure::TIMEOUT, message);
        }
        Cause::Oom => return Failure::for_good(Failure::CHECKOUT, "the sandbox ran out of memory"),
        Cause::DiskFull => return disk_too_small(),
        Cause::Killed => return Failure::for_now("the clone was killed"),
        Cause::Exited => {}
    }
    if let Some(reason) = &seen.broken {
        return Failure::for_now(format!("reading from the host failed: {reason}"));
    }
    let status = seen.status.map_or(200, |status| status.as_u16());
    match (status, exit.code) {
        (408 | 425 | 429 | 500.., _) => Failure::for_now(format!("the host answered {status}")),
        (300..400, _) => {
            let message = format!("the host answered {status}: the repository is somewhere else");
            Failure::for_good(Failure::AUTH_REQUIRED, message)
        }
        (400.., _) => {
            let message = format!(
                "the host answered {status}: there is no such repository, or it wants another credential"
            );
            Failure::for_good(Failure::AUTH_REQUIRED, message)
        }
        // git removes its files on failure, so free space cannot be checked afterwards.
        (_, code) if code == DISK_TOO_SMALL || words.contains(NO_SPACE) => disk_too_small(),
        (_, PATH_TAKEN) => Failure::for_good(Failure::PATH_TAKEN, words),
        (_, NO_REF) => Failure::for_good(Failure::REF_NOT_FOUND, words),
        (_, NO_SHA) => Failure::for_good(Failure::SHA_NOT_FOUND, words),
        (_, NO_CHECKOUT) => Failure::for_good(Failure::CHECKOUT, words),
        _ => Failure::for_now(words),
    }
}

fn disk_too_small() -> Failure {
    Failure::for_good(Failure::TOO_LARGE, "the session's disk has no space for it")
}

/// Variables that isolate git: no other configuration, no prompts, only the transports https and file.
fn fixed() -> Vec<(String, String)> {
    let fixed = [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ASKPASS", ""),
        ("GIT_ALLOW_PROTOCOL", "https:file"),
        ("GIT_SSL_CAINFO", CERTIFICATES),
        ("GIT_CONFIG_COUNT", "0"),
        ("NO_PROXY", ""),
        ("no_proxy", ""),
    ];
    fixed.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

/// Variables with which git reaches a host: through the proxy, with the proof of its grant. The proof is in
/// no file and in no argument.
fn settings(proof: &str) -> Vec<(String, String)> {
    let stall = Duration::from_secs(SOURCE_STALL_SECONDS).as_secs().to_string();
    let settings = [
        ("http.extraHeader", format!("{PROOF_HEADER}: {proof}")),
        ("http.proxy", format!("http://127.0.0.1:{PROXY_PORT}")),
        ("http.followRedirects", "initial".to_owned()),
        ("http.lowSpeedLimit", "1".to_owned()),
        ("http.lowSpeedTime", stall),
        ("credential.helper", String::new()),
        ("core.hooksPath", "/dev/null".to_owned()),
    ];
    let mut env = vec![("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string())];
    for (at, (name, value)) in settings.into_iter().enumerate() {
        env.push((format!("GIT_CONFIG_KEY_{at}"), name.to_owned()));
        env.push((format!("GIT_CONFIG_VALUE_{at}"), value));
    }
    env
}
