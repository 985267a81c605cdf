//! PID 1 of a container in which packages are installed into a root file system.
//!
//! Started by the container runtime as `install`. Runs one command as the container's root, with the same
//! egress relay as a sandbox, and reports its exit code. The command's output is written line by line to
//! standard error with a prefix, so that an installer cannot forge the report.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpListener},
    os::fd::OwnedFd,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::{WaitOptions, wait};
use sojourn_init::protocol::{INSTALL_ENDED, INSTALL_OUTPUT, PROGRAM, PROXY_PORT};

/// Maximum forwarded output in bytes; the rest is read and dropped.
const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Maximum length of a line; longer ones are split.
const LINE_BYTES_MAX: u64 = 4 << 10;
/// Time to wait for remaining output after the end of the command.
const REST: Duration = Duration::from_secs(2);

/// Runs the command. Its end also ends all processes that it started.
#[expect(clippy::disallowed_methods, reason = "the copier of output ends with the container")]
pub(crate) fn run(command: &[&str]) -> io::Result<()> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| io::Error::other("install needs a command"))?;
    let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT))?;
    let mut relay = Command::new(PROGRAM);
    relay.arg("relay").stdin(OwnedFd::from(proxy)).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let (reader, writer) = io::pipe()?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let _ = pass_on(reader);
        let _ = done.send(());
    });
    let code = loop {
        // Orphans are reaped here too.
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().cast_unsigned() == child.id() => {
                break status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let _ = is_done.recv_timeout(REST);
    // A single write, so that it does not interleave with lines of the other thread.
    io::stderr().write_all(format!("\n{INSTALL_ENDED}{}\n", code.unwrap_or(255)).as_bytes())
}

fn pass_on(output: io::PipeReader) -> io::Result<()> {
    let mut output = BufReader::new(output);
    let mut passed = 0;
    loop {
        let mut line = INSTALL_OUTPUT.as_bytes().to_vec();
        let read = io::Read::take(&mut output, LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        // A terminal overwrites the line after a carriage return, so it becomes a line end.
        line.iter_mut().filter(|byte| **byte == b'\r').for_each(|byte| *byte = b'\n');
        let line = String::from_utf8_lossy(&line).trim_end().replace('\n', &format!("\n{INSTALL_OUTPUT}"));
        passed += line.len() + 1;
        if passed <= OUTPUT_BYTES_MAX {
            io::stderr().write_all(format!("{line}\n").as_bytes())?;
        }
    }
}
