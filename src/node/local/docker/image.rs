//! The Docker image of profile `host`: the same skeleton as with an OCI runtime, into which `/usr` of this
//! machine is mounted.

use std::path::Path;

use bollard::{body_full, query_parameters::CreateImageOptions};
use futures::StreamExt;

const REPOSITORY: &str = "sojourn-host";

/// Imports the skeleton into the daemon unless it has it already. Returns the image's name.
///
/// # Errors
/// A message for the operator.
pub(super) async fn import(client: &bollard::Docker, rootfs: &Path) -> Result<String, String> {
    // The tag is the directory's name, which is derived from its content.
    let tag = rootfs.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let image = format!("{REPOSITORY}:{tag}");
    if client.inspect_image(&image).await.is_ok() {
        return Ok(image);
    }
    let mut archive = tar::Builder::new(Vec::new());
    archive.follow_symlinks(false);
    let packed = archive.append_dir_all(".", rootfs).and_then(|()| archive.into_inner());
    let packed = packed.map_err(|error| format!("the root file system cannot be packed: {error}"))?;
    let options = CreateImageOptions {
        from_src: Some("-".to_owned()),
        repo: Some(REPOSITORY.to_owned()),
        tag: Some(tag),
        ..CreateImageOptions::default()
    };
    let mut progress = Box::pin(client.create_image(Some(options), Some(body_full(packed.into())), None));
    while let Some(step) = progress.next().await {
        step.map_err(|error| format!("the root file system cannot be imported: {error}"))?;
    }
    Ok(image)
}
