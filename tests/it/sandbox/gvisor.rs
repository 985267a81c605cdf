//! The local provider with gVisor's `runsc`: a separate kernel for each sandbox.

use sojourn::sandbox::Cause;

use super::{conforms, limits, local::LocalProvider, run};

/// Checks that `make test` runs; `make test-full` runs all.
pub const SHORT: [&str; 13] = [
    "a_quiesced_sandbox_writes_nothing_until_it_is_attached",
    "a_kill_ends_a_tree_that_fled_and_ignores_term",
    "a_link_never_leads_out_of_the_sandbox",
    "nothing_of_the_host_is_visible",
    "mounts_and_new_namespaces_are_refused",
    "the_escape_checklist_holds",
    "a_full_disk_ends_the_command_and_not_the_sandbox",
    "a_sandbox_reaches_what_its_egress_attachment_allows",
    "a_second_sandbox_of_a_session_displaces_the_first",
    "a_scan_lists_every_file_with_its_state",
    "a_fetch_reads_files_and_nothing_in_their_place",
    "a_frozen_sandbox_can_be_ended",
    "files_come_back_as_they_were",
];

#[test]
fn the_local_provider_conforms_with_gvisor() {
    conforms(&LocalProvider::gvisor, &SHORT);
}

#[test]
fn a_sandbox_of_gvisor_has_a_kernel_of_its_own() {
    run(&LocalProvider::gvisor(), limits(), |world| {
        Box::pin(async {
            let ran = world.ran(&world.shell("dmesg", "dmesg 2>/dev/null; cat /proc/version")).await;
            assert_eq!(ran.exit.cause, Cause::Exited);
            let of_host = std::fs::read_to_string("/proc/version").unwrap();
            assert!(!ran.stdout.contains(of_host.trim()), "{}", ran.stdout);
        })
    });
}

#[test]
fn a_sandbox_of_gvisor_gets_no_more_memory_than_its_limit() {
    run(&LocalProvider::gvisor(), limits(), |world| {
        Box::pin(async {
            let within = "python3 -c 'held = bytearray(64 << 20); print(len(held))'";
            assert_eq!(world.says(within).await, (64 << 20).to_string());
            // Four times the limit.
            let script = "python3 -c 'held = []\nwhile len(held) < 1024: held.append(bytearray(1 << 20))\nprint(\"all\")'";
            world.sandbox.start(world.fence, &world.shell("greedy", script)).await.unwrap();
            // The kernel of the sandbox is killed with all that it runs.
            if let Ok(exit) = world.sandbox.wait(world.fence, "greedy").await {
                assert_ne!(exit.code, 0, "it got 1 GiB of {} MiB", limits().memory_bytes >> 20);
            }
        })
    });
}
