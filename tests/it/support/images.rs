//! The image `debian` for tests: built once (about a minute) and stored below `target`.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use sojourn::{
    domain::rootfs::RootFs,
    node::local::{Config, Local, image},
    sandbox::{BuildError, Images},
};

/// Package mirrors. Named explicitly, because the machine may be configured for others.
pub const MIRRORS: [&str; 3] = [
    "--apt-mirror=http://deb.debian.org/debian",
    "--pip-index=https://pypi.org/simple",
    "--npm-registry=https://registry.npmjs.org",
];

/// Service settings for the mirrors and the trusted certificate authorities.
pub fn settings() -> Vec<String> {
    let mirrors = MIRRORS.map(str::to_owned);
    let authorities = "/etc/ssl/certs/ca-certificates.crt";
    mirrors.into_iter().chain([format!("--egress-ca-file={authorities}")]).collect()
}

fn shared() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("images")
}

/// Links the shared root file systems of all tests, `debian` among them, into a data directory.
pub fn share(data_dir: &Path) {
    let shared = shared();
    fs::create_dir_all(&shared).expect("a directory");
    fs::create_dir_all(data_dir).expect("a directory");
    symlink(&shared, data_dir.join("images")).expect("a link");
    let run = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o711))
        .tempdir()
        .expect("a directory");
    let config = Config {
        run_dir: run.path().join("run"),
        images: image::Config { apt_mirror: Some(MIRRORS[0][13..].to_owned()), ..image::Config::default() },
        ..Config::new(data_dir)
    };
    let made = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(make(config));
    });
    made.join().expect("the image debian builds: scripts/setup --test");
}

async fn make(config: Config) {
    let local = Local::new(config).expect("these tests need root and runc: run scripts/setup --test");
    let debian = RootFs { image: "debian".to_owned(), ..RootFs::default() };
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        match local.make_image(&debian).await {
            Ok(()) => return,
            // Another test is building it.
            Err(BuildError::Busy) => tokio::time::sleep(Duration::from_millis(200)).await,
            Err(unmade) => panic!("{unmade}: {}", local.build_log(&debian).await.unwrap()),
        }
        assert!(Instant::now() < until, "building the image debian takes too long");
    }
}
