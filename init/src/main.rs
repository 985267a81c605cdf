//! `sojourn-init`: PID 1 of every sandbox, and the helper programs that it starts.
//!
//! The container runtime starts it as `serve`, which is single-threaded and can therefore fork a runner for
//! each command. It starts itself as `file` (one file operation as the command's user), as `relay`
//! (connection to the egress proxy) and as `usage` (size of the files). In a container that installs packages
//! it is started as `install`. On the node, before the container exists, it is started as `namespace`. Six
//! programs in one file, so that no process has to fork while it has threads.

mod archive;
mod connection;
mod execs;
mod feed;
mod files;
mod fork;
mod install;
mod kill;
mod namespace;
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
            _ => Err(std::io::Error::other("serve needs two numbers: seconds, bytes")),
        },
        ["file", operation @ ..] => files::serve(operation),
        ["relay"] => relay::serve(),
        ["usage"] => usage::serve(),
        ["install", command @ ..] => install::run(command),
        ["namespace", arguments @ ..] => namespace::make(arguments),
        _ => Err(std::io::Error::other(
            "this program is started for a sandbox: serve, file, relay, usage, install, namespace",
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

/// Maps 0 to `None`.
fn some(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}
