//! The binary: reads the command line and ends with one clear line when it fails.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = sojourn::cli::Cli::parse();
    sojourn::net::install_tls();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the process cannot run tasks: {error}");
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
