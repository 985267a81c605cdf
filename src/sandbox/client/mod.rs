//! Client of `sojourn-init`'s socket.
//!
//! Called by the providers. Each call uses its own connection, so a call that is dropped leaves nothing but
//! its effect in the sandbox. Responses are untrusted input: lengths are bounded before anything is
//! allocated, and a response that does not match the call is a fault, never a panic.

mod archive;

use std::{
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use sojourn_init::{
    frame,
    protocol::{self, Answer, Call, ExecSpec, FaultKind, Outcome},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use super::{Cause, Exec, Exit, Fault, FilePart, OutputRange, OutputStream, Signal, frames};
use crate::base::{limit, text};

const _: () = assert!(limit::INIT_FRAME_BYTES_MAX == frame::BYTES_MAX);

/// The init process of one sandbox.
pub(crate) struct Init {
    control_dir: PathBuf,
}

impl Init {
    /// Addresses the init whose socket is in this directory; it may not exist.
    pub(crate) fn at(control_dir: PathBuf) -> Self {
        Self { control_dir }
    }

    /// Raises the sandbox's epoch to this one.
    pub(crate) async fn hello(&self, epoch: i64) -> Result<(), Fault> {
        match self.call(&Call::Hello { epoch }, &[], limit::INIT_CALL_TIMEOUT).await? {
            (Answer::Status { .. }, _) => Ok(()),
            (other, _) => Err(unexpected_response(&other)),
        }
    }

    /// Sends a status call and discards the response.
    pub(crate) async fn touch(&self) -> Result<(), Fault> {
        self.call(&Call::Status {}, &[], limit::SANDBOX_KEEPALIVE_TIMEOUT).await.map(drop)
    }

    /// Returns the number of running commands; also raises the epoch.
    pub(crate) async fn running(&self, epoch: i64) -> Result<u64, Fault> {
        match self.call(&Call::Hello { epoch }, &[], limit::INIT_CALL_TIMEOUT).await? {
            (Answer::Status { running, .. }, _) => Ok(running),
            (other, _) => Err(unexpected_response(&other)),
        }
    }

    pub(crate) async fn quiesce(&self, epoch: i64) -> Result<(), Fault> {
        done(self.call(&Call::Quiesce { epoch }, &[], limit::INIT_CALL_TIMEOUT).await?)
    }

    pub(crate) async fn start(&self, epoch: i64, exec: &Exec) -> Result<(), Fault> {
        let cwd = if exec.cwd.is_empty() { protocol::WORKSPACE.to_owned() } else { exec.cwd.clone() };
        let exec = ExecSpec {
            id: exec.id.clone(),
            argv: exec.argv.clone(),
            cwd,
            env: exec.env.clone(),
            timeout_ms: millis(exec.timeout),
            grace_ms: millis(limit::KILL_GRACE),
            output_bytes_max: exec.output_bytes_max.min(limit::EXEC_OUTPUT_BYTES_MAX),
            is_service: exec.is_service,
        };
        done(self.call(&Call::Start { epoch, exec }, &[], limit::INIT_CALL_TIMEOUT).await?)
    }

    /// Waits for the end of a command. Waits in slices, so that a sandbox that stopped answering is detected.
    pub(crate) async fn wait(&self, exec_id: &str) -> Result<Exit, Fault> {
        let call = Call::Wait { exec_id: exec_id.to_owned(), timeout_ms: millis(limit::INIT_WAIT_SLICE) };
        loop {
            match self.call(&call, &[], limit::INIT_WAIT_SLICE + limit::INIT_CALL_TIMEOUT).await? {
                (Answer::Running {}, _) => {}
                (Answer::Exit(outcome), _) => return Ok(exit(&outcome)),
                (other, _) => return Err(unexpected_response(&other)),
            }
        }
    }

    pub(crate) async fn output(&self, exec_id: &str, range: OutputRange) -> Result<Vec<u8>, Fault> {
        let OutputRange { stream, offset, bytes_max } = range;
        let stream = match stream {
            OutputStream::Stdout => protocol::Stream::Stdout,
            OutputStream::Stderr => protocol::Stream::Stderr,
        };
        self.read_stream(exec_id, stream, offset, bytes_max).await
    }

    pub(crate) async fn write_input(
        &self,
        epoch: i64,
        exec_id: &str,
        offset: u64,
        text: &str,
    ) -> Result<(), Fault> {
        let call = Call::Input { epoch, exec_id: exec_id.to_owned(), offset, text: text.to_owned() };
        done(self.call(&call, &[], limit::INIT_CALL_TIMEOUT).await?)
    }

    pub(crate) async fn read_input(
        &self,
        exec_id: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Fault> {
        self.read_stream(exec_id, protocol::Stream::Stdin, offset, bytes_max).await
    }

    async fn read_stream(
        &self,
        exec_id: &str,
        stream: protocol::Stream,
        offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Fault> {
        let call = Call::Output { exec_id: exec_id.to_owned(), stream, offset, bytes_max };
        match self.call(&call, &[], limit::INIT_CALL_TIMEOUT).await? {
            (Answer::Output {}, bytes) if bytes.len() <= bytes_max => Ok(bytes),
            (other, _) => Err(unexpected_response(&other)),
        }
    }

    pub(crate) async fn kill(&self, epoch: i64, exec_id: &str) -> Result<(), Fault> {
        let patience = limit::KILL_GRACE + limit::INIT_CALL_TIMEOUT;
        done(self.call(&Call::Kill { epoch, exec_id: exec_id.to_owned() }, &[], patience).await?)
    }

    pub(crate) async fn signal(&self, epoch: i64, exec_id: &str, signal: Signal) -> Result<(), Fault> {
        let signal = match signal {
            Signal::Hup => protocol::Signal::Hup,
            Signal::Int => protocol::Signal::Int,
            Signal::Quit => protocol::Signal::Quit,
            Signal::Usr1 => protocol::Signal::Usr1,
            Signal::Usr2 => protocol::Signal::Usr2,
            Signal::Term => protocol::Signal::Term,
            Signal::Kill => protocol::Signal::Kill,
        };
        let call = Call::Signal { epoch, exec_id: exec_id.to_owned(), signal };
        done(self.call(&call, &[], limit::INIT_CALL_TIMEOUT).await?)
    }

    pub(crate) async fn read_file(
        &self,
        path: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<FilePart, Fault> {
        let call = Call::ReadFile { path: path.to_owned(), offset, bytes_max };
        match self.call(&call, &[], limit::INIT_CALL_TIMEOUT).await? {
            (Answer::File { size }, content) if content.len() <= bytes_max => Ok(FilePart { content, size }),
            (other, _) => Err(unexpected_response(&other)),
        }
    }

    pub(crate) async fn write_file(&self, epoch: i64, path: &str, content: &[u8]) -> Result<(), Fault> {
        let call = Call::WriteFile { epoch, path: path.to_owned() };
        done(self.call(&call, content, limit::INIT_CALL_TIMEOUT).await?)
    }

    /// Sends one call and returns its response; a `Fault` response becomes an error.
    async fn call(
        &self,
        call: &Call,
        payload: &[u8],
        patience: Duration,
    ) -> Result<(Answer, Vec<u8>), Fault> {
        let request = frame::encode(call, payload.len()).map_err(|_| {
            Fault::Refused(format!("a call to a sandbox has at most {} bytes", frame::BYTES_MAX))
        })?;
        let conversation = async {
            let stream = self.connect().await?;
            exchange(stream, &request, payload).await.map_err(ConnectError::Off)
        };
        match timeout(patience, conversation).await {
            Ok(Ok((Answer::Fault { kind, message }, _))) => Err(fault(kind, &message)),
            Ok(Ok(answered)) => Ok(answered),
            Ok(Err(ConnectError::Gone)) => Err(Fault::Gone),
            Ok(Err(ConnectError::Off(error))) => Err(match self.is_alive().await {
                true => Fault::Unavailable(format!("connection to its init broke off: {error}")),
                false => Fault::Gone,
            }),
            Err(_) => Err(Fault::Unavailable(format!("its init did not answer within {patience:?}"))),
        }
    }

    /// Sends a status call after another call broke off, as happens when the sandbox ends. A dying init still
    /// accepts connections, so only a response proves that it is alive; a timeout does not prove that it is
    /// dead.
    async fn is_alive(&self) -> bool {
        !self.hangs_up_on(&Call::Status {}).await
    }

    /// Sends a call to which init responds at once. Returns whether it was not there, or closed the connection.
    async fn hangs_up_on(&self, call: &Call) -> bool {
        let probe = async {
            let request = frame::encode(call, 0)?;
            exchange(self.connect().await?, &request, &[]).await.map_err(ConnectError::Off)
        };
        match timeout(limit::INIT_CALL_TIMEOUT, probe).await {
            Ok(Err(ConnectError::Gone)) => true,
            Ok(Err(ConnectError::Off(error))) => matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ),
            Ok(Ok(_)) | Err(_) => false,
        }
    }

    async fn connect(&self) -> Result<UnixStream, ConnectError> {
        let socket = socket(&self.control_dir).map_err(io::Error::from)?;
        // Connect through the descriptor's /proc path: the sandbox cannot replace it after the check, and it
        // fits the length limit of a socket address.
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        Ok(UnixStream::connect(path).await?)
    }
}

/// Reason for a missing response.
enum ConnectError {
    /// No init listens on the socket.
    Gone,
    Off(io::Error),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Self::Gone,
            _ => Self::Off(error),
        }
    }
}

/// Opens the socket itself, without following links in the sandbox's directory.
fn socket(control_dir: &Path) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let nothing = ResolveFlags::empty();
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let directory = openat2(CWD, control_dir, flags | OFlags::DIRECTORY, Mode::empty(), nothing)?;
    let socket = openat2(&directory, protocol::SOCKET_NAME, flags, Mode::empty(), inside)?;
    match FileType::from_raw_mode(fstat(&socket)?.st_mode) {
        FileType::Socket => Ok(socket),
        _ => Err(rustix::io::Errno::NOTSOCK),
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &[u8],
    payload: &[u8],
) -> io::Result<(Answer, Vec<u8>)> {
    stream.write_all(request).await?;
    // Init answers a refused call before it reads the payload, so its response takes precedence over a failed
    // write.
    let sent = stream.write_all(payload).await;
    frames::read(&mut stream).await.map_err(|error| sent.err().unwrap_or(error))
}

fn done((answer, _): (Answer, Vec<u8>)) -> Result<(), Fault> {
    match answer {
        Answer::Done {} => Ok(()),
        other => Err(unexpected_response(&other)),
    }
}

/// Fault for a response that does not match the call.
fn unexpected_response(answer: &Answer) -> Fault {
    let name = match answer {
        Answer::Done {} => "done",
        Answer::Status { .. } => "status",
        Answer::Running {} => "running",
        Answer::Exit(_) => "exit",
        Answer::Output {} => "output",
        Answer::File { .. } => "file",
        Answer::Part {} => "part",
        Answer::Fault { .. } => "fault",
    };
    Fault::Unavailable(format!("its init sent an unexpected response: {name}"))
}

fn fault(kind: FaultKind, message: &str) -> Fault {
    let message: String = text::truncate(message, limit::INIT_MESSAGE_BYTES_MAX)
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect();
    match kind {
        FaultKind::Stale => Fault::Stale,
        FaultKind::NotFound => Fault::NotFound(message),
        FaultKind::Refused => Fault::Refused(message),
        FaultKind::Unavailable => Fault::Unavailable(message),
    }
}

fn exit(outcome: &Outcome) -> Exit {
    Exit {
        code: outcome.code,
        cause: match outcome.cause {
            protocol::Cause::Exited => Cause::Exited,
            protocol::Cause::Timeout => Cause::Timeout,
            protocol::Cause::Oom => Cause::Oom,
            protocol::Cause::DiskFull => Cause::DiskFull,
            protocol::Cause::Killed => Cause::Killed,
        },
        stdout_bytes: outcome.stdout_bytes,
        stderr_bytes: outcome.stderr_bytes,
        duration: Duration::from_millis(outcome.duration_ms),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, net::UnixListener};

    use super::*;

    /// Fault that `output` returns for a sandbox that answers every connection with these bytes.
    async fn answered(bytes: &'static [u8]) -> Fault {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(protocol::SOCKET_NAME)).unwrap();
        let server = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 1_024]).await.unwrap();
                stream.write_all(bytes).await.unwrap();
            }
        };
        let init = Init::at(directory.path().to_owned());
        let range = OutputRange { stream: OutputStream::Stdout, offset: 0, bytes_max: 2 };
        tokio::select! {
            answer = init.output("a", range) => answer.unwrap_err(),
            () = server => unreachable!(),
        }
    }

    #[tokio::test]
    async fn an_answer_that_does_not_fit_is_a_fault() {
        for bytes in [
            b"\xff\xff\xff\xff\0\0\0\0".as_slice(),
            b"\0\0\0\x02\0\0\0\0{}",
            b"\0\0\0\x11\0\0\0\0{\"answer\":\"done\"}",
            // More output than requested.
            b"\0\0\0\x13\0\0\0\x03{\"answer\":\"output\"}abc",
        ] {
            let fault = answered(bytes).await;
            assert!(matches!(fault, Fault::Unavailable(_)), "{bytes:?} gave {fault:?}");
        }
    }

    #[tokio::test]
    async fn an_init_that_hangs_up_on_everybody_is_gone() {
        for bytes in [b"".as_slice(), b"\0\0", b"\0\0\0\x13\0\0\0\x02{\"answer\":\"output\"}a"] {
            assert_eq!(answered(bytes).await, Fault::Gone, "{bytes:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_a_sandbox_sends_is_an_answer_or_an_error(
            json_bytes in 0u32..100, payload_bytes in 0u32..100, body: Vec<u8>,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(async {
                let (ours, mut theirs) = tokio::io::duplex(1 << 10);
                theirs.write_all(&json_bytes.to_be_bytes()).await.unwrap();
                theirs.write_all(&payload_bytes.to_be_bytes()).await.unwrap();
                theirs.write_all(&body).await.unwrap();
                theirs.shutdown().await.unwrap();
                exchange(ours, b"", b"").await
            });
        }
    }

    #[tokio::test]
    async fn no_socket_means_that_the_sandbox_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let init = Init::at(directory.path().to_owned());
        assert_eq!(init.hello(1).await, Err(Fault::Gone));
        drop(UnixListener::bind(directory.path().join(protocol::SOCKET_NAME)).unwrap());
        assert_eq!(init.hello(1).await, Err(Fault::Gone));
        assert_eq!(Init::at(directory.path().join("never")).hello(1).await, Err(Fault::Gone));
    }

    #[tokio::test]
    async fn a_link_in_the_place_of_the_socket_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = directory.path().join("elsewhere.sock");
        let _listener = UnixListener::bind(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, directory.path().join(protocol::SOCKET_NAME)).unwrap();
        let fault = Init::at(directory.path().to_owned()).hello(1).await.unwrap_err();
        assert!(matches!(fault, Fault::Unavailable(_)), "{fault:?}");
    }

    #[test]
    fn a_message_of_a_sandbox_is_cut_and_cleaned() {
        let message = format!("a\n\x1b[31m{}", "ä".repeat(1_000));
        let Fault::Refused(text) = fault(FaultKind::Refused, &message) else { panic!() };
        assert!(text.len() <= limit::INIT_MESSAGE_BYTES_MAX && !text.contains(char::is_control));
    }
}
