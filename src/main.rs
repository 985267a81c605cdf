//! The binary: parses the command line; prints a failure as one line.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = sojourn::cli::Cli::parse();
    sojourn::net::install_tls();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the async runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(sojourn::cli::run(cli)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
