//! All kinds of cost at once: responses, commands, cancellations, takeovers and child sessions under one cap
//! and one balance. All sums must agree.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use futures::future::join_all;
use serde_json::{Value, json};

use super::{agent, scene, start};
use crate::{
    fake::{Fake, Fault, Step, Used, anthropic::Anthropic},
    support::service::Caller,
    turns::{Scene, assert_sound, ends, of, processes, session, wait_until},
};

/// Sessions of each kind.
const EACH: usize = 5;
const BALANCE: i64 = 50_000_000;

/// One micro-dollar per token, and one per millisecond of a sandbox with two CPUs.
fn prices() -> Value {
    let token =
        json!({ "input": 1_000_000, "output": 1_000_000, "cache_write": 1_000_000, "cache_read": 1_000_000 });
    json!({ "version": "all", "models": { "anthropic/m-1": token }, "fee": { "turn": 7 },
        "sandbox": { "cpu_hour": 1_800_000, "gib_hour": 0 } })
}

fn used(call: usize) -> Used {
    let number = call as u64;
    Used { input: 600 + number % 7 * 100, output: 1 + number % 90, cache_write: number % 500, cache_read: 3 }
}

fn tokens(used: Used) -> u64 {
    used.input + used.output + used.cache_write + used.cache_read
}

fn sum<'a>(events: impl IntoIterator<Item = &'a Value>, fields: &[&str]) -> u64 {
    let of = |event: &Value| -> u64 {
        fields.iter().map(|field| event["body"][*field].as_u64().unwrap_or_default()).sum()
    };
    events.into_iter().map(of).sum()
}

/// A provider that behaves according to the session's input and sums the usage of complete responses.
async fn provider(billed: std::sync::Arc<Mutex<u64>>) -> Fake<Anthropic> {
    let calls: Mutex<HashMap<String, usize>> = Mutex::default();
    Fake::decide(Anthropic::default(), move |request| {
        let words = request.body["messages"][0]["content"].to_string();
        let number = {
            let mut calls = calls.lock().expect("no holder panics");
            let number = calls.entry(words.clone()).or_default();
            *number += 1;
            *number
        };
        let bash = |command: &str| Step::default().and_tool("bash", json!({ "command": command }));
        let step = match number {
            1 if words.contains("stalls") => return Step::fault(Fault::Stall),
            1 if words.contains("runs long") => bash("sleep 30.181"),
            1 if words.contains("works") => bash("sleep 0.2"),
            _ => Step::text("Done."),
        };
        *billed.lock().expect("no holder panics") += tokens(used(request.call));
        step.using(used(request.call))
    })
    .await
}

/// Sums from session logs, by purpose.
#[derive(Default)]
struct Sums {
    answered: u64,
    aborted: u64,
    commands: u64,
    fees: u64,
    of_sessions: u64,
    canceled: usize,
}

async fn sums(owner: &Caller, all: &[&String]) -> Sums {
    let logs = join_all(all.iter().map(|id| owner.settled(id, 1))).await;
    let mut sums = Sums::default();
    for (id, log) in all.iter().zip(&logs) {
        assert_sound(log);
        sums.canceled += usize::from(ends(log)[0] == "canceled");
        sums.answered += sum(of(log, "step.completed"), &["cost_micros"]);
        sums.aborted += sum(of(log, "step.aborted"), &["cost_micros"]);
        sums.commands += sum(of(log, "exec.completed"), &["cpu_micros", "memory_micros"]);
        sums.fees += sum(of(log, "turn.started"), &["fee_micros"]);
        let usage = session(owner, id).await["usage"].clone();
        sums.of_sessions += usage["cost"]["total_micros"].as_u64().expect("a sum");
    }
    sums
}

/// As after a crash: another worker held the leases, and they have expired.
async fn lose_the_workers_of(scene: &Scene, ids: &[String]) {
    let mut superuser = scene.ground.database.superuser().await;
    for id in ids {
        let uuid = id.parse::<sojourn::domain::SessionId>().expect("an id").uuid();
        let sql = "with s as (update session set epoch = epoch + 1 where session_id = $1)
                   update job set worker_id = gen_random_uuid(), ready_at = now()
                   where kind = 'turn' and session_id = $1";
        sqlx::query(sql).bind(uuid).execute(&mut superuser).await.expect("an update");
    }
}

/// Asserts that a parent's consumption of children equals the children's own usage.
async fn assert_counted_once(owner: &Caller, parent: &str) {
    let own = session(owner, parent).await;
    let children = own["budget_consumed"]["children"]["cost_micros"].as_u64().expect("a sum");
    let page = owner.get(&format!("/sessions?parent_session_id={parent}&limit=500")).await.ok();
    let of_children = page["data"].as_array().expect("a page").iter();
    let of_children: u64 =
        of_children.map(|child| child["usage"]["cost"]["total_micros"].as_u64().expect("a sum")).sum();
    assert_eq!((children, children > 0), (of_children, true));
}

#[tokio::test]
async fn what_is_canceled_taken_over_and_shared_adds_up_to_what_the_provider_counted() {
    let billed = std::sync::Arc::new(Mutex::new(0));
    let fake = provider(billed.clone()).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(prices()).await;
    operator.store.set_balance(operator.org, Some(BALANCE)).await.expect("a balance");
    let owner = &scene.owner;
    owner.patch("/budget", json!({ "spend_caps": { "days_7": BALANCE } })).await.ok();
    let agent = agent(owner, json!({ "model_options": { "max_tokens": 100 } })).await;
    let parent =
        start(owner, &agent, json!({ "input": "It says so.", "limits": { "cost_micros": BALANCE } })).await;
    owner.settled(&parent, 1).await;
    let open = |words: &'static str| {
        let (agent, parent) = (&agent, &parent);
        let one = move |number: usize| async move {
            // Every second session is a child.
            let mut more = json!({ "input": format!("It {words}, {number}.") });
            if number.is_multiple_of(2) {
                more["parent_session_id"] = json!(parent);
            }
            start(owner, agent, more).await
        };
        join_all((0..EACH).map(one))
    };
    // Stalled calls: some are canceled, the others lose their worker.
    let stalled = open("stalls").await;
    fake.called(1 + EACH).await;
    let (lost, canceled_calls) = stalled.split_at(2);
    lose_the_workers_of(&scene, lost).await;
    for id in canceled_calls {
        owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    }
    // Commands: some are canceled, the others run to their end.
    let working = open("works").await;
    let long = open("runs long").await;
    wait_until("30.181", || processes("30.181") > 0).await;
    let mut looks = tokio::time::interval(Duration::from_millis(50));
    for id in &long {
        while of(&crate::turns::log(owner, id).await, "tool.call").is_empty() {
            looks.tick().await;
        }
        owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    }

    let all: Vec<_> = [&parent].into_iter().chain(&stalled).chain(&working).chain(&long).collect();
    let Sums { answered, aborted, commands, fees, of_sessions, canceled } = sums(owner, &all).await;
    let billed = *billed.lock().expect("no holder panics");
    assert_eq!(answered, billed, "the sum is the provider's own count");
    assert_eq!(canceled, EACH - 2 + EACH);
    assert!(aborted > 0 && commands > 0);
    assert_eq!(fees, 7 * all.len() as u64);
    let total = answered + aborted + commands + fees;
    println!(
        "{} sessions, {} calls, {canceled} canceled, {} taken over: {answered} answered (provider {billed}) \
         + {aborted} cut off + {commands} of commands + {fees} of fees = {total} micro-USD",
        all.len(),
        fake.calls(),
        lost.len()
    );
    assert_eq!(of_sessions, total);
    let budget = owner.get("/budget").await.ok();
    assert_eq!(budget["spent"]["days_7"], total);
    assert_eq!(budget["balance_micros"], BALANCE - total as i64);
    assert_eq!(budget["reserved_micros"], 0);
    let page = owner.get("/usage?by=day").await.ok();
    assert_eq!(page["data"][0]["usage"]["cost"]["total_micros"], total);
    assert_counted_once(owner, &parent).await;
    scene.close().await;
}
