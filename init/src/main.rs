//! `sojourn-init`: PID 1 of every box, and the small programs that it starts.
//!
//! Started by the container runtime as `serve`; starts itself again as `run` (one
//! runner per command), as `file` (one file operation as the command's user) and as
//! `relay` (the way to the egress proxy). Four programs in one file, so that nothing has to fork with threads or run
//! code between fork and exec.

mod archive;
mod connection;
mod execs;
mod files;
mod kill;
mod privilege;
mod pump;
mod relay;
mod runner;
mod server;

use std::{process::ExitCode, time::Duration};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["serve"] => server::serve(None),
        ["serve", orphan_seconds] => match orphan_seconds.parse() {
            Ok(seconds) => server::serve(Some(Duration::from_secs(seconds))),
            Err(_) => Err(std::io::Error::other("serve takes a number of seconds")),
        },
        ["run", directory] => runner::run(directory.as_ref()),
        ["file", operation @ ..] => files::serve(operation),
        ["relay"] => relay::serve(),
        _ => Err(std::io::Error::other("this program is started inside a sandbox: serve, run, file, relay")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sojourn-init: {error}");
            ExitCode::FAILURE
        }
    }
}
