//! The image `debian` of these tests: made once, about a minute, and kept below `target`.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use sojourn::{
    domain::rootfs::RootFs,
    sandbox::local::{
        Config, Local,
        image::{self, BuildError},
    },
};

/// Where packages come from here. Named, as this machine may have its registries anywhere.
pub const MIRRORS: [&str; 3] = [
    "--apt-mirror=http://deb.debian.org/debian",
    "--pip-index=https://pypi.org/simple",
    "--npm-registry=https://registry.npmjs.org",
];

/// What a service is told of them, and what it trusts.
pub fn settings() -> Vec<String> {
    let mirrors = MIRRORS.map(str::to_owned);
    let authorities = "/etc/ssl/certs/ca-certificates.crt";
    mirrors.into_iter().chain([format!("--egress-ca-file={authorities}")]).collect()
}

fn shared() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("images")
}

/// Lets a data directory have the root file systems of all tests, `debian` among them.
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
    made.join().expect("the image debian can be made: scripts/setup --test");
}

async fn make(config: Config) {
    let local = Local::new(config).expect("these tests need root and runc: run scripts/setup --test");
    let debian = RootFs { image: "debian".to_owned(), ..RootFs::default() };
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        match local.images().make_image(&debian).await {
            Ok(()) => return,
            // Another test is at it.
            Err(BuildError::Busy) => tokio::time::sleep(Duration::from_millis(200)).await,
            Err(unmade) => panic!("{unmade}: {}", local.images().said(&debian)),
        }
        assert!(Instant::now() < until, "the image debian takes too long");
    }
}
