//! Resources of a machine, and how full its disk is.
//!
//! Called by the composition root, by the worker's heartbeat and before a checkpoint or an image is made.

use std::{fs, io, path::Path, thread::available_parallelism};

use rustix::{fs::statvfs, system::sysinfo};

/// Resources of this machine, or of the cgroup that this process is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub cpus: u64,
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Size of the file system of the data directory.
    pub disk_bytes: u64,
}

impl Machine {
    /// Reads them.
    ///
    /// # Errors
    /// The directory is not there.
    pub fn of(data_dir: &Path) -> io::Result<Self> {
        let system = sysinfo();
        let memory = system.totalram.saturating_mul(system.mem_unit.into());
        // A container's own limits (cgroup v2, then v1).
        let in_container = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        let memory_bytes = in_container.into_iter().filter_map(number).fold(memory, u64::min);
        let of_kernel =
            ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max", "/sys/fs/cgroup/pids.max"];
        let pids = of_kernel.into_iter().filter_map(number).min().unwrap_or(u64::MAX);
        let disk = statvfs(data_dir)?;
        Ok(Self {
            cpus: available_parallelism().map_or(1, |count| count.get() as u64),
            memory_bytes,
            pids,
            disk_bytes: disk.f_blocks.saturating_mul(disk.f_frsize),
        })
    }
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_something_of_everything() {
        let machine = Machine::of(Path::new("/")).unwrap();
        let Machine { cpus, memory_bytes, pids, disk_bytes } = machine;
        assert!(cpus >= 1 && memory_bytes > 64 << 20 && pids > 100 && disk_bytes > 64 << 20, "{machine:?}");
        assert!(Machine::of(Path::new("/no/such/directory")).is_err());
    }
}
