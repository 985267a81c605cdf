//! One run from its seed: callers and faults, then a phase without faults, the wait until no work is pending,
//! and the final check.

use std::{sync::Arc, time::Duration};

use sojourn::domain::{
    Actor, Event, Status,
    compaction::CompactionRequest,
    context::ContextChange,
    custom_tool::OnExpiry,
    decide::{Change, Command, Input, InputMode, NewSession, Stamp},
    event::ActorKind,
    session::{AgentSnapshot, Created, Limits, Source},
    turn_settings::{LoopPolicy, LoopSettings},
};
use tokio::time::sleep;

use super::{
    actions::answer,
    chance::Chance,
    counts::Counts,
    database::Database,
    ledger::Ledger,
    process::Process,
    world::{Plan, World, enter},
};

/// Upper bound of that wait: leases, the longest Retry-After, the longest command and a few responses fit in
/// it.
const REST_MAX: Duration = Duration::from_secs(300);

/// Counts of one run, or of many.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub counts: Counts,
    /// Writes that the fence refused.
    pub refused: u64,
    pub crashes: u64,
    pub freezes: u64,
    pub slowest_rest: Duration,
    pub slowest_seed: u64,
    pub virtual_hours: f64,
}

impl Report {
    /// Adds the run of `seed`.
    pub fn add(&mut self, seed: u64, run: Self) {
        self.counts.add(run.counts);
        self.refused += run.refused;
        self.crashes += run.crashes;
        self.freezes += run.freezes;
        self.virtual_hours += run.virtual_hours;
        if run.slowest_rest > self.slowest_rest {
            (self.slowest_rest, self.slowest_seed) = (run.slowest_rest, seed);
        }
    }
}

/// Draws the parameters of a run.
fn plan(chance: &Chance) -> Plan {
    let is_quiet = chance.one_in(4);
    let rarely = |often: u64| if is_quiet { 0 } else { chance.pick(&[0, often, often * 4]) };
    Plan {
        lease: chance.millis(2_000, 8_000),
        workers_max: 1 + chance.below(3),
        provider: chance.pick(&["anthropic", "openai", "scripted"]),
        is_strict: chance.one_in(8),
        pace: chance.pick(&[1, 1, 1, 4]),
        processes_fail: !is_quiet,
        trouble_every_ms: chance.pick(&[700, 1_500, 4_000]),
        database_fails_one_in: rarely(40),
        model_fails_one_in: chance.pick(&[0, 2, 4, 12]),
        sandboxes_die_one_in: rarely(4),
        expires_seconds: 1 + chance.below(30),
        on_expiry: chance.pick(&[OnExpiry::Tell, OnExpiry::Tell, OnExpiry::EndTurn]),
        loops: LoopSettings {
            repeats: Some(chance.pick(&[2, 3, 3])),
            policy: chance.pick(&[LoopPolicy::Ask, LoopPolicy::Ask, LoopPolicy::Stop, LoopPolicy::Off]),
        },
        compacts: !chance.one_in(4),
        threshold: chance.pick(&[0.1, 0.5, 0.8]),
        window: chance.pick(&[None, None, Some(17_000), Some(20_000)]),
        output_repairs: chance.pick(&[None, None, Some(0), Some(1), Some(3)]),
        models: chance.pick(&[1, 1, 2, 3]),
    }
}

/// Plays the run of `seed` to its end; returns its log as well.
pub async fn direct(seed: u64) -> (Report, Vec<Event>) {
    let world = Arc::new(World::new(seed, plan));
    world.open(session(&world));
    let report = Arc::new(std::sync::Mutex::new(Report::default()));
    let (stage, kept) = (Arc::clone(&world), Arc::clone(&report));
    let director = async move {
        let report = run(&stage).await;
        *kept.lock().expect("nobody else holds it") = report;
    };
    world.stage.play(&world.chance, director).await;
    let report = report.lock().expect("nobody else holds it").clone();
    (report, world.look(|database| std::mem::take(&mut database.log)))
}

async fn run(world: &Arc<World>) -> Report {
    let mut report = Report::default();
    let mut processes = Vec::new();
    let (done, mut callers) = tokio::sync::oneshot::channel::<()>();
    let caller = Arc::clone(world);
    enter(world, async move {
        call(&caller).await;
        let _ = done.send(());
    });
    enter(world, answer(Arc::clone(world)));
    while callers.try_recv().is_err() {
        inject_fault(world, &mut processes, &mut report).await;
        sleep(world.chance.millis(0, world.plan.trouble_every_ms)).await;
    }
    world.calm_down();
    report.slowest_rest = rest(world, &mut processes).await;
    // After any faults, a session takes input and becomes idle again.
    if !world.look(|database| database.session.status == Status::Archived) {
        execute(world, Command::Steer(input("Are you there?"))).await;
        rest(world, &mut processes).await;
    }
    report.virtual_hours = world.now().as_secs_f64() / 3_600.0;
    world.look(|database| {
        database.check_at_rest();
        report.counts = database.ledger.counts;
        report.refused = database.refused;
    });
    report
}

/// Waits until no work is pending; returns the duration.
async fn rest(world: &Arc<World>, processes: &mut Vec<Arc<Process>>) -> Duration {
    let began = world.now();
    while !world.look(|database| database.is_settled()) {
        assert!(world.now() - began < REST_MAX, "{}", stuck(world));
        ensure_running(world, processes);
        processes.iter().for_each(|process| world.stage.thaw(process.group));
        sleep(Duration::from_millis(500)).await;
    }
    world.now() - began
}

fn stuck(world: &World) -> String {
    world.look(|database| {
        let tail: Vec<_> = database.log.iter().rev().take(6).map(|event| event.draft.body.clone()).collect();
        format!(
            "{:?} with {:?} does not come to rest; its log ends (newest first) {tail:?}",
            database.session.status, database.lease
        )
    })
}

/// Keeps at least one process running.
fn ensure_running(world: &Arc<World>, processes: &mut Vec<Arc<Process>>) {
    processes.retain(|process| !world.stage.has_crashed(process.group));
    if processes.iter().all(|process| process.is_draining()) {
        processes.push(Process::start(world));
    }
}

/// Injects one fault, or none.
async fn inject_fault(world: &Arc<World>, processes: &mut Vec<Arc<Process>>, report: &mut Report) {
    ensure_running(world, processes);
    if (processes.len() as u64) < world.plan.workers_max && world.chance.one_in(2) {
        processes.push(Process::start(world));
    }
    if world.mishap(world.plan.sandboxes_die_one_in) {
        world.sandboxes.kill_oldest();
    }
    if !world.plan.processes_fail {
        return;
    }
    let at = world.chance.below(processes.len() as u64) as usize;
    let process = Arc::clone(&processes[at]);
    match world.chance.below(8) {
        0 => world.stage.crash(process.group, 0),
        // At some point within its next polls.
        1 => world.stage.crash(process.group, 1 + world.chance.below(60)),
        2 => {
            report.freezes += 1;
            world.stage.freeze(process.group);
            let (world, time) =
                (Arc::clone(world), world.plan.lease.mul_f64(world.chance.below(30) as f64 / 10.0));
            enter(&Arc::clone(&world), async move {
                sleep(time).await;
                world.stage.thaw(process.group);
            });
        }
        3 => process.drain(),
        _ => return,
    }
    report.crashes += u64::from(world.stage.has_crashed(processes[at].group));
}

/// Sends random commands of callers.
async fn call(world: &Arc<World>) {
    let chance = &world.chance;
    for _ in 0..3 + chance.below(8) {
        sleep(world.duration() * chance.pick(&[0, 1, 2, 4])).await;
        let command = match chance.below(27) {
            0..5 => Command::Steer(input("Go on.")),
            5..8 => Command::Steer(Input { mode: InputMode::Steer, ..input("And this.") }),
            8..11 => Command::Steer(Input { mode: InputMode::Interrupt, ..input("No, this.") }),
            11..15 => Command::Cancel,
            15..19 => Command::Patch(Change { limits: Some(limits(chance)), ..Change::default() }),
            19..22 => Command::Compact(CompactionRequest::default()),
            22..26 => match world.look(|database| database.session.last_turn()) {
                Some(last) => Command::Retry(last.id),
                None => continue,
            },
            _ => Command::Archive,
        };
        execute(world, command).await;
    }
}

async fn execute(world: &Arc<World>, command: Command) {
    let stamp = stamp(world);
    let executed = world.look(|database| database.execute(command, &stamp, world.now()));
    if executed.is_ok_and(|events| events > 0) {
        world.notification(&world.job);
        world.notification(&world.control);
    }
}

fn input(text: &str) -> Input {
    Input { text: text.to_owned(), ..Input::default() }
}

pub fn stamp(world: &World) -> Stamp {
    let actor = Actor { id: None, display: None, kind: ActorKind::Human };
    Stamp { actor, origin: world.origin.clone() }
}

fn limits(chance: &Chance) -> Limits {
    let some = |chance: &Chance, from: u64, to: u64| chance.one_in(3).then(|| from + chance.below(to - from));
    Limits {
        tokens: some(chance, 1, 2_000),
        turn_seconds: some(chance, 1, 30),
        turns: some(chance, 1, 8),
        steps: some(chance, 1, 12),
        cost_micros: some(chance, 1, 2_000),
        duration_seconds: some(chance, 1, 60),
        tool_calls: some(chance, 0, 20),
    }
}

fn session(world: &World) -> Database {
    let snapshot = AgentSnapshot {
        revision_id: world.origin.id(),
        revision: 1,
        name: "repairer".to_owned(),
        prompt_hash: String::new(),
        model: format!("{}/m-1", world.plan.provider),
        model_options: Default::default(),
        runtime: "builtin".to_owned(),
        tools: None,
        permissions: Default::default(),
        settings: Default::default(),
        pinned_skills: Vec::new(),
    };
    let limits = if world.chance.one_in(2) { limits(&world.chance) } else { Limits::default() };
    let created = Created {
        agent_id: Some(world.origin.id()),
        credential_id: None,
        agent_snapshot: Some(snapshot),
        environment: None,
        sources: Vec::new(),
        title: None,
        key: None,
        client_id: None,
        slug: None,
        metadata: Default::default(),
        limits,
        source: Source::Api,
        parent_session_id: None,
    };
    let input = world.chance.one_in(2).then(|| input("Fix it."));
    let is_quiet = !world.plan.processes_fail && world.plan.database_fails_one_in == 0;
    Database::with(
        world.origin.id(),
        NewSession { created, context: ContextChange::default(), input },
        &stamp(world),
        world.now(),
        Ledger::new(is_quiet, world.plan.output_repairs, world.plan.models),
    )
}
