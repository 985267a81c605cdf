//! Greedy neighbors: one sandbox takes all that it can get of a resource of the machine; another one, and the
//! machine itself, still have what they need.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use sojourn::domain::OrgId;

use super::{
    Provider, World, limits,
    local::{LocalProvider, cgroups_of},
    run,
};

/// A resource: its name, a command that takes all it can and prints how much, the most that one sandbox may take,
/// and a command that needs some.
pub struct Shared {
    pub name: &'static str,
    take: &'static str,
    most: usize,
    need: &'static str,
}

const TAKE: &str = "import ctypes, os, pty, sys, time
libc = ctypes.CDLL(None)
def take(one, most = 20_000):
    held = []
    while len(held) < most:
        try:
            held.append(one())
        except OSError:
            break
    print('held', len(held), flush=True)
    return held
def inotify():
    descriptor = libc.inotify_init()
    if descriptor < 0:
        raise OSError()
    return descriptor
def made(answer):
    if answer < 0:
        raise OSError()
    return answer
def segment():
    return made(libc.shmget(0, 4096, 0o1600))
def semaphores():
    return made(libc.semget(0, 1, 0o1600))
count = 0
def queue():
    global count
    count += 1
    return made(libc.mq_open(b'/queue-%d' % count, os.O_CREAT | os.O_RDWR, 0o600, None))
def process():
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    return pid
def descriptor():
    return os.open('/dev/null', os.O_RDONLY)
";

pub const RESOURCES: [Shared; 7] = [
    Shared {
        name: "pseudo terminals (kernel.pty.max)",
        take: "held = take(pty.openpty)",
        most: 64,
        need: "[pty.openpty() for _ in range(8)]",
    },
    Shared {
        name: "inotify instances (fs.inotify.max_user_instances)",
        take: "held = take(inotify)",
        most: 128,
        need: "[inotify() for _ in range(32)]",
    },
    Shared {
        name: "System V shared memory (kernel.shmmni)",
        take: "held = take(segment)",
        most: 4_096,
        need: "[libc.shmctl(made(segment()), 0, None) for _ in range(32)]",
    },
    Shared {
        name: "System V semaphores (kernel.sem)",
        // More than a machine has for all namespaces by default: 32,000.
        take: "held = take(semaphores, 40_000)",
        most: 32_000,
        need: "[libc.semctl(made(semaphores()), 0, 0) for _ in range(32)]",
    },
    Shared {
        name: "POSIX message queues (fs.mqueue.queues_max)",
        take: "held = take(queue)",
        most: 256,
        need: "held = [queue() for _ in range(4)]; [libc.mq_unlink(b'/queue-%d' % one) for one in range(1, 5)]",
    },
    Shared {
        name: "processes (kernel.pid_max)",
        take: "held = take(process)",
        most: 512,
        need: "[os.kill(process(), 9) for _ in range(32)]",
    },
    Shared {
        name: "open files (fs.file-max)",
        take: "held = take(descriptor)",
        most: 20_000,
        need: "[descriptor() for _ in range(256)]",
    },
];

impl World<'_> {
    /// A sandbox of another organization on the same machine.
    async fn neighbor(&self) -> World<'_> {
        self.beside(self.origin.id()).await
    }

    /// A sandbox of an organization on the same machine.
    async fn beside(&self, org: OrgId) -> World<'_> {
        let mut spec = self.spec.clone();
        (spec.sandbox, spec.org, spec.session) = (self.origin.id(), org, self.origin.id());
        let fence = spec.fence(1);
        let sandbox = self.provider.open();
        sandbox.create(&spec, fence.epoch).await.expect("a sandbox can be made");
        World { provider: self.provider, sandbox, spec, fence, origin: self.origin.clone() }
    }

    /// Cgroups that contain that of the sandbox, one in each hierarchy.
    fn parents(&self) -> BTreeSet<PathBuf> {
        let cgroups = cgroups_of(&self.spec.sandbox.to_string());
        cgroups.iter().filter_map(|path| Path::new(path).parent()).map(Path::to_owned).collect()
    }

    fn python(&self, id: &str, program: &str) -> super::Exec {
        let argv = ["python3", "-c", program].map(str::to_owned).to_vec();
        super::Exec { argv, ..self.shell(id, "") }
    }
}

fn has_enough_beside_a_greedy_one(shared: &'static Shared) {
    holds_with(&LocalProvider::new(), shared);
}

/// Asserts that sandboxes of a provider leave enough of a resource.
pub fn holds_with<P: Provider>(provider: &P, shared: &'static Shared) {
    run(provider, limits(), |world| {
        Box::pin(async move {
            let Shared { name, take, most, need } = shared;
            let greedy = world.python("greedy", &format!("{TAKE}{take}\ntime.sleep(600)\n"));
            world.sandbox.start(world.fence, &greedy).await.unwrap();
            world.printed("greedy", "held").await;
            let said = world.output("greedy", super::OutputStream::Stdout).await;
            let held: usize = said.trim().rsplit(' ').next().expect("a number").parse().expect("a number");
            assert!(held <= *most, "{name}: one sandbox got {held}");
            let neighbor = world.neighbor().await;
            let ran =
                neighbor.ran(&neighbor.python("needs", &format!("{TAKE}{need}\nprint('works')\n"))).await;
            neighbor.end().await;
            assert_eq!(ran.stdout, "works\n", "{name}: {}", ran.stderr);
            // The machine's own services run as root.
            let own = std::process::Command::new("python3").args(["-c", &format!("{TAKE}{need}\n")]).output();
            let own = own.expect("python3 runs");
            assert!(own.status.success(), "{name}: {}", String::from_utf8_lossy(&own.stderr));
        })
    });
}

#[test]
fn terminals_are_left_for_others() {
    has_enough_beside_a_greedy_one(&RESOURCES[0]);
}

#[test]
fn inotify_instances_are_left_for_others() {
    has_enough_beside_a_greedy_one(&RESOURCES[1]);
}

#[test]
fn shared_memory_is_left_for_others() {
    has_enough_beside_a_greedy_one(&RESOURCES[2]);
}

#[test]
fn semaphores_are_left_for_others() {
    has_enough_beside_a_greedy_one(&RESOURCES[3]);
}

#[test]
fn message_queues_are_left_for_others() {
    has_enough_beside_a_greedy_one(&RESOURCES[4]);
}

#[test]
fn processes_are_left_for_others() {
    has_enough_beside_a_greedy_one(&RESOURCES[5]);
}

#[test]
fn open_files_are_left_for_others() {
    has_enough_beside_a_greedy_one(&RESOURCES[6]);
}

/// Weights of cgroups for processors; other hierarchies have none.
fn weights(cgroups: &BTreeSet<PathBuf>) -> BTreeSet<String> {
    let weight = |cgroup: &PathBuf| {
        let files = ["cpu.shares", "cpu.weight"].map(|file| fs::read_to_string(cgroup.join(file)));
        files.into_iter().flatten().next().map(|weight| weight.trim().to_owned())
    };
    cgroups.iter().filter_map(weight).collect()
}

fn organizations_have_equal_weights(provider: &LocalProvider) {
    run(provider, limits(), |world| {
        Box::pin(async {
            let second = world.beside(world.spec.org).await;
            let neighbor = world.neighbor().await;
            let [own, of_second, of_neighbor] = [world.parents(), second.parents(), neighbor.parents()];
            let [own_weight, of_neighbor_weight] = [weights(&own), weights(&of_neighbor)];
            let is_there = |cgroup: &PathBuf| cgroup.exists();
            second.end().await;
            let stays = own.iter().all(is_there);
            neighbor.end().await;
            let is_left = of_neighbor.iter().any(is_there);
            world.sandbox.destroy(world.spec.sandbox).await.unwrap();
            assert!(!own.is_empty() && own == of_second, "{own:?} and {of_second:?}");
            assert!(own.is_disjoint(&of_neighbor), "{own:?} and {of_neighbor:?}");
            assert!(own.iter().all(|cgroup| cgroup.ends_with(world.spec.org.to_string())), "{own:?}");
            // With cgroups v1 and v2.
            let equal = ["256", "10"].map(|weight| BTreeSet::from([weight.to_owned()]));
            assert!(equal.contains(&own_weight), "{own_weight:?}");
            assert_eq!(own_weight, of_neighbor_weight);
            assert!(stays, "the cgroup of an organization was removed before its last sandbox");
            assert!(!is_left && !own.iter().any(is_there), "the cgroup of an organization is left");
        })
    });
}

#[test]
fn sandboxes_of_one_organization_share_the_weight_of_one() {
    organizations_have_equal_weights(&LocalProvider::new());
}

#[test]
fn sandboxes_of_gvisor_share_the_weight_of_one() {
    organizations_have_equal_weights(&LocalProvider::gvisor());
}
