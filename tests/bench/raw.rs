//! The raw runtime as a comparison for sandboxes: a container of the same configuration with `true` instead
//! of init, without a session.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Options of gVisor, as the local provider passes them.
const GVISOR: [&str; 4] = ["--platform=systrap", "--host-uds=all", "--network=none", "--overlay2=none"];

/// Runs `true` in a container with the configuration of a live sandbox, including creation and removal.
/// `None` where this runtime is missing.
pub async fn run(runtime: &str, config: &str, scratch: &Path) -> anyhow::Result<Option<Duration>> {
    let is_gvisor = runtime.ends_with("runsc");
    let mut config: Value = serde_json::from_str(config)?;
    config["process"]["args"] = json!(["/bin/true"]);
    config["linux"]["cgroupsPath"] = json!("/sojourn-bench-raw");
    // The namespace of the sandbox's users was made for its start and can no longer be entered: this one is the
    // runtime's own.
    let namespaces = config["linux"]["namespaces"].as_array_mut().into_iter().flatten();
    for namespace in namespaces.filter(|namespace| namespace["type"] == "user") {
        namespace.as_object_mut().expect("a namespace").remove("path");
    }
    if is_gvisor {
        // gVisor's process that opens files is root on the machine.
        let linux = config["linux"].as_object_mut().expect("a configuration for Linux");
        linux.retain(|name, _| !["uidMappings", "gidMappings", "seccomp"].contains(&name.as_str()));
        if let Some(namespaces) = linux["namespaces"].as_array_mut() {
            namespaces.retain(|one| one["type"] != "user");
        }
    }
    let bundle = scratch.join("raw");
    fs::create_dir_all(&bundle)?;
    fs::write(bundle.join("config.json"), config.to_string())?;
    let began = Instant::now();
    let ran = tokio::process::Command::new(runtime)
        .arg("--root")
        .arg(scratch.join(format!("raw-{}", runtime.replace('/', "-"))))
        .args(if is_gvisor { GVISOR.as_slice() } else { &[] })
        .args(["run", "--bundle"])
        .arg(&bundle)
        .arg("raw")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .await;
    let took = began.elapsed();
    match ran {
        Ok(ran) => {
            let words = String::from_utf8_lossy(&ran.stderr);
            anyhow::ensure!(ran.status.success(), "{runtime} ended with {}: {}", ran.status, words.trim());
            Ok(Some(took))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
