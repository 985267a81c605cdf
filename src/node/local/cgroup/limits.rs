//! Limits of the cgroup of a sandbox.
//!
//! Called by `oci` before a start. The runtime sets the limits of the cgroups that it creates itself.

use std::{fs, io};

use oci_spec::runtime::{LinuxMemory, LinuxResources};

use super::{Cgroups, cgroup_of};
use crate::domain::{OrgId, SandboxId};

impl Cgroups {
    /// Sets the limits of the cgroup that [`Self::make`] created: gVisor leaves those of a cgroup that exists as they are.
    pub(in crate::node::local) fn limit(
        &self,
        org: OrgId,
        sandbox: SandboxId,
        resources: &LinuxResources,
    ) -> io::Result<()> {
        let directory = self.memory.join(cgroup_of(org, sandbox));
        let set = |name: &str, value: &str| fs::write(directory.join(name), value);
        if let Some(bytes) = resources.memory().as_ref().and_then(LinuxMemory::limit) {
            let bytes = bytes.to_string();
            set(if self.unified { "memory.max" } else { "memory.limit_in_bytes" }, &bytes)?;
            match (self.limits_swap, self.unified) {
                (false, _) => {}
                (true, true) => set("memory.swap.max", "0")?,
                // It includes memory.
                (true, false) => set("memory.memsw.limit_in_bytes", &bytes)?,
            }
        }
        if !self.unified {
            // The runtime creates the cgroups of the other hierarchies, with their limits.
            return Ok(());
        }
        if let Some(pids) = resources.pids().as_ref() {
            set("pids.max", &pids.limit().to_string())?;
        }
        if let Some(cpu) = resources.cpu().as_ref() {
            if let Some((quota, period)) = cpu.quota().zip(cpu.period()) {
                set("cpu.max", &format!("{quota} {period}"))?;
            }
            if let Some(shares) = cpu.shares() {
                set("cpu.weight", &weight_of(shares).to_string())?;
            }
        }
        let Some(io) = resources.block_io().as_ref() else { return Ok(()) };
        for (key, devices) in [
            ("rbps", io.throttle_read_bps_device()),
            ("wbps", io.throttle_write_bps_device()),
            ("riops", io.throttle_read_iops_device()),
            ("wiops", io.throttle_write_iops_device()),
        ] {
            for device in devices.iter().flatten() {
                let (major, minor, rate) = (device.major(), device.minor(), device.rate());
                set("io.max", &format!("{major}:{minor} {key}={rate}"))?;
            }
        }
        Ok(())
    }
}

/// Returns the weight of cgroups v2 for shares of v1, as runc converts them.
pub(super) fn weight_of(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9_999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::{super::Mounted, *};

    #[tokio::test]
    async fn on_v2_the_cgroup_of_a_sandbox_gets_all_of_its_limits() {
        let root = tempfile::tempdir().unwrap();
        let mounted = [Mounted { path: root.path().to_owned(), v1_controllers: None }];
        let cgroups = Cgroups { limits_swap: true, ..Cgroups::among(&mounted).unwrap() };
        let org = OrgId::from_uuid(uuid::Uuid::from_u128(2));
        let sandbox = SandboxId::from_uuid(uuid::Uuid::from_u128(1));
        cgroups.make_parent().unwrap();
        cgroups.make(org, sandbox).await.unwrap();
        let limits = serde_json::json!({
            "memory": { "limit": 268_435_456, "swap": 268_435_456 },
            "cpu": { "shares": 1_024, "quota": 50_000, "period": 100_000 },
            "pids": { "limit": 64 },
            "blockIO": { "throttleWriteIOPSDevice": [{ "major": 7, "minor": 3, "rate": 500 }] },
        });
        cgroups.limit(org, sandbox, &serde_json::from_value(limits).unwrap()).unwrap();
        let directory = root.path().join(cgroup_of(org, sandbox));
        for (name, value) in [
            ("memory.max", "268435456"),
            ("memory.swap.max", "0"),
            ("pids.max", "64"),
            ("cpu.max", "50000 100000"),
            ("cpu.weight", "39"),
            ("io.max", "7:3 wiops=500"),
        ] {
            assert_eq!(fs::read_to_string(directory.join(name)).unwrap(), value, "{name}");
        }
    }
}
