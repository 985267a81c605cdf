//! cgroups of organizations: each contains those of the organization's sandboxes.
//!
//! All organizations have the same weight, and the sandboxes of one share what it gets: many sandboxes of one
//! organization take no more from another one than a single sandbox does. The cgroup of an organization is
//! created with its first sandbox and removed with its last one. Several processes of the machine do that at
//! the same time, so both are done under a lock.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{super::layout::Layout, Cgroups, PARENT, cgroup_of, limits::weight_of, make_dir, pass_on};
use crate::{
    base::limit,
    domain::{OrgId, SandboxId},
};

impl Cgroups {
    /// Organization in whose cgroup a sandbox is: that of its owner. An installation has no owner and is found by its
    /// name. `None` for a sandbox of which nothing is left.
    pub(in crate::node::local) fn organization_of(
        &self,
        sandbox: SandboxId,
        layout: &Layout,
    ) -> Option<OrgId> {
        if let Some((org, _)) = layout.owner(sandbox) {
            return Some(org);
        }
        let id = sandbox.to_string();
        let organizations =
            |mount: &PathBuf| fs::read_dir(mount.join(PARENT)).into_iter().flatten().flatten();
        let mut organizations = self.mounts.iter().flat_map(organizations);
        let found = organizations.find(|organization| organization.path().join(&id).exists())?;
        found.file_name().to_str()?.parse().ok()
    }

    /// Paths at which a sandbox's cgroups may be: in those of its organization, and beside them, where earlier versions
    /// created them: such a sandbox may run across an upgrade.
    pub(super) fn possible(&self, org: Option<OrgId>, sandbox: SandboxId) -> Vec<PathBuf> {
        let beside = Path::new(PARENT).join(sandbox.to_string());
        let paths: Vec<_> = org.map(|org| cgroup_of(org, sandbox)).into_iter().chain([beside]).collect();
        self.mounts.iter().flat_map(|mount| paths.iter().map(move |path| mount.join(path))).collect()
    }

    /// Waits for the exclusive right to create and remove cgroups of organizations; it ends when the file is closed.
    ///
    /// `None` if it is not free in time: every user of the machine may open the directory and lock it.
    pub(super) async fn lock(&self) -> Option<File> {
        let until = Instant::now() + limit::CGROUP_LOCK_TIMEOUT;
        // All services of the machine have this directory in common.
        let directory = File::open(self.memory.join(PARENT)).ok()?;
        loop {
            match directory.try_lock() {
                Ok(()) => return Some(directory),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    tokio::time::sleep(limit::SANDBOX_START_POLL.0).await;
                }
                Err(error) => {
                    let error: io::Error = error.into();
                    tracing::warn!(%error, "the cgroups of organizations could not be locked");
                    return None;
                }
            }
        }
    }

    /// Creates the cgroup of an organization for memory, and where it has a weight; the runtime creates the others.
    ///
    /// Its weight for reads and writes is the default of the kernel, if that has such weights.
    pub(super) fn make_organization(&self, org: OrgId) -> io::Result<()> {
        let cgroup = Path::new(PARENT).join(org.to_string());
        let directory = self.memory.join(&cgroup);
        make_dir(&directory)?;
        if self.unified {
            pass_on(&directory)?;
        }
        // The weight of a sandbox: one that an earlier version created beside it then counts as an organization.
        let shares = limit::SANDBOX_CPU_SHARES;
        self.set_weight(&cgroup, shares, weight_of(shares));
        Ok(())
    }

    /// Removes the cgroups of an organization that has no sandbox any more.
    pub(super) async fn remove_organization(&self, org: OrgId) {
        // Without the lock they stay until the next sandbox of the organization is removed.
        let Some(_lock) = self.lock().await else { return };
        let remove = |mount: &Path| match fs::remove_dir(mount.join(PARENT).join(org.to_string())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
        // That for memory contains each sandbox, also one whose other cgroups the runtime is about to create.
        if remove(&self.memory).is_ok() {
            for mount in &self.mounts {
                // Another process may be removing a sandbox that is still in it, and then removes it, too.
                let _ = remove(mount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use uuid::Uuid;

    use super::{super::Mounted, *};
    use crate::domain::SessionId;

    /// Hierarchies of v1 with the parent of all organizations.
    fn hierarchies(root: &Path) -> Cgroups {
        let mounted = |controller: &str| Mounted {
            path: root.join(controller),
            v1_controllers: Some(vec![controller.to_owned()]),
        };
        let cgroups = Cgroups::among(&["cpu", "memory", "pids"].map(mounted)).unwrap();
        for mount in &cgroups.mounts {
            fs::create_dir_all(mount.join(PARENT)).unwrap();
        }
        cgroups
    }

    fn ids() -> (OrgId, [SandboxId; 2]) {
        let [one, other] = [1, 2].map(|bits| SandboxId::from_uuid(Uuid::from_u128(bits)));
        (OrgId::from_uuid(Uuid::from_u128(3)), [one, other])
    }

    /// Creates the directories that a runtime creates.
    fn start(cgroups: &Cgroups, org: OrgId, sandbox: SandboxId) {
        for mount in &cgroups.mounts {
            fs::create_dir_all(mount.join(cgroup_of(org, sandbox))).unwrap();
        }
    }

    #[tokio::test]
    async fn the_cgroup_of_an_organization_is_removed_with_its_last_sandbox() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = hierarchies(root.path());
        let (org, [one, other]) = ids();
        let exists = |mount: &PathBuf| mount.join(PARENT).join(org.to_string()).exists();
        for sandbox in [one, other] {
            cgroups.make(org, sandbox).await.unwrap();
            start(&cgroups, org, sandbox);
        }
        cgroups.remove(Some(org), one).await.unwrap();
        assert!(cgroups.mounts.iter().all(exists), "the other sandbox is in it");
        cgroups.remove(Some(org), other).await.unwrap();
        assert!(!cgroups.mounts.iter().any(exists), "it is left");
        cgroups.remove(Some(org), other).await.unwrap();
    }

    #[tokio::test]
    async fn the_cgroups_of_a_sandbox_that_is_about_to_start_are_not_removed() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = hierarchies(root.path());
        let (org, [one, other]) = ids();
        cgroups.make(org, one).await.unwrap();
        start(&cgroups, org, one);
        // Its runtime has created nothing yet.
        cgroups.make(org, other).await.unwrap();
        cgroups.remove(Some(org), one).await.unwrap();
        assert!(cgroups.mounts.iter().all(|mount| mount.join(PARENT).join(org.to_string()).exists()));
    }

    #[tokio::test]
    async fn an_organization_has_the_weight_of_a_sandbox_of_an_earlier_version() {
        let root = tempfile::tempdir().unwrap();
        let (org, [sandbox, _]) = ids();
        let (v1, v2) = (hierarchies(root.path()), root.path().join("unified"));
        fs::write(root.path().join("cpu").join(PARENT).join("cpu.shares"), "").unwrap();
        let mounted = [Mounted { path: v2.clone(), v1_controllers: None }];
        let unified = Cgroups::among(&mounted).unwrap();
        // The kernel creates the files of a cgroup.
        for (mount, file) in [(root.path().join("cpu"), "cpu.shares"), (v2.clone(), "cpu.weight")] {
            let organization = mount.join(PARENT).join(org.to_string());
            fs::create_dir_all(&organization).unwrap();
            fs::write(organization.join(file), "").unwrap();
        }
        v1.make(org, sandbox).await.unwrap();
        unified.make(org, sandbox).await.unwrap();
        let read = |mount: &Path, file: &str| {
            fs::read_to_string(mount.join(PARENT).join(org.to_string()).join(file)).unwrap()
        };
        assert_eq!(read(&root.path().join("cpu"), "cpu.shares"), "256");
        assert_eq!(read(&v2, "cpu.weight"), "10");
        assert_eq!(read(&v2, "cgroup.subtree_control"), "+cpu +memory +pids");
    }

    #[tokio::test]
    async fn a_sandbox_of_an_earlier_version_is_found_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = hierarchies(root.path());
        let (org, [former, one]) = ids();
        let beside = cgroups.memory.join(PARENT).join(former.to_string());
        fs::create_dir(&beside).unwrap();
        start(&cgroups, org, one);
        for known in [None, Some(org)] {
            assert_eq!(cgroups.directories(known, former), std::slice::from_ref(&beside));
        }
        cgroups.remove(Some(org), former).await.unwrap();
        assert!(!beside.exists());
        assert_eq!(cgroups.directories(Some(org), one).len(), 3, "the sandbox in its organization stays");
    }

    #[test]
    fn the_organization_is_that_of_the_owner_or_of_the_cgroup() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = hierarchies(root.path());
        let layout = Layout::new(root.path().join("data"), root.path().join("run"));
        let (org, [owned, other]) = ids();
        assert_eq!(cgroups.organization_of(other, &layout), None);
        start(&cgroups, org, other);
        assert_eq!(cgroups.organization_of(other, &layout), Some(org));
        let (owner, session) = (OrgId::from_uuid(Uuid::nil()), SessionId::from_uuid(Uuid::nil()));
        fs::create_dir_all(layout.sandbox(owned)).unwrap();
        fs::write(layout.sandbox(owned).join("owner"), format!("{owner} {session}")).unwrap();
        assert_eq!(cgroups.organization_of(owned, &layout), Some(owner));
    }

    #[tokio::test]
    async fn one_process_at_a_time_changes_the_cgroups_of_organizations() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = hierarchies(root.path());
        let held = cgroups.lock().await.expect("it is free");
        let (org, [sandbox, _]) = ids();
        let making = cgroups.make(org, sandbox);
        tokio::pin!(making);
        assert!(making.as_mut().now_or_never().is_none(), "another process has the lock");
        assert!(!cgroups.memory.join(PARENT).join(org.to_string()).exists());
        drop(held);
        making.await.unwrap();
        assert!(cgroups.memory.join(cgroup_of(org, sandbox)).exists());
    }
}
