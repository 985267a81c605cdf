//! Images that the operator registered in the directory `SOJOURN_IMAGES`.
//!
//! Called by `image`, and by `registry`, which pulls an image into a layout. A name maps to one entry of that directory and nothing else; organizations name images,
//! never paths. The version is derived from the entry's metadata, so an operator replaces an image by
//! replacing the entry.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::reference;
use crate::{
    base::{
        limit::{IMAGE_LAYERS_MAX, IMAGE_MANIFEST_BYTES_MAX},
        seal::sha256,
        text::hex,
    },
    domain::rootfs::is_image_name,
};

/// A registered image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registered {
    pub path: PathBuf,
    pub form: Form,
    /// Differs for different content.
    pub version: String,
}

/// Form of a registered image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A directory with an `oci-layout` file.
    Layout,
    /// A directory with a root file system.
    Directory,
    /// An archive of a root file system.
    Tar,
    /// A file that refers to an image of a registry.
    Reference,
}

/// A layer of an image: its file and compression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub path: PathBuf,
    pub packing: Packing,
    /// Its SHA-256, if a manifest states it.
    pub digest: Option<String>,
}

/// Compression of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Gzip,
    Zstd,
}

const TAR_ENDINGS: [(&str, Packing); 5] = [
    (".tar", Packing::None),
    (".tar.gz", Packing::Gzip),
    (".tgz", Packing::Gzip),
    (".tar.zst", Packing::Zstd),
    (".tar.zstd", Packing::Zstd),
];

/// A document of a registry: an index or a manifest.
#[derive(Deserialize)]
struct Document {
    manifests: Option<Vec<Descriptor>>,
    layers: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// Finds the image of that name in the operator's directory.
pub(super) fn find(directory: &Path, name: &str) -> Option<Registered> {
    if !is_image_name(name) {
        return None;
    }
    let path = directory.join(name);
    if path.join("oci-layout").is_file() {
        let stamp = stamp(&path.join("index.json"))?;
        return Some(Registered { path, form: Form::Layout, version: stamp });
    }
    if path.is_dir() {
        let stamp = stamp(&path)?;
        return Some(Registered { path, form: Form::Directory, version: stamp });
    }
    let tar = TAR_ENDINGS.iter().find_map(|(ending, _)| {
        let path = directory.join(format!("{name}{ending}"));
        let is_there = path.is_file();
        let version = stamp(&path).filter(|_| is_there)?;
        Some(Registered { path, form: Form::Tar, version })
    });
    tar.or_else(|| {
        let path = directory.join(format!("{name}{}", reference::SUFFIX));
        let stamp = stamp(&path).filter(|_| path.is_file())?;
        // The same image, whatever the file's age and the registry. A malformed one is reported when it is used.
        let version = reference::read(&path).map_or(stamp, |reference| reference::version(&reference));
        Some(Registered { path, form: Form::Reference, version })
    })
}

/// Lists the operator's directory: the names of usable images, and the unusable entries with reasons. Both
/// are sorted.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn list_entries(directory: &Path) -> io::Result<(Vec<String>, Vec<String>)> {
    let (mut images, mut others) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(directory)? {
        let file = entry?.file_name().to_string_lossy().into_owned();
        // Present when the directory is a mount point or a repository.
        if file == "lost+found" || file.starts_with('.') {
            continue;
        }
        let mut endings = TAR_ENDINGS.iter().map(|(ending, _)| *ending).chain([reference::SUFFIX]);
        let name = endings.find_map(|ending| file.strip_suffix(ending)).unwrap_or(&file);
        match find(directory, name).map(|image| check(&image)) {
            Some(Ok(())) => images.push(name.to_owned()),
            Some(Err(error)) => others.push(format!("{file} ({error})")),
            None => others.push(format!("{file} (not an image, or not a valid image name)")),
        }
    }
    images.sort();
    images.dedup();
    others.sort();
    Ok((images, others))
}

/// Checks an image without unpacking it, and without its registry.
fn check(image: &Registered) -> io::Result<()> {
    match image.form {
        Form::Reference => reference::read(&image.path).map(drop).map_err(io::Error::other),
        Form::Layout | Form::Directory | Form::Tar => layers(image).map(drop),
    }
}

/// Hash of a file's inode, size and modification time: identifies its state without reading it.
fn stamp(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    let words = format!("{} {} {}.{}", meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec());
    Some(hex(&sha256(words.as_bytes())[..6]))
}

/// Layers of an image that is an archive or an OCI layout, the lowest first.
pub(super) fn layers(image: &Registered) -> io::Result<Vec<Layer>> {
    if image.form != Form::Layout {
        let name = image.path.to_string_lossy();
        let packing = TAR_ENDINGS.iter().rev().find(|(ending, _)| name.ends_with(ending));
        let packing = packing.map_or(Packing::None, |(_, packing)| *packing);
        return Ok(vec![Layer { path: image.path.clone(), packing, digest: None }]);
    }
    let index: Index = parsed(&read(&image.path.join("index.json"))?)?;
    let mut chosen = chosen(index.manifests)?;
    if chosen.media_type.contains("index") || chosen.media_type.contains("manifest.list") {
        let nested: Index = parsed(&blob(&image.path, &chosen.digest)?)?;
        chosen = self::chosen(nested.manifests)?;
    }
    let manifest: Manifest = parsed(&blob(&image.path, &chosen.digest)?)?;
    if manifest.layers.len() > IMAGE_LAYERS_MAX {
        return Err(io::Error::other(format!("the image has more than {IMAGE_LAYERS_MAX} layers")));
    }
    let layer = |layer: Descriptor| {
        let packing = match layer.media_type.rsplit(['+', '.']).next() {
            Some("gzip") => Packing::Gzip,
            Some("zstd") => Packing::Zstd,
            Some("tar") => Packing::None,
            _ => return Err(io::Error::other(format!("unsupported layer type {}", layer.media_type))),
        };
        let path = blob_path(&image.path, &layer.digest)?;
        let digest = layer.digest.strip_prefix("sha256:").map(str::to_owned);
        Ok(Layer { path, packing, digest })
    };
    manifest.layers.into_iter().map(layer).collect()
}

/// Digest of the manifest for this machine if the document is an index, `None` if it is a manifest.
pub(super) fn chosen_in(document: &[u8]) -> io::Result<Option<String>> {
    let Document { manifests, layers } = parsed(document)?;
    match (manifests, layers) {
        (Some(manifests), None) => Ok(Some(chosen(manifests)?.digest)),
        (None, Some(_)) => Ok(None),
        // One that is both would be another image for another reader.
        (Some(_), Some(_)) | (None, None) => Err(io::Error::other("it is neither an index nor a manifest")),
    }
}

/// Compares the platform in the configuration of an image with this machine.
pub(super) fn check_platform(config: &[u8]) -> io::Result<()> {
    let Platform { architecture: its, os } = parsed(config)?;
    let architecture = architecture();
    match os == "linux" && its == architecture {
        true => Ok(()),
        false => {
            let words = format!("the image is for {os:?} {its:?}, and this machine is linux/{architecture}");
            Err(io::Error::other(words))
        }
    }
}

/// Architecture of this machine, as images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Manifest for this machine's architecture, or the only manifest.
fn chosen(mut manifests: Vec<Descriptor>) -> io::Result<Descriptor> {
    let architecture = architecture();
    let fits = |one: &Descriptor| {
        one.platform.as_ref().is_some_and(|its| its.architecture == architecture && its.os == "linux")
    };
    let at = match manifests.as_slice() {
        [_] => Some(0),
        several => several.iter().position(fits),
    };
    at.map(|at| manifests.swap_remove(at))
        .ok_or_else(|| io::Error::other(format!("the image has no manifest for linux/{architecture}")))
}

/// Path of a blob. The digest is checked to be hexadecimal, so the path cannot leave the directory.
pub(super) fn blob_path(layout: &Path, digest: &str) -> io::Result<PathBuf> {
    let hex = digest.strip_prefix("sha256:").filter(|hex| {
        hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    });
    hex.map(|hex| layout.join("blobs/sha256").join(hex))
        .ok_or_else(|| io::Error::other(format!("the blob name {digest:?} is not a SHA-256 digest")))
}

/// Reads a small blob and verifies its digest.
pub(super) fn blob(layout: &Path, digest: &str) -> io::Result<Vec<u8>> {
    let bytes = read(&blob_path(layout, digest)?)?;
    match digest.strip_prefix("sha256:") == Some(&hex(&sha256(&bytes))) {
        true => Ok(bytes),
        false => Err(io::Error::other(format!("the blob {digest} does not match its digest"))),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(IMAGE_MANIFEST_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parsed<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|error| io::Error::other(format!("the index is invalid: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_in_its_directory_and_nowhere_else() {
        let ground = tempfile::tempdir().unwrap();
        let images = ground.path().join("images");
        fs::create_dir_all(images.join("tree/usr")).unwrap();
        fs::create_dir_all(images.join("layout")).unwrap();
        fs::create_dir_all(ground.path().join("outside")).unwrap();
        fs::write(images.join("layout/oci-layout"), "{}").unwrap();
        fs::write(images.join("layout/index.json"), "{}").unwrap();
        fs::write(images.join("packed.tar.gz"), "").unwrap();
        let form = |name: &str| find(&images, name).map(|image| image.form);
        assert_eq!(form("tree"), Some(Form::Directory));
        assert_eq!(form("layout"), Some(Form::Layout));
        assert_eq!(form("packed"), Some(Form::Tar));
        for name in ["none", "..", "../outside", "tree/usr", "", "/etc", "packed.tar.gz"] {
            assert_eq!(form(name), None, "{name}");
        }
        let before = find(&images, "packed").unwrap();
        fs::write(images.join("packed.tar.gz"), "another").unwrap();
        assert_ne!(find(&images, "packed").unwrap().version, before.version);
        assert_eq!(layers(&before).unwrap()[0].packing, Packing::Gzip);
    }

    #[test]
    fn the_version_of_an_image_of_a_registry_is_its_digest() {
        let ground = tempfile::tempdir().unwrap();
        let version = |registry: &str, digits: &str| {
            let text = format!("{registry}/tools@sha256:{}", digits.repeat(32));
            fs::write(ground.path().join("tools.ref"), text).unwrap();
            let image = find(ground.path(), "tools").unwrap();
            assert_eq!(image.form, Form::Reference);
            image.version
        };
        let first = version("registry.example", "5e");
        assert_eq!((first.as_str(), version("mirror.example:5000", "5e")), ("5e5e5e5e5e5e", first.clone()));
        assert_ne!(version("registry.example", "5f"), first);
    }

    #[test]
    fn the_manifest_of_an_index_is_that_for_this_machine() {
        let entry = |digest: &str, platform: &str| {
            format!(r#"{{"mediaType":"m","digest":"{digest}","size":1,"platform":{platform}}}"#)
        };
        let of = |os: &str, its: &str| format!(r#"{{"os":"{os}","architecture":"{its}"}}"#);
        let index = |entries: &[String]| format!(r#"{{"manifests":[{}]}}"#, entries.join(","));
        let foreign = [entry("a", &of("linux", "riscv64")), entry("b", &of("windows", architecture()))];
        let all = [&foreign[..], &[entry("c", &of("linux", architecture()))]].concat();
        assert_eq!(chosen_in(index(&all).as_bytes()).unwrap(), Some("c".to_owned()));
        let refused = chosen_in(index(&foreign).as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("no manifest for linux/"), "{refused}");
        assert_eq!(chosen_in(br#"{"layers":[]}"#).unwrap(), None);
        for document in [r#"{"layers":[],"manifests":[]}"#, "{}", "[]", "nonsense"] {
            assert!(chosen_in(document.as_bytes()).is_err(), "{document}");
        }
        check_platform(of("linux", architecture()).as_bytes()).unwrap();
        for config in [of("linux", "riscv64"), of("windows", architecture()), "{}".to_owned()] {
            assert!(check_platform(config.as_bytes()).is_err(), "{config}");
        }
    }

    #[test]
    fn unusable_entries_are_listed_separately() {
        let ground = tempfile::tempdir().unwrap();
        let images = ground.path();
        for directory in ["tree", "broken", "lost+found", ".git"] {
            fs::create_dir(images.join(directory)).unwrap();
        }
        fs::write(images.join("broken/oci-layout"), "{}").unwrap();
        fs::write(images.join("broken/index.json"), "{}").unwrap();
        for file in ["packed.tar.gz", "Upper.tar", "notes.txt"] {
            fs::write(images.join(file), "").unwrap();
        }
        fs::write(images.join("tagged.ref"), "registry.example/tools:1.0").unwrap();
        let digest = format!("sha256:{}", "5e".repeat(32));
        fs::write(images.join("pulled.ref"), format!("registry.example/tools@{digest}\n")).unwrap();
        let (had, others) = list_entries(images).unwrap();
        assert_eq!(had, ["packed", "pulled", "tree"]);
        let files: Vec<_> = others.iter().map(|one| one.split(' ').next().unwrap()).collect();
        assert_eq!(files, ["Upper.tar", "broken", "notes.txt", "tagged.ref"]);
        assert!(others[1].contains("the index is invalid"), "{others:?}");
        assert!(others[3].contains("a tag can change"), "{others:?}");
        assert!(list_entries(&images.join("none")).is_err());
    }

    #[test]
    fn a_layout_names_its_layers_by_their_digests() {
        let ground = tempfile::tempdir().unwrap();
        let path = ground.path().join("layout");
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        fs::write(path.join("oci-layout"), "{}").unwrap();
        let put = |text: &str| {
            let digest = hex(&sha256(text.as_bytes()));
            fs::write(path.join("blobs/sha256").join(&digest), text).unwrap();
            format!("sha256:{digest}")
        };
        let layer = put("a layer");
        let of = |typ: &str, digest: &str| format!(r#"{{"mediaType":"{typ}","digest":"{digest}","size":1}}"#);
        let gzip = "application/vnd.oci.image.layer.v1.tar+gzip";
        let manifest = put(&format!(r#"{{"layers":[{}]}}"#, of(gzip, &layer)));
        let write = |manifest: &str| {
            let entry = of("application/vnd.oci.image.manifest.v1+json", manifest);
            fs::write(path.join("index.json"), format!(r#"{{"manifests":[{entry}]}}"#)).unwrap();
        };
        write(&manifest);
        let image = find(ground.path(), "layout").unwrap();
        let found = layers(&image).unwrap();
        assert_eq!((found.len(), found[0].packing), (1, Packing::Gzip));
        assert_eq!(found[0].digest.as_ref().map(|hex| format!("sha256:{hex}")), Some(layer.clone()));
        write("sha256:../../../../etc/passwd");
        assert!(layers(&image).is_err());
        fs::write(path.join("blobs/sha256").join(&manifest[7..]), "changed").unwrap();
        write(&manifest);
        assert!(layers(&image).unwrap_err().to_string().contains("does not match its digest"));
    }
}
