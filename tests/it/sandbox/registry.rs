//! Images of registries: pulled by digest, and refused when anything differs from it.

use std::{fs, io::Write as _, process::Command};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sojourn::{
    domain::rootfs::RootFs,
    node::local::{Local, image},
    sandbox::{BuildError, Images},
};
use tar::{Builder, Header};

use super::{World, image::small, limits, local::LocalProvider, run};
use crate::fake::registry::{self as fake, Access, REPOSITORY, Registry};

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const OCI_TAR: &str = "application/vnd.oci.image.layer.v1.tar";
const OCI_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const OCI_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// An archive of files: name, content, and the size in its header.
fn tar_with(entries: &[(&str, &str, u64)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, content, size) in entries {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000);
        header.set_size(*size);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn tar_of(entries: &[(&str, &str)]) -> Vec<u8> {
    let sized: Vec<_> = entries.iter().map(|(name, text)| (*name, *text, text.len() as u64)).collect();
    tar_with(&sized)
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    Command::new("gzip").arg("-nc").arg(file.path()).output().unwrap().stdout
}

/// The smallest root file system.
fn tiny() -> Vec<u8> {
    gzip(&tar_of(&[("usr/lib/os-release", "tiny"), ("etc/name", "tiny")]))
}

/// A registry, a directory of registered images, and the provider that makes them.
pub struct Ground {
    pub registry: Registry,
    pub provider: LocalProvider,
    pub images: tempfile::TempDir,
}

impl Ground {
    pub fn new() -> Self {
        let images = tempfile::tempdir().unwrap();
        let mut provider = LocalProvider::new();
        provider.images =
            image::Config { registered: Some(images.path().to_owned()), ..image::Config::default() };
        provider.rootfs = RootFs { image: "tools".to_owned(), ..RootFs::default() };
        Self { registry: Registry::open(), provider, images }
    }

    /// Registers the image `tools` with this text.
    fn register(&self, text: &str) {
        fs::write(self.images.path().join("tools.ref"), format!("{text}\n")).unwrap();
    }

    /// Stores a configuration for a platform; returns its descriptor.
    fn config(&self, media_type: &str, os: &str, architecture: &str) -> Value {
        let content = json!({ "os": os, "architecture": architecture, "config": {}, "rootfs": {} });
        let content = content.to_string().into_bytes();
        let size = content.len();
        json!({ "mediaType": media_type, "digest": self.registry.blob(content), "size": size })
    }

    fn layer(&self, media_type: &str, content: Vec<u8>) -> Value {
        let size = content.len();
        json!({ "mediaType": media_type, "digest": self.registry.blob(content), "size": size })
    }

    /// Stores a manifest for this machine; returns its digest.
    fn manifest(&self, layers: &[Value]) -> String {
        let config = self.config(OCI_CONFIG, "linux", architecture());
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers });
        self.registry.document(OCI_MANIFEST, &manifest)
    }

    /// Registers an image of the registry by its digest, and makes it.
    fn make_digest(&self, digest: &str) -> Result<(), BuildError> {
        self.register(&self.registry.reference(digest));
        self.make()
    }

    fn make(&self) -> Result<(), BuildError> {
        let local = Local::new(self.provider.config()).unwrap();
        tokio::runtime::Runtime::new().unwrap().block_on(local.make_image(&self.provider.rootfs))
    }

    /// Names in a directory of the provider's images.
    fn there(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.provider.data_dir().join("images").join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Checks that making the image fails with this reason, shows nothing of the registry, and leaves nothing.
    fn is_refused(&self, why: &str) {
        let made = self.make();
        let Err(BuildError::Failed(reason)) = &made else { panic!("{why}: {made:?}") };
        assert!(reason.contains(why), "{why}: {reason}");
        for hidden in [REPOSITORY, &self.registry.port.to_string()] {
            assert!(!reason.contains(hidden), "{reason}");
        }
        assert_eq!((self.there("trees"), self.there("work")), (Vec::new(), Vec::new()), "{why}");
    }

    fn is_refused_by_digest(&self, digest: &str, why: &str) {
        self.register(&self.registry.reference(digest));
        self.is_refused(why);
    }

    /// Publishes and registers an image with programs: an index of several platforms, and three layers.
    pub fn publish_programs(&self) {
        let root = tempfile::tempdir().unwrap();
        small(root.path());
        fs::create_dir(root.path().join("etc/old")).unwrap();
        for name in ["etc/below", "etc/old/one"] {
            fs::write(root.path().join(name), "of the first layer").unwrap();
        }
        let tarred = Command::new("tar").arg("-C").arg(root.path()).args(["-cf", "-", "."]).output();
        let first = gzip(&tarred.unwrap().stdout);
        let second = tar_of(&[
            ("etc/.wh.below", ""),
            ("etc/above", "of the second layer"),
            ("etc/old/.wh..wh..opq", ""),
            ("etc/old/two", ""),
        ]);
        let second = zstd::encode_all(second.as_slice(), 1).unwrap();
        let third = tar_of(&[("etc/third", "of the third layer")]);
        let layers = [self.layer(OCI_GZIP, first), self.layer(OCI_ZSTD, second), self.layer(OCI_TAR, third)];
        let entry = |digest: &str, os: &str, architecture: &str| {
            let platform = json!({ "os": os, "architecture": architecture });
            json!({ "mediaType": OCI_MANIFEST, "digest": digest, "size": 1, "platform": platform })
        };
        let missing = fake::digest(b"never published");
        let entries = [
            entry(&missing, "linux", "riscv64"),
            entry(&missing, "unknown", "unknown"),
            entry(&missing, "windows", architecture()),
            entry(&self.manifest(&layers), "linux", architecture()),
        ];
        let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries });
        let index = self.registry.document(OCI_INDEX, &index);
        self.register(&self.registry.reference(&index));
    }
}

/// Checks a sandbox on the image of [`Ground::publish_programs`].
pub async fn has_programs(world: &World<'_>) {
    assert_eq!(world.says("id -un; ls /usr/bin | cat").await, "agent\nbash\ncat\nid\nls\nstat\ntouch");
    assert_eq!(world.says("cat /etc/above /etc/third").await, "of the second layerof the third layer");
    assert_eq!(world.says("ls /etc/below || true; ls /etc/old").await, "two");
    assert_eq!(world.says("touch /usr/x || echo no").await, "no");
}

#[test]
fn an_image_of_a_registry_is_pulled_once_and_a_command_runs_in_it() {
    let ground = Ground::new();
    ground.registry.restrict(Access::Token);
    ground.publish_programs();
    ground.make().unwrap();
    assert_eq!((ground.there("trees").len(), ground.there("work")), (1, Vec::new()));
    let requests = ground.registry.requests();
    ground.make().unwrap();
    assert_eq!(ground.registry.requests(), requests, "the same digest is there");
    run(&ground.provider, limits(), |world| Box::pin(has_programs(world)));
    ground.registry.assert_understood();
    // Nothing of the transfer stays beside the files.
    let tree = ground.provider.data_dir().join("images/trees").join(&ground.there("trees")[0]);
    let mut left: Vec<_> = fs::read_dir(tree).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["root", "used", "version"]);
}

#[test]
fn images_with_the_types_of_docker_are_pulled() {
    let ground = Ground::new();
    let config = ground.config(DOCKER_CONFIG, "linux", architecture());
    let layers = [ground.layer(DOCKER_GZIP, tiny())];
    let manifest =
        json!({ "schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "config": config, "layers": layers });
    let manifest = ground.registry.document(DOCKER_MANIFEST, &manifest);
    ground.make_digest(&manifest).unwrap();
    let platform = json!({ "os": "linux", "architecture": architecture() });
    let entry = json!({ "mediaType": DOCKER_MANIFEST, "digest": manifest, "size": 1, "platform": platform });
    let list = json!({ "schemaVersion": 2, "mediaType": DOCKER_LIST, "manifests": [entry] });
    ground.make_digest(&ground.registry.document(DOCKER_LIST, &list)).unwrap();
    let trees = ground.there("trees");
    assert_eq!(trees.len(), 2);
    for tree in trees {
        let path = ground.provider.data_dir().join("images/trees").join(tree).join("root/etc/name");
        assert_eq!(fs::read_to_string(path).unwrap(), "tiny");
    }
    ground.registry.assert_understood();
}

#[test]
fn an_image_that_is_not_named_by_its_digest_is_refused() {
    let ground = Ground::new();
    let digest = ground.manifest(&[ground.layer(OCI_GZIP, tiny())]);
    let host = format!("127.0.0.1:{}", ground.registry.port);
    for (text, why) in [
        (format!("{host}/{REPOSITORY}:latest"), "a tag can change"),
        (format!("{host}/{REPOSITORY}"), "a tag can change"),
        (format!("{host}/{REPOSITORY}:latest@{digest}"), "a tag beside its digest"),
        (format!("http://{host}/{REPOSITORY}@{digest}"), "scheme"),
        (format!("{REPOSITORY}@{digest}"), "names no registry"),
        (String::new(), "malformed"),
    ] {
        ground.register(&text);
        ground.is_refused(why);
    }
    assert_eq!(ground.registry.requests(), Vec::<String>::new());
    ground.make_digest(&digest).unwrap();
}

#[test]
fn an_image_with_other_content_than_its_digests_is_refused() {
    let ground = Ground::new();
    let layer = ground.layer(OCI_GZIP, tiny());
    let digest = ground.manifest(std::slice::from_ref(&layer));
    let of = |value: &Value| value["digest"].as_str().unwrap().to_owned();
    // A registry that serves another image under a digest.
    let other = ground.config(OCI_CONFIG, "linux", architecture());
    let forged =
        json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": other, "layers": [], "x": 1 });
    let pinned = fake::digest(b"another");
    ground.registry.document_as(&pinned, OCI_MANIFEST, forged.to_string().into_bytes());
    ground.is_refused_by_digest(&pinned, "does not match its digest");
    let mut changed = tiny();
    let at = changed.len() / 2;
    changed[at] ^= 1;
    ground.registry.blob_as(&of(&layer), changed);
    ground.is_refused_by_digest(&digest, "does not match its digest");
    ground.registry.blob_as(&of(&layer), tiny());
    let config = ground.config(OCI_CONFIG, "linux", architecture());
    let size = config["size"].as_u64().unwrap() as usize;
    ground.registry.blob_as(&of(&config), "x".repeat(size));
    ground.is_refused_by_digest(&digest, "does not match its digest");
    // With the content that its digests name, the same image is made.
    ground.config(OCI_CONFIG, "linux", architecture());
    ground.make_digest(&digest).unwrap();
}

#[test]
fn an_image_that_is_too_large_is_refused() {
    let ground = Ground::new();
    let layer = ground.layer(OCI_GZIP, tiny());
    let sized = |size: i64| {
        let mut layer = layer.clone();
        layer["size"] = json!(size);
        ground.manifest(&[layer])
    };
    ground.is_refused_by_digest(&sized(33 << 30), "more than 32 GiB");
    ground.is_refused_by_digest(&sized(-1), "negative size");
    let size = layer["size"].as_i64().unwrap();
    for size in [size - 1, size + 1] {
        ground.is_refused_by_digest(&sized(size), "another size than the manifest states");
    }
    let many = ground.manifest(&vec![layer.clone(); 129]);
    ground.is_refused_by_digest(&many, "more than 128 layers");
    let blobs = |request: &String| request.contains("/blobs/");
    let before = ground.registry.requests().iter().filter(|request| blobs(request)).count();
    // Small files whose content is large, by their headers.
    let bomb = tar_with(&[("usr/bin/x", "", 33 << 30)]);
    let bomb = ground.manifest(&[layer.clone(), ground.layer(OCI_TAR, bomb)]);
    ground.is_refused_by_digest(&bomb, "exceeds the limit of files or bytes");
    let after = ground.registry.requests().iter().filter(|request| blobs(request)).count();
    assert_eq!(after - before, 3, "a configuration and two layers");
    let padded = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": [layer],
        "config": ground.config(OCI_CONFIG, "linux", architecture()), "annotations": { "x": "x".repeat(5 << 20) },
    });
    let padded = ground.registry.document(OCI_MANIFEST, &padded);
    ground.is_refused_by_digest(&padded, "more than 4 MiB");
    ground.make_digest(&sized(size)).unwrap();
    ground.registry.assert_understood();
}

#[test]
fn a_layer_of_an_image_that_leads_out_of_it_is_refused() {
    let ground = Ground::new();
    for name in ["../../../escaped", "usr/../../escaped"] {
        let hostile = tar_of(&[(name, "escaped")]);
        let digest =
            ground.manifest(&[ground.layer(OCI_GZIP, tiny()), ground.layer(OCI_GZIP, gzip(&hostile))]);
        ground.is_refused_by_digest(&digest, "outside of the image");
    }
    let images = ground.provider.data_dir().join("images");
    assert!(!images.join("escaped").exists() && !images.join("work/escaped").exists());
    let unknown = ground.layer("application/vnd.in-toto+json", b"{}".to_vec());
    ground.is_refused_by_digest(&ground.manifest(&[unknown]), "unsupported layer type");
}

#[test]
fn an_image_for_another_platform_is_refused() {
    let ground = Ground::new();
    let layers = [ground.layer(OCI_GZIP, tiny())];
    let (mut manifests, platforms) =
        (Vec::new(), [("linux", "riscv64"), ("windows", architecture()), ("linux", "s390x")]);
    for (os, its) in platforms {
        let config = ground.config(OCI_CONFIG, os, its);
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers });
        let digest = ground.registry.document(OCI_MANIFEST, &manifest);
        ground.is_refused_by_digest(&digest, "and this machine is linux/");
        let platform = json!({ "os": os, "architecture": its });
        manifests
            .push(json!({ "mediaType": OCI_MANIFEST, "digest": digest, "size": 1, "platform": platform }));
    }
    let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests });
    ground.is_refused_by_digest(&ground.registry.document(OCI_INDEX, &index), "no manifest for linux/");
    // An index that claims to have one for this machine.
    manifests[0]["platform"]["architecture"] = json!(architecture());
    let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests });
    let lying = ground.registry.document(OCI_INDEX, &index);
    ground.is_refused_by_digest(&lying, "and this machine is linux/");
}

#[test]
fn a_registry_without_the_image_and_one_that_is_not_there_are_told_apart() {
    let ground = Ground::new();
    let layer = ground.layer(OCI_GZIP, tiny());
    let digest = ground.manifest(std::slice::from_ref(&layer));
    ground.is_refused_by_digest(&fake::digest(b"none"), "does not have it");
    ground.register(&format!("127.0.0.1:{}/team/other@{digest}", ground.registry.port));
    ground.is_refused("does not have it");
    let blob = layer["digest"].as_str().unwrap();
    ground.registry.remove_blob(blob);
    ground.is_refused_by_digest(&digest, "does not have it");
    ground.registry.blob(tiny());
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    ground.register(&format!("{closed}/{REPOSITORY}@{digest}"));
    ground.is_refused("its registry cannot be reached");
    // RFC 6761: this name never exists.
    ground.register(&format!("registry.invalid/{REPOSITORY}@{digest}"));
    ground.is_refused("its registry has no address");
    ground.make_digest(&digest).unwrap();
    ground.registry.assert_understood();
}

#[test]
fn an_image_that_needs_credentials_is_pulled_with_those_of_the_operator() {
    let mut ground = Ground::new();
    let digest = ground.manifest(&[ground.layer(OCI_GZIP, tiny())]);
    ground.registry.restrict(Access::Credentials("puller:a secret"));
    ground.is_refused_by_digest(&digest, "refuses access");
    let file = ground.images.path().join(".auth.json");
    ground.provider.images.registry_auth_file = Some(file.clone());
    ground.is_refused("cannot be read");
    let write = |auths: Value| fs::write(&file, json!({ "auths": auths }).to_string()).unwrap();
    let registry = format!("127.0.0.1:{}", ground.registry.port);
    let of = |pair: &str| json!({ "auth": STANDARD.encode(pair) });
    write(json!("puller:a secret"));
    ground.is_refused("is not JSON with `auths`");
    write(json!({ "registry.example": of("puller:a secret") }));
    ground.is_refused("refuses access");
    write(json!({ &registry: of("puller:wrong") }));
    ground.is_refused("refuses access");
    write(json!({ "registry.example": of("puller:wrong"), &registry: of("puller:a secret") }));
    ground.make().unwrap();
    ground.registry.assert_understood();
}

#[test]
fn an_image_that_is_replaced_during_its_pull_is_not_used_under_its_name() {
    let ground = Ground::new();
    let first = ground.manifest(&[ground.layer(OCI_GZIP, tiny())]);
    let other = gzip(&tar_of(&[("usr/lib/os-release", "other"), ("etc/name", "other")]));
    let second = ground.manifest(&[ground.layer(OCI_GZIP, other)]);
    let (path, text) = (ground.images.path().join("tools.ref"), ground.registry.reference(&second));
    ground.registry.before_blob(move || fs::write(&path, &text).unwrap());
    assert_eq!(ground.make_digest(&first), Err(BuildError::Busy));
    assert_eq!(ground.there("trees"), Vec::<String>::new());
    ground.make().unwrap();
    assert_eq!(ground.there("trees"), [format!("tools-{}", &second[7..19])]);
}
