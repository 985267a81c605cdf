//! Who makes the sandboxes of this process, by its settings.

use std::{sync::Arc, time::Duration};

use crate::{
    config::{SandboxProvider, Settings},
    sandbox::{
        Sandbox,
        local::{self, Check, Config, Local, docker},
    },
};

/// The provider. Blocks while it looks whether it can work.
///
/// # Errors
/// Why there can be no sandboxes here, in one line.
pub fn provider(settings: &Settings) -> Result<Arc<dyn Sandbox>, String> {
    Ok(Arc::new(Local::new(config(settings)?).map_err(|fault| fault.to_string())?))
}

/// What this machine has for sandboxes, thing by thing. Blocks while it looks.
pub fn checks(settings: &Settings) -> Vec<Check> {
    match config(settings) {
        Ok(config) => local::checks(&config),
        Err(problem) => vec![Check { what: "sandboxes", found: Err(problem) }],
    }
}

fn config(settings: &Settings) -> Result<Config, String> {
    let docker = match settings.sandbox_provider {
        SandboxProvider::Local if settings.sandbox_image.is_some() => {
            return Err("SOJOURN_SANDBOX_IMAGE needs SOJOURN_SANDBOX_PROVIDER=docker".to_owned());
        }
        SandboxProvider::Local => None,
        SandboxProvider::Docker => Some(docker::Config {
            socket: settings.docker_socket.clone(),
            image: settings.sandbox_image.clone(),
        }),
    };
    let defaults = Config::new(&settings.database.data_dir);
    // An engine must not take another's boxes for its own.
    let run_dir =
        if docker.is_some() { defaults.run_dir.with_extension("docker") } else { defaults.run_dir.clone() };
    Ok(Config {
        docker,
        run_dir,
        runtime: settings.sandbox_runtime.clone(),
        orphan_after: Some(Duration::from_secs(settings.box_orphan_seconds)),
        ..defaults
    })
}
