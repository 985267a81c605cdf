//! The image `debian`: made by mmdebstrap from the operator's mirror, about a minute.
//!
//! Called by `image`. It runs on the host and not in a sandbox: what it unpacks and runs is
//! what Debian signed.

use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
};

use tokio::{process::Command, time::timeout};

use super::{
    Unmade, last_line,
    source::{Form, Registered},
};
use crate::{
    base::limit::ROOTFS_TIMEOUT,
    sandbox::local::{layout::make_dir, runtime},
};

/// Another number is another choice of packages, or another way to make it.
const FORMAT: &str = "1";
/// The release where this machine is not Debian itself.
const SUITE: &str = "bookworm";
/// What an agent works with, beside what every Debian has.
const PACKAGES: &str = "ca-certificates,curl,git,less,patch,procps,python3,python3-pip,unzip,xz-utils";

/// What the image that would be made now is called.
pub fn name() -> String {
    format!("debian-{}-{FORMAT}", suite())
}

/// Makes the archive of the image in `work`; what it says is in the file `log`.
pub async fn make(mirror: Option<&str>, work: &Path) -> Result<Registered, Unmade> {
    if runtime::find_program("mmdebstrap").is_none() {
        return Err(Unmade::Failed("mmdebstrap was not found: run scripts/setup".to_owned()));
    }
    let (path, scratch) = (work.join("image.tar"), work.join("tmp"));
    make_dir(&scratch, 0o755)?;
    let log = File::create(work.join("log"))?;
    tracing::info!("the image debian is being made (about a minute)");
    // It ends with the service, however that ends, and its scratch is removed with the rest.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "mmdebstrap", "--variant=minbase", "--format=tar"]);
    command.arg(format!("--include={PACKAGES}"));
    // Whoever stands between: what apt may not look at here, it may not there.
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
            tracing::info!("the image debian is made");
            Ok(Registered { path, form: Form::Tar, version: String::new() })
        }
        Ok(Ok(_)) => Err(Unmade::Failed(format!("mmdebstrap failed: {}", last_line(&said)))),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Unmade::Failed("mmdebstrap did not end in time".to_owned())),
    }
}

/// The release of this machine, where that is Debian.
fn suite() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |name: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    let own = value("VERSION_CODENAME=").filter(|_| value("ID=").as_deref() == Some("debian"));
    own.filter(|name| name.bytes().all(|byte| byte.is_ascii_lowercase())).unwrap_or_else(|| SUITE.to_owned())
}
