//! Scheduler of a simulation: futures polled one at a time, in an order drawn from the seed.
//!
//! Actors may belong to a group, a worker process. A group can crash between any two polls (its futures are
//! dropped), freeze (it is not polled, while time and all others continue) and thaw.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures::task::AtomicWaker;

use super::chance::Chance;

/// A worker process.
pub type Group = u64;

type Life = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Adds actors, and crashes, freezes and thaws groups.
#[derive(Default)]
pub struct Stage(Mutex<StageState>);

#[derive(Default)]
struct StageState {
    entering: Vec<(Option<Group>, Life)>,
    frozen: BTreeSet<Group>,
    /// Groups that crash after this number of further polls.
    doomed: BTreeMap<Group, u64>,
    crashed: BTreeSet<Group>,
}

struct Actor {
    group: Option<Group>,
    life: Life,
    bell: Arc<ActorWaker>,
}

/// Waker that marks an actor as ready.
struct ActorWaker {
    rung: AtomicBool,
    root: Arc<AtomicWaker>,
}

impl Wake for ActorWaker {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, SeqCst);
        self.root.wake();
    }
}

impl Stage {
    /// Adds an actor; without a group nothing can stop it.
    pub fn enter(&self, group: Option<Group>, life: impl Future<Output = ()> + Send + 'static) {
        self.lock().entering.push((group, Box::pin(life)));
    }

    /// Drops a group after `polls` further polls; immediately for 0.
    pub fn crash(&self, group: Group, polls: u64) {
        self.lock().doomed.insert(group, polls);
    }

    pub fn freeze(&self, group: Group) {
        self.lock().frozen.insert(group);
    }

    pub fn thaw(&self, group: Group) {
        self.lock().frozen.remove(&group);
    }

    pub fn has_crashed(&self, group: Group) -> bool {
        let backstage = self.lock();
        backstage.crashed.contains(&group) || backstage.doomed.get(&group) == Some(&0)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, StageState> {
        self.0.lock().expect("no holder panics")
    }

    /// Polls actors until `director` has finished.
    pub async fn play(&self, chance: &Chance, director: impl Future<Output = ()> + Send + 'static) {
        let root = Arc::new(AtomicWaker::new());
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        self.enter(None, async move {
            director.await;
            is_done.store(true, SeqCst);
        });
        let mut actors: Vec<Actor> = Vec::new();
        // Unconstrained: tokio's cooperative budget would make actors yield by its own count.
        tokio::task::unconstrained(poll_fn(|cx| {
            root.register(cx.waker());
            while !done.load(SeqCst) {
                if !self.act(&mut actors, &root, chance) {
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        }))
        .await;
    }

    /// Polls one actor; returns whether one was ready.
    fn act(&self, actors: &mut Vec<Actor>, root: &Arc<AtomicWaker>, chance: &Chance) -> bool {
        let dropped = {
            let mut backstage = self.lock();
            for (group, life) in backstage.entering.drain(..) {
                let bell = Arc::new(ActorWaker { rung: AtomicBool::new(true), root: Arc::clone(root) });
                actors.push(Actor { group, life, bell });
            }
            backstage.remove_crashed(actors)
        };
        // Dropped outside the lock: a destructor may wake or add an actor.
        drop(dropped);
        let ready: Vec<usize> = {
            let backstage = self.lock();
            let is_free = |actor: &Actor| actor.group.is_none_or(|group| !backstage.frozen.contains(&group));
            let wants = |actor: &Actor| actor.bell.rung.load(SeqCst) && is_free(actor);
            (0..actors.len()).filter(|at| wants(&actors[*at])).collect()
        };
        if ready.is_empty() {
            return false;
        }
        let at = chance.pick(&ready);
        let actor = &mut actors[at];
        actor.bell.rung.store(false, SeqCst);
        if let Some(polls) = actor.group.and_then(|group| self.lock().doomed.get(&group).copied())
            && let Some(group) = actor.group
        {
            self.lock().doomed.insert(group, polls.saturating_sub(1));
        }
        let waker = Waker::from(Arc::clone(&actor.bell));
        if actor.life.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            actors.remove(at);
        }
        true
    }
}

impl StageState {
    /// Removes the actors of crashed groups.
    fn remove_crashed(&mut self, actors: &mut Vec<Actor>) -> Vec<Actor> {
        let dead: Vec<Group> =
            self.doomed.iter().filter(|(_, polls)| **polls == 0).map(|(group, _)| *group).collect();
        if dead.is_empty() {
            return Vec::new();
        }
        self.doomed.retain(|_, polls| *polls > 0);
        self.frozen.retain(|group| !dead.contains(group));
        self.crashed.extend(&dead);
        let is_dead = |actor: &Actor| actor.group.is_some_and(|group| dead.contains(&group));
        let (gone, left) = std::mem::take(actors).into_iter().partition(is_dead);
        *actors = left;
        gone
    }
}
