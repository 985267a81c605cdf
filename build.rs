//! Builds `sojourn-init` for `include_bytes!`.
//!
//! Run by cargo; calls cargo again for the workspace member `init`. Static glibc, because the sandbox's root
//! file system may contain any libc or none. A separate target directory, because the outer cargo holds the
//! lock of its own.

use std::{env, fs, path::Path, process::Command};

fn main() {
    // Files embedded by `src/web`: rebuild after a new dashboard build. Documentation pages are embedded only
    // in a release build; a debug build reads them at run time.
    println!("cargo::rerun-if-changed=web/dist");
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rerun-if-changed=docs");
    }
    for input in ["build.rs", "init", "Cargo.lock", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let target = variable("TARGET");
    let out_dir = variable("OUT_DIR");
    let target_dir = Path::new(&out_dir).join("init");

    let mut cargo = Command::new(variable("CARGO"));
    for (name, _) in env::vars() {
        if is_of_the_outer_build(&name) {
            cargo.env_remove(name);
        }
    }
    // With an explicit target, these flags apply to init and its dependencies only: a procedural macro cannot
    // be linked statically.
    cargo
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .args(["build", "--package", "sojourn-init", "--bin", "sojourn-init"])
        .args(["--profile", "init", "--locked", "--target", &target, "--target-dir"])
        .arg(&target_dir)
        .current_dir(variable("CARGO_MANIFEST_DIR"));
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("sojourn-init was not built: cargo failed with {status}"),
        Err(error) => panic!("sojourn-init was not built: cargo did not start: {error}"),
    }
    let built = target_dir.join(&target).join("init/sojourn-init");
    let embedded = Path::new(&out_dir).join("sojourn-init");
    if let Err(error) = fs::copy(&built, &embedded) {
        panic!("{} cannot be copied: {error}", built.display());
    }
}

/// Whether a variable belongs to the outer build: its flags, wrappers (clippy sets one) and profiles must not
/// affect init. Registry and network settings are kept.
fn is_of_the_outer_build(name: &str) -> bool {
    let kept =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_MAKEFLAGS"];
    let of_cargo = name.starts_with("CARGO") && !kept.iter().any(|prefix| name.starts_with(prefix));
    let of_rustc = name.starts_with("RUSTC") || name.starts_with("CLIPPY") || name == "RUSTFLAGS";
    of_cargo || of_rustc || ["TARGET", "HOST", "OUT_DIR", "PROFILE", "OPT_LEVEL", "DEBUG"].contains(&name)
}
