//! Settings of admission: what sandboxes may use, each, together on a node, and together of an organization.

use std::time::Duration;

use clap::Args;

use crate::{
    base::limit::ORG_IMAGES_BYTES_MAX,
    domain::environment::{NodeCapacity, Size, bytes_of},
    node::local::capacity::Machine,
    store::admission::OrganizationMaxima,
};

/// Overcommit: the resources that a node reserves, as a multiple of what its machine has. A reservation is the limit of a
/// sandbox, most use a part of theirs, and a frozen one counts with what it uses.
const CPU_OVERCOMMIT: u64 = 16;
const MEMORY_OVERCOMMIT: u64 = 4;
const DISK_OVERCOMMIT: u64 = 4;

/// Limits of sandboxes.
#[derive(Clone, Debug, Args)]
pub struct Capacity {
    /// CPUs that the sandboxes of this node may have together [default: 16 for each CPU of the machine]
    #[arg(long, env = "SOJOURN_NODE_CPUS", value_name = "CPUS", value_parser = millis)]
    pub node_cpus: Option<u64>,

    /// Memory that they may have together, such as 24Gi; without overcommit that of the machine [default: 4 times that
    /// of the machine]
    #[arg(long, env = "SOJOURN_NODE_MEMORY", value_name = "SIZE", value_parser = bytes)]
    pub node_memory: Option<u64>,

    /// Processes that they may have together [default: those that the kernel allows]
    #[arg(long, env = "SOJOURN_NODE_PIDS", value_name = "COUNT")]
    pub node_pids: Option<u64>,

    /// Disk that running sandboxes may have together [default: 4 times that of the data directory]
    #[arg(long, env = "SOJOURN_NODE_DISK", value_name = "SIZE", value_parser = bytes)]
    pub node_disk: Option<u64>,

    /// Free space of the disk of the data directory below which no sandbox, checkpoint or image is made
    #[arg(long, default_value = "2Gi", env = "SOJOURN_NODE_DISK_FREE", value_name = "SIZE", value_parser = bytes)]
    pub node_disk_free: u64,

    /// Most CPUs of one sandbox. A setting of an environment above one of these four is refused. Must be equal in
    /// every process, like the next three
    #[arg(long, default_value = "16", env = "SOJOURN_SANDBOX_MAX_CPUS", value_name = "CPUS", value_parser = millis)]
    pub sandbox_max_cpus: u64,

    /// Most memory of one sandbox
    #[arg(long, default_value = "64Gi", env = "SOJOURN_SANDBOX_MAX_MEMORY", value_name = "SIZE", value_parser = bytes)]
    pub sandbox_max_memory: u64,

    /// Most processes of one sandbox
    #[arg(long, default_value_t = 4_096, env = "SOJOURN_SANDBOX_MAX_PIDS", value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(16..))]
    pub sandbox_max_pids: u32,

    /// Most disk of one sandbox
    #[arg(long, default_value = "256Gi", env = "SOJOURN_SANDBOX_MAX_DISK", value_name = "SIZE", value_parser = bytes)]
    pub sandbox_max_disk: u64,

    /// Most sandboxes of one organization, frozen ones too [default: no maximum]
    #[arg(long, env = "SOJOURN_ORGANIZATION_MAX_SANDBOXES", value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub organization_max_sandboxes: Option<u32>,

    /// Most memory of all sandboxes of one organization [default: no maximum]
    #[arg(long, env = "SOJOURN_ORGANIZATION_MAX_MEMORY", value_name = "SIZE", value_parser = bytes)]
    pub organization_max_memory: Option<u64>,

    /// Size of the checkpoints of one organization above which it gets no new sandbox [default: no maximum]
    #[arg(long, env = "SOJOURN_ORGANIZATION_MAX_CHECKPOINTS", value_name = "SIZE", value_parser = bytes)]
    pub organization_max_checkpoints: Option<u64>,

    /// Size on each node of the images with packages that one organization had built there: a build beyond it fails
    /// [default: 20Gi]
    #[arg(long, env = "SOJOURN_ORGANIZATION_MAX_IMAGES", value_name = "SIZE", value_parser = bytes)]
    pub organization_max_images: Option<u64>,

    /// Seconds that a session waits for capacity for its sandbox before its turn ends with sandbox_unavailable
    #[arg(long, default_value = "120", env = "SOJOURN_SANDBOX_WAIT_SECONDS", value_name = "SECONDS",
        value_parser = super::seconds)]
    pub sandbox_wait_seconds: Duration,
}

impl Capacity {
    /// Capacity of this machine for its sandboxes.
    pub fn node(&self, machine: Machine) -> NodeCapacity {
        let Machine { cpus, memory_bytes, pids, disk_bytes } = machine;
        NodeCapacity {
            cpu_millis: self.node_cpus.unwrap_or(cpus * 1_000 * CPU_OVERCOMMIT),
            memory_bytes: self.node_memory.unwrap_or(memory_bytes.saturating_mul(MEMORY_OVERCOMMIT)),
            pids: self.node_pids.unwrap_or(pids),
            disk_bytes: self.node_disk.unwrap_or(disk_bytes.saturating_mul(DISK_OVERCOMMIT)),
        }
    }

    /// Maximum size of one sandbox.
    pub fn sandbox(&self) -> Size {
        Size {
            cpu_millis: u32::try_from(self.sandbox_max_cpus).unwrap_or(u32::MAX),
            memory_bytes: self.sandbox_max_memory,
            pids: self.sandbox_max_pids,
            disk_bytes: self.sandbox_max_disk,
        }
    }

    /// Maxima of one organization.
    pub fn organization(&self) -> OrganizationMaxima {
        OrganizationMaxima {
            sandboxes: self.organization_max_sandboxes,
            memory_bytes: self.organization_max_memory,
            checkpoint_bytes: self.organization_max_checkpoints,
            image_bytes: Some(self.organization_max_images.unwrap_or(ORG_IMAGES_BYTES_MAX)),
        }
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    bytes_of(text).ok_or_else(|| "must be a size, such as 512Mi or 2Gi".to_owned())
}

/// Thousandths of a CPU.
fn millis(text: &str) -> Result<u64, String> {
    let cpus: f64 = text.parse().map_err(|_| "must be a number of CPUs, such as 2 or 0.5".to_owned())?;
    if (0.1..=100_000.0).contains(&cpus) {
        Ok((cpus * 1_000.0) as u64)
    } else {
        Err("must be at least 0.1".to_owned())
    }
}
