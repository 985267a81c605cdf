//! Creation of a sandbox: its disk, its files, its container, and the end of the one before it.

use std::{io, sync::Arc, time::Instant};

use super::{
    Local,
    blocking::unavailable,
    bundle::{ContainerSpec, Role},
    disk::{Disk, DiskLock},
    millis, removal,
    rootfs::Base,
    volume,
};
use crate::{
    base::limit,
    domain::SandboxId,
    sandbox::{Fault, Files, Sandbox, SandboxFence, Spec},
};

impl Local {
    /// Creates bundle and container, and waits for init's first response. The caller removes the remains of a
    /// failure.
    pub(super) async fn assemble(&self, spec: &Spec, epoch: i64) -> Result<(), Fault> {
        let disk = self.layout.disk(spec.org, spec.session);
        // Output of the previous sandbox.
        if disk.output.exists() {
            removal::directories(self.engine.users(), vec![disk.output.clone()]).await?;
        }
        let base = self.images.base(&spec.rootfs, &self.host)?;
        self.prepare_files(spec, &disk, &base)
            .map_err(|error| unavailable("creating its files failed", &error))?;
        let sandbox_dir = self.layout.sandbox(spec.sandbox);
        let ingredients = ContainerSpec {
            base: &base,
            disk: &disk,
            control_dir: &self.layout.control(spec.sandbox),
            egress_dir: &self.layout.egress(spec.sandbox),
            org: spec.org,
            session: spec.session,
            ids: self.engine.ids(spec.session),
            is_gvisor: self.engine.is_gvisor(),
            limits: spec.limits,
            env: &spec.env,
            orphan_seconds: self.orphan_after.map(|after| after.as_secs().max(1)),
            disk_bytes: (!disk.has_image()).then_some(spec.limits.disk_bytes),
            role: Role::Sandbox,
            user_namespace: None,
        };
        let laid_out = Instant::now();
        self.engine.run(spec.sandbox, &ingredients, &sandbox_dir).await?;
        let (runtime_ms, started) = (millis(laid_out), Instant::now());
        let init = self.init(spec.sandbox);
        let (mut pause, longest) = limit::SANDBOX_START_POLL;
        loop {
            match init.hello(epoch).await {
                Err(Fault::Gone) => {
                    if let Some(words) = self.engine.ended(spec.sandbox, &sandbox_dir).await {
                        return Err(Fault::Unavailable(format!("it ended immediately: {words}")));
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(longest);
                }
                answered => {
                    let init_ms = millis(started);
                    tracing::debug!(sandbox.id = %spec.sandbox, runtime_ms, init_ms, "sandbox started");
                    return answered;
                }
            }
        }
    }

    /// Creates the files and directories of a sandbox.
    fn prepare_files(&self, spec: &Spec, disk: &Disk, base: &Base) -> io::Result<()> {
        // A service without root cannot change owners itself.
        let ids = self.engine.users().is_none().then(|| self.engine.ids(spec.session));
        disk.record_sandbox(spec.sandbox)?;
        disk.prepare(ids)?;
        self.layout.claim(spec.sandbox, spec.org, spec.session, ids)?;
        self.layout.record_tree(spec.sandbox, base.tree.as_deref())
    }

    /// Ends the last sandbox created on a session's disk, because two sandboxes never share a disk. `Stale`
    /// if a higher epoch has attached to it.
    pub(super) async fn end_previous(&self, latest: SandboxId, spec: &Spec, epoch: i64) -> Result<(), Fault> {
        if !self.layout.sandbox(latest).exists() {
            return Ok(());
        }
        match self.attach(SandboxFence { sandbox: latest, ..spec.fence(epoch) }).await {
            Err(Fault::Stale) => Err(Fault::Stale),
            Ok(()) | Err(_) => self.destroy(latest).await,
        }
    }

    /// Prepares the session's disk. Files last changed by a sandbox that the session does not know are
    /// removed.
    pub(super) async fn ready(&self, disk: &Disk, held: &Arc<DiskLock>, spec: &Spec) -> Result<Files, Fault> {
        let mut writers = spec.previous.clone();
        writers.push(spec.sandbox);
        disk.migrate_layout()
            .map_err(|error| unavailable("its files cannot be moved to their place", &error))?;
        if self.volumes.is_none() && disk.has_image() {
            // An image that is not mounted must not be taken for an empty disk.
            let text =
                "the session's disk has its own file system, which this machine cannot mount any longer";
            return Err(Fault::Unavailable(text.to_owned()));
        }
        let is_open = match &self.volumes {
            Some(volumes) if disk.has_image() => volumes.open(disk).await?,
            Some(_) | None => !disk.has_image(),
        };
        if is_open && disk.is_usable_by(&writers, self.engine.ids(spec.session)) {
            return Ok(Files::Kept);
        }
        volume::close(disk).await?;
        removal::disk(self.engine.users(), &disk.parts()).await?;
        if let Some(volumes) = &self.volumes {
            volumes.make(disk, spec.limits.disk_bytes, Arc::clone(held)).await?;
        }
        if spec.restores {
            disk.begin_restore().map_err(|error| unavailable("its restore cannot be recorded", &error))?;
        }
        Ok(Files::Fresh)
    }
}
