//! The image `debian`: built by mmdebstrap from the operator's mirror in about 1 minute.
//!
//! Called by `image`. mmdebstrap runs on the host, not in a sandbox: it unpacks and runs only packages that
//! Debian signed.

use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
};

use tokio::{process::Command, time::timeout};

use super::source::{Form, Registered};
use crate::{
    base::limit::ROOTFS_TIMEOUT,
    node::local::{layout::make_dir, runtime},
    sandbox::BuildError,
};

/// Change this number when the packages or the build change.
const FORMAT: &str = "1";
/// Debian release to build when this machine does not run Debian.
const SUITE: &str = "bookworm";
/// Packages for agents, in addition to Debian's minimal base.
const PACKAGES: &str = "ca-certificates,curl,git,less,patch,procps,python3,python3-pip,unzip,xz-utils";

/// Name of the image that would be built now.
pub(super) fn name() -> String {
    format!("debian-{}-{FORMAT}", suite())
}

/// Builds the archive of the image in `work`; output of mmdebstrap goes to the file `log`.
pub(super) async fn make(mirror: Option<&str>, work: &Path) -> Result<Registered, BuildError> {
    if runtime::find_program("mmdebstrap").is_none() {
        return Err(BuildError::Failed("mmdebstrap was not found: run scripts/setup".to_owned()));
    }
    let (path, scratch) = (work.join("image.tar"), work.join("tmp"));
    make_dir(&scratch, 0o755)?;
    let log = File::create(work.join("log"))?;
    tracing::info!("building the image debian (takes about a minute)");
    // It ends when the service ends for any reason; its temporary files are removed with the work directory.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "mmdebstrap", "--variant=minbase", "--format=tar"]);
    command.arg(format!("--include={PACKAGES}"));
    // Skip translation indexes and retry 3 times, whatever mirror or proxy is in between.
    command.args(["--aptopt=Acquire::Languages \"none\"", "--aptopt=Acquire::Retries \"3\""]);
    for place in ["man", "doc", "info", "locale"] {
        command.arg(format!("--dpkgopt=path-exclude=/usr/share/{place}/*"));
    }
    command.arg(suite()).arg(&path).args(mirror);
    command.env_clear().env("PATH", runtime::PATH).env("TMPDIR", &scratch).env("LC_ALL", "C.UTF-8");
    let proxies = ["http_proxy", "https_proxy", "no_proxy"];
    command.envs(proxies.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
    let ended = timeout(ROOTFS_TIMEOUT, command.spawn()?.wait()).await;
    let said = fs::read_to_string(work.join("log")).unwrap_or_default();
    match ended {
        Ok(Ok(status)) if status.success() => {
            tracing::info!("built the image debian");
            Ok(Registered { path, form: Form::Tar, version: String::new() })
        }
        Ok(Ok(_)) => Err(BuildError::Failed(format!("mmdebstrap failed: {}", runtime::last_line(&said)))),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(BuildError::Failed("mmdebstrap did not end in time".to_owned())),
    }
}

/// Codename of this machine's Debian release, or the default.
fn suite() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |name: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    let own = value("VERSION_CODENAME=").filter(|_| value("ID=").as_deref() == Some("debian"));
    own.filter(|name| name.bytes().all(|byte| byte.is_ascii_lowercase())).unwrap_or_else(|| SUITE.to_owned())
}
