//! The local provider without root: the same suite as an ordinary user.

use std::{path::Path, time::Duration};

use sojourn::node::local::Local;
use sojourn::sandbox::{Cause, Exec, Fault, SandboxLimits};

use super::{conforms, escape, limits, local::LocalProvider, run};
use crate::support::{
    ordinary::{OrdinaryUser, as_ordinary_user},
    wait::{WAIT_MAX, wait_for},
};

/// Checks that `make test` runs; `make test-full` runs all.
pub const SHORT: [&str; 22] = [
    "a_quiesced_sandbox_writes_nothing_until_it_is_attached",
    "a_command_reports_its_output_and_its_exit_code",
    "a_kill_ends_a_tree_that_fled_and_ignores_term",
    "a_link_never_leads_out_of_the_sandbox",
    "a_command_is_an_unprivileged_user_for_good",
    "nothing_of_the_host_is_visible",
    "there_is_no_network_but_loopback",
    "mounts_and_new_namespaces_are_refused",
    "only_the_sessions_places_are_writable",
    "init_is_out_of_reach_of_commands",
    "the_escape_checklist_holds",
    "a_full_disk_ends_the_command_and_not_the_sandbox",
    "a_sandbox_reaches_what_its_egress_attachment_allows",
    "the_disk_outlives_the_sandbox",
    "two_workers_at_once_make_one_sandbox",
    "a_second_sandbox_of_a_session_displaces_the_first",
    "a_frozen_sandbox_stops_and_resumes_its_processes",
    "a_frozen_sandbox_can_be_ended",
    "files_come_back_as_they_were",
    "an_archive_larger_than_the_disk_is_refused",
    "a_hostile_archive_stays_in_its_directory",
    "a_scan_lists_every_file_with_its_state",
];

#[test]
fn the_local_provider_conforms_without_root() {
    as_ordinary_user(
        OrdinaryUser::new,
        "sandbox::rootless::the_local_provider_conforms_without_root",
        || {
            conforms(&LocalProvider::new, &SHORT);
        },
    );
}

#[test]
fn a_delegated_cgroup_holds_a_sandbox_without_root() {
    let name = "sandbox::rootless::a_delegated_cgroup_holds_a_sandbox_without_root";
    as_ordinary_user(OrdinaryUser::with_cgroups, name, || {
        run(&LocalProvider::new(), limits(), |world| {
            Box::pin(async {
                assert!(world.sandbox.capabilities().enforces_size);
                let hog = world.shell("hog", "python3 -c 'x = bytearray(600 << 20)'; exit $?");
                let ran = world.ran(&hog).await;
                assert_eq!((ran.exit.cause, ran.exit.code), (Cause::Oom, 137));
                let stats = world.sandbox.stats(world.spec.sandbox).await.unwrap();
                assert!(stats.memory_bytes > 0 && stats.processes > 0, "{stats:?}");
            })
        });
        conforms(
            &LocalProvider::new,
            &["a_frozen_sandbox_stops_and_resumes_its_processes", "the_escape_checklist_holds"],
        );
    });
}

#[test]
fn without_a_cgroup_processes_are_bounded_and_memory_is_not() {
    let name = "sandbox::rootless::without_a_cgroup_processes_are_bounded_and_memory_is_not";
    as_ordinary_user(OrdinaryUser::new, name, || {
        run(&LocalProvider::new(), limits(), |world| {
            Box::pin(async {
                assert!(!world.sandbox.capabilities().enforces_size);
                let bomb =
                    Exec { timeout: Duration::from_secs(600), ..world.shell("bomb", super::local::BOMB) };
                world.sandbox.start(world.fence, &bomb).await.unwrap();
                world.printed("bomb", "armed").await;
                // The sandbox responds and serves files while its process limit is reached.
                world.sandbox.write_file(world.fence, "during", b"x").await.unwrap();
                // The bomb goes off a moment after it is armed.
                let gone_off = async {
                    loop {
                        let pids = world.sandbox.stats(world.spec.sandbox).await.unwrap().processes;
                        // Init and its helpers run as another user than the commands.
                        assert!(pids <= 64 + 8, "{pids} processes");
                        if pids >= 8 {
                            break;
                        }
                    }
                };
                tokio::time::timeout(WAIT_MAX, gone_off).await.expect("it goes off");
                world.sandbox.kill(world.fence, "bomb").await.unwrap();
                let left: u32 = world.says("ls -d /proc/[0-9]* | wc -l").await.parse().unwrap();
                assert!(left <= 5, "{left} processes");
                world.says("for i in $(seq 20); do sleep 0.01; done").await;
            })
        });
        run(&LocalProvider::new(), SandboxLimits { disk_bytes: 64 << 20, ..limits() }, |world| {
            Box::pin(async {
                // A background writer is killed, too, even in its own session.
                let script = "setsid sh -c 'while :; do head -c 8M /dev/zero >> flood || exit; done' & disown; echo left";
                let ran = world.ran(&world.shell("fled", script)).await;
                assert_eq!(ran.exit.cause, Cause::Exited);
                let ended = async || (world.processes("while :; do head").await == 0).then_some(());
                wait_for("the writer is ended", ended).await;
                escape::not_ended(world, "rm -f flood").await;
            })
        });
    });
}

#[test]
fn what_is_missing_without_root_is_one_line_with_its_cure() {
    let name = "sandbox::rootless::what_is_missing_without_root_is_one_line_with_its_cure";
    as_ordinary_user(OrdinaryUser::without_ids, name, || {
        let provider = LocalProvider::new();
        let Err(Fault::Unavailable(said)) = Local::new(provider.config()) else { panic!("it takes ids") };
        let cure = "sudo usermod --add-subuids ";
        assert!(said.contains("user sojourn-test has no range") && said.contains(cure), "{said}");
        assert!(said.ends_with(" sojourn-test") && !said.contains('\n'), "{said}");
    });
}

#[test]
fn another_users_directory_is_not_taken_for_ones_own() {
    let name = "sandbox::rootless::another_users_directory_is_not_taken_for_ones_own";
    as_ordinary_user(OrdinaryUser::new, name, || {
        let provider = LocalProvider::new();
        let run_dir = Path::new("/tmp").join("sojourn");
        let config = sojourn::node::local::Config { run_dir, ..provider.config() };
        let fault = Local::new(config).unwrap_err().to_string();
        assert!(fault.contains("/tmp has another owner, or is writable for other users"), "{fault}");
    });
}
