//! `sojourn-init`: PID 1 of every sandbox, and the small programs that it starts.
//!
//! Started by the container runtime as `serve`, which has one thread and so may copy itself into a
//! runner for each command; starts itself again as `file` (one file operation as the command's user), as
//! `relay` (the way to the egress proxy) and as `usage` (what the files take). Where an image is made it is started
//! as `install`. Five programs in one file, so that nothing has to fork with threads.

mod archive;
mod connection;
mod execs;
mod files;
mod fork;
mod install;
mod kill;
mod privilege;
mod pump;
mod relay;
mod runner;
mod server;
mod usage;

use std::{process::ExitCode, time::Duration};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["serve", orphan_seconds, disk_bytes] => match (orphan_seconds.parse(), disk_bytes.parse()) {
            (Ok(seconds), Ok(bytes)) => server::serve(some(seconds).map(Duration::from_secs), some(bytes)),
            _ => Err(std::io::Error::other("serve takes two numbers: seconds, bytes")),
        },
        ["file", operation @ ..] => files::serve(operation),
        ["relay"] => relay::serve(),
        ["usage"] => usage::serve(),
        ["install", command @ ..] => install::run(command),
        _ => Err(std::io::Error::other(
            "this program is started inside a sandbox: serve, file, relay, usage, install",
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sojourn-init: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A number of which 0 means that there is none.
fn some(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}
