//! Conformance suite of sandboxes: guarantees of every provider.
//!
//! Each check uses `&dyn Sandbox` and gets a fresh sandbox. Add a provider with a line of `conformance!`, or
//! with a test that calls `conforms`. The tests need the provider's requirements (for `local`: root and runc)
//! and fail with one line when they are missing.

mod agent;
mod commands;
mod confinement;
mod disk;
mod docker;
mod egress;
mod escape;
mod files;
mod freeze;
mod gvisor;
pub mod image;
mod lifecycle;
mod local;
mod neighbors;
mod registry;
mod rootless;
mod scan;
mod trees;

pub use escape::tried;

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::support::{pages::text, wait::wait_for};
use futures::FutureExt;
use sojourn::{
    base::Origin,
    domain::{EventKind, SandboxId, rootfs::RootFs},
    sandbox::{
        Cause, Exec, Exit, Fault, OutputRange, OutputStream, Sandbox, SandboxFence, SandboxLimits, Spec,
    },
};

/// A provider under test.
pub trait Provider: Send + Sync {
    /// Opens the same provider, as another worker would.
    fn open(&self) -> Arc<dyn Sandbox>;
    /// Whether the sandbox has its own kernel, which reports other values.
    fn is_gvisor(&self) -> bool {
        false
    }
    /// Whether the size of a disk is measured at intervals, instead of being that of a file system.
    fn measures_disks(&self) -> bool {
        false
    }
    /// Root file system of the sandboxes.
    fn rootfs(&self) -> RootFs {
        RootFs::default()
    }
    /// Fails when the provider still has anything of the sandbox.
    fn assert_nothing_left(&self, sandbox: SandboxId);
}

/// A fresh sandbox for one check.
pub struct World<'a> {
    pub provider: &'a dyn Provider,
    pub sandbox: Arc<dyn Sandbox>,
    pub spec: Spec,
    pub fence: SandboxFence,
    pub origin: Origin,
}

/// Result of a command.
#[derive(Debug)]
pub struct Ran {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

type Check<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Creates a sandbox, runs the check, and removes everything, also when the check failed.
pub fn run(
    provider: &dyn Provider,
    limits: SandboxLimits,
    check: impl for<'a> FnOnce(&'a World<'a>) -> Check<'a>,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let origin = Origin::system();
        let sandbox = provider.open();
        let spec = Spec {
            sandbox: origin.id(),
            org: origin.id(),
            session: origin.id(),
            limits,
            rootfs: provider.rootfs(),
            env: vec![("SANDBOX_SETTING".to_owned(), "of the sandbox".to_owned())],
            previous: Vec::new(),
            restores: false,
        };
        let fence = spec.fence(1);
        sandbox.create(&spec, fence.epoch).await.expect("a sandbox can be made");
        let world = World { provider, sandbox, spec, fence, origin };
        let outcome = AssertUnwindSafe(check(&world)).catch_unwind().await;
        world.end().await;
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

impl World<'_> {
    /// A shell command with a long timeout.
    pub fn shell(&self, id: &str, script: &str) -> Exec {
        Exec {
            id: id.to_owned(),
            argv: vec!["bash".to_owned(), "-c".to_owned(), script.to_owned()],
            cwd: String::new(),
            env: Vec::new(),
            timeout: Duration::from_secs(60),
            output_bytes_max: 1 << 20,
            is_service: false,
        }
    }

    /// Starts a command and waits for it.
    pub async fn ran(&self, exec: &Exec) -> Ran {
        self.sandbox.start(self.fence, exec).await.unwrap();
        let exit = self.sandbox.wait(self.fence, &exec.id).await.unwrap();
        let (stdout, stderr) = (self.output(&exec.id, OutputStream::Stdout).await, OutputStream::Stderr);
        Ran { exit, stdout, stderr: self.output(&exec.id, stderr).await }
    }

    /// Runs a script that must succeed; returns its trimmed output.
    pub async fn says(&self, script: &str) -> String {
        let id = format!("says-{}", self.origin.id::<EventKind>());
        let ran = self.ran(&self.shell(&id, script)).await;
        assert_eq!((ran.exit.code, ran.exit.cause), (0, Cause::Exited), "{script}: {}", ran.stderr);
        ran.stdout.trim().to_owned()
    }

    pub async fn output(&self, exec_id: &str, stream: OutputStream) -> String {
        let range = OutputRange { stream, offset: 0, bytes_max: 1 << 20 };
        String::from_utf8(self.sandbox.output(self.fence, exec_id, range).await.unwrap()).unwrap()
    }

    /// Waits until a running command has printed `text`.
    pub async fn printed(&self, exec_id: &str, text: &str) {
        let printed = async || self.output(exec_id, OutputStream::Stdout).await.contains(text).then_some(());
        wait_for(text, printed).await;
    }

    /// Number of processes in the sandbox whose arguments contain `text`.
    pub async fn processes(&self, text: &str) -> usize {
        // The pattern must not match the searching process itself.
        let (first, rest) = text.split_at(1);
        let script = format!("grep -al '[{first}]{rest}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l");
        // A measurement of a full disk kills the counting command, too.
        escape::not_ended(self, &script).await.stdout.trim().parse().unwrap()
    }

    async fn end(&self) {
        // A failed check may have left another sandbox.
        for found in self.sandbox.list().await.expect("a list") {
            let is_own = found.session == self.spec.session;
            if let Some(sandbox) = found.sandbox.filter(|_| is_own) {
                self.sandbox.destroy(sandbox).await.expect("a sandbox can be ended");
            }
        }
        self.sandbox.destroy(self.spec.sandbox).await.expect("a sandbox can be ended");
        self.sandbox.destroy(self.spec.sandbox).await.expect("a sandbox can be ended twice");
        // The disk is removed before the assertions, so that a failed test leaves nothing either.
        self.sandbox.erase(self.spec.org, self.spec.session).await.expect("a disk can be erased");
        self.sandbox.erase(self.spec.org, self.spec.session).await.expect("a disk can be erased twice");
        self.provider.assert_nothing_left(self.spec.sandbox);
        let session = self.spec.session.uuid().to_string();
        assert_eq!(disk::mounts_of(&session), 0, "a mount is left");
        disk::loops_are_gone(&session);
        let left = self.sandbox.list().await.unwrap();
        assert!(!left.iter().any(|found| found.session == self.spec.session), "something is still listed");
    }
}

/// Passes every check of the suite to another macro, after the arguments given first.
macro_rules! checks {
    ($with:ident $($first:tt)*) => {
        $with! { $($first)*;
        commands: a_command_reports_its_output_and_its_exit_code,
        commands: a_command_that_does_not_exist_says_so,
        commands: a_closed_working_directory_is_opened_for_its_owner,
        commands: the_same_id_twice_runs_once,
        commands: output_can_be_read_while_the_command_runs,
        commands: commands_run_side_by_side,
        commands: a_kill_ends_a_tree_that_fled_and_ignores_term,
        commands: a_signal_reaches_a_command_and_what_it_started,
        commands: joined_outputs_come_in_order,
        commands: a_command_ends_at_its_time_with_all_that_it_started,
        commands: a_background_process_outlives_its_command_until_it_is_killed,
        commands: output_beyond_the_cap_is_counted_not_kept,
        commands: the_oldest_output_is_evicted,
        commands: a_service_takes_its_input_once_and_does_not_count_as_running,
        commands: an_unknown_command_is_not_found,
        files: what_a_tool_writes_a_command_sees_and_the_other_way_round,
        files: a_file_is_replaced_with_its_mode_and_through_its_link,
        files: a_link_never_leads_out_of_the_sandbox,
        files: what_is_no_file_is_refused,
        files: a_large_file_travels_in_parts,
        confinement: a_command_is_an_unprivileged_user_for_good,
        confinement: nothing_of_the_host_is_visible,
        confinement: the_environment_is_the_sandboxes_own,
        confinement: there_is_no_network_but_loopback,
        confinement: mounts_and_new_namespaces_are_refused,
        confinement: only_the_sessions_places_are_writable,
        confinement: init_is_out_of_reach_of_commands,
        escape: the_escape_checklist_holds,
        escape: an_exit_code_cannot_be_forged,
        escape: what_is_used_up_ends_the_command_and_not_the_sandbox,
        escape: a_full_disk_ends_the_command_and_not_the_sandbox,
            escape: a_race_of_links_leads_nowhere,
        egress: a_sandbox_reaches_what_its_egress_attachment_allows,
        lifecycle: a_stale_epoch_changes_nothing,
        lifecycle: a_sandbox_that_was_taken_over_while_it_started_lives_on,
        lifecycle: a_sandbox_that_is_not_there_is_gone,
        lifecycle: the_disk_outlives_the_sandbox,
        lifecycle: creating_twice_is_creating_once,
        lifecycle: two_workers_at_once_make_one_sandbox,
        lifecycle: a_second_sandbox_of_a_session_displaces_the_first,
        lifecycle: a_command_outlives_the_worker_that_started_it,
        lifecycle: the_sandbox_is_listed_with_its_owner,
        lifecycle: a_disk_that_another_sandbox_left_is_not_used,
        trees: a_directory_travels_in_one_piece_and_back,
        trees: a_hostile_archive_stays_in_its_directory,
        trees: a_bomb_of_an_archive_ends_itself,
        trees: a_directory_is_read_while_others_work_in_it,
        trees: skills_are_replaced_as_a_whole_and_no_command_changes_them,
        scan: a_scan_lists_every_file_with_its_state,
        scan: a_fetch_reads_files_and_nothing_in_their_place,
        scan: a_file_that_changes_while_it_is_fetched_is_not_stable,
        scan: a_scan_and_a_fetch_pass_over_what_vanishes,
        freeze: a_frozen_sandbox_stops_and_resumes_its_processes,
        freeze: a_frozen_sandbox_can_be_ended,
        freeze: a_late_worker_freezes_nothing,
        freeze: a_command_counts_as_long_as_it_runs,
        freeze: files_come_back_as_they_were,
        freeze: a_large_file_with_holes_takes_no_space,
        freeze: no_process_runs_while_files_are_checkpointed,
        freeze: a_quiesced_sandbox_writes_nothing_until_it_is_attached,
        freeze: a_sandbox_that_was_not_restored_to_its_end_is_not_used,
        freeze: an_archive_never_leads_out_of_the_files,
            freeze: an_archive_larger_than_the_disk_is_refused,
        freeze: a_checkpoint_that_is_gone_or_changed_is_not_restored,
        }
    };
}

/// One test per check, for one provider.
macro_rules! conformance {
    ($provider:ident, $open:expr; $($module:ident: $name:ident,)*) => {
        mod $provider {
            $(
                #[test]
                fn $name() {
                    let provider = $open;
                    super::run(&provider, super::limits(), |world| Box::pin(super::$module::$name(world)));
                }
            )*
        }
    };
}
checks!(conformance local_provider, super::local::LocalProvider::new());

/// The same checks as a table, for a provider that starts slowly.
macro_rules! table {
    (; $($module:ident: $name:ident,)*) => {
        pub const TABLE: &[(&str, CheckFn)] =
            &[$((stringify!($name), |world| Box::pin($module::$name(world))),)*];
    };
}
type CheckFn = for<'a> fn(&'a World<'a>) -> Check<'a>;
checks!(table);

/// Runs the checks of the table, or only the named ones, a few in parallel. Prints the outcome and time of
/// each, and fails when one failed. `SOJOURN_TEST_FULL` runs all.
pub fn conforms<P: Provider>(open: &(impl Fn() -> P + Sync), short: &[&str]) {
    const LANES: usize = 3;
    let full = std::env::var_os("SOJOURN_TEST_FULL").is_some();
    let chosen: Vec<_> = TABLE.iter().filter(|(name, _)| full || short.contains(name)).collect();
    assert!(full || chosen.len() == short.len(), "a check of the short list does not exist");
    let lane = |first: usize| {
        let mut failed = Vec::new();
        for (name, check) in chosen.iter().skip(first).step_by(LANES) {
            let began = Instant::now();
            let checked = std::panic::catch_unwind(AssertUnwindSafe(|| {
                run(&open(), limits(), |world| check(world));
            }));
            let outcome = if checked.is_ok() { "holds" } else { "FAILED" };
            println!("{outcome:<7} {:>5} ms  {name}", began.elapsed().as_millis());
            failed.extend(checked.is_err().then_some(*name));
        }
        failed
    };
    let failed: Vec<&str> = thread::scope(|scope| {
        let lane = &lane;
        let lanes: Vec<_> = (0..LANES).map(|first| scope.spawn(move || lane(first))).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    assert_eq!(failed, Vec::<&str>::new());
}

/// Sandbox limits in these tests: small, so that reaching them is quick.
fn limits() -> SandboxLimits {
    SandboxLimits { cpu_millis: 2_000, memory_bytes: 256 << 20, pids: 64, disk_bytes: 64 << 20 }
}

/// Tests that need other limits, or the provider's own view.
pub fn with_local(check: impl for<'a> FnOnce(&'a World<'a>) -> Check<'a>) {
    run(&local::LocalProvider::new(), limits(), check);
}

pub fn is_gone(result: Result<(), Fault>) -> bool {
    result == Err(Fault::Gone)
}

#[test]
fn the_page_counts_the_checks_of_each_provider() {
    let (page, all) = (text("docs/isolation.md"), TABLE.len());
    assert!(page.contains(&format!("One suite of {all} checks")), "docs/isolation.md: {all} checks");
    for (provider, checks) in [
        ("`runc`, service as root", all),
        ("`runc`, image `debian`", image::SHORT.len()),
        ("`runc`, service as an ordinary user", rootless::SHORT.len()),
        ("`runc` of a node agent", agent::SHORT.len()),
        ("`runc` of a node agent, over TLS", agent::SHORT_OVER_TLS.len()),
        ("gVisor `runsc`", gvisor::SHORT.len()),
        ("Docker", docker::SHORT.len()),
        ("Docker with `userns-remap`", docker::REMAPPED.len()),
    ] {
        let row = format!("| {provider} | {checks} of {all} |");
        assert!(page.contains(&row), "docs/isolation.md lacks: {row}");
    }
}
