//! Spend caps over trailing windows, and balances, under concurrent sessions.

use serde_json::{Value, json};

use super::{agent, limits::a_micro_each, scene, start};
use crate::{
    fake::{Fake, Fault, Step, Used, anthropic::Anthropic},
    turns::{assert_sound, ends, of, session, steer},
};

const SESSIONS: usize = 50;
const CAP: u64 = 40_000;
/// Tokens of the most expensive call, at one micro-dollar each.
const CALL_MAX: u64 = 2_000;

/// Usage that the provider reports for its n-th call.
fn used(call: usize) -> Used {
    let number = call as u64;
    Used {
        input: 600 + number % 7 * 100,
        output: number % 90,
        cache_write: number % 500,
        cache_read: number % 200,
    }
}

fn tokens(used: Used) -> u64 {
    used.input + used.output + used.cache_write + used.cache_read
}

fn micros(usage: &Value) -> u64 {
    usage["cost"]["total_micros"].as_u64().unwrap_or_else(|| panic!("no sum: {usage}"))
}

#[tokio::test]
async fn fifty_sessions_that_race_for_one_cap_overstep_it_by_one_call_at_most() {
    // Three responses with a tool call that is rejected without a sandbox, then an end.
    let fake = Fake::decide(Anthropic::default(), |request| {
        let asked = request.body["messages"].as_array().map_or(0, Vec::len);
        let step = match asked {
            0..6 => Step::default().and_tool("no_such_tool", json!({})),
            _ => Step::text("Done."),
        };
        step.using(used(request.call))
    })
    .await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    owner.patch("/budget", json!({ "spend_caps": { "days_7": CAP } })).await.ok();
    let agent = agent(owner, json!({ "model_options": { "max_tokens": 100 } })).await;
    let starts = (0..SESSIONS).map(|_| start(owner, &agent, json!({})));
    let ids = futures::future::join_all(starts).await;
    let logs = futures::future::join_all(ids.iter().map(|id| owner.settled(id, 1))).await;
    assert_eq!(fake.refusals(), Vec::<String>::new());

    let billed: u64 = (1..=fake.calls()).map(|call| tokens(used(call))).sum();
    let mut spent = 0;
    let (mut steps, mut cut, mut answered, mut aborted) = (0, 0, 0, 0);
    let mut stopped = 0;
    for (id, log) in ids.iter().zip(&logs) {
        assert_sound(log);
        let reason = ends(log)[0];
        assert!(["completed", "budget_exceeded"].contains(&reason), "{reason}");
        stopped += usize::from(reason == "budget_exceeded");
        let session = session(owner, id).await;
        assert_eq!(session["status"], "idle");
        spent += micros(&session["usage"]);
        let cost = |event: &&Value| event["body"]["cost_micros"].as_u64().expect("a price");
        steps += of(log, "step.completed").len();
        cut += of(log, "step.aborted").len();
        answered += of(log, "step.completed").iter().map(cost).sum::<u64>();
        aborted += of(log, "step.aborted").iter().map(cost).sum::<u64>();
    }
    assert_eq!(spent, answered + aborted, "each call is counted once");
    // A worker that a slow machine takes for dead leaves a call that is estimated.
    assert!(fake.calls() <= steps + cut, "{} calls, {steps} steps, {cut} cut off", fake.calls());
    assert!(if cut == 0 { answered == billed } else { answered <= billed }, "{answered} of {billed}");
    assert!((CAP..CAP + CALL_MAX).contains(&spent), "{spent} of {CAP}");
    assert!(stopped > 0);
    println!("{SESSIONS} sessions, {} calls, {spent} of {CAP} micro-USD, {stopped} stopped", fake.calls());

    // All sums agree.
    let budget = owner.get("/budget").await.ok();
    assert_eq!(budget["spent"], json!({ "days_1": spent, "days_7": spent, "days_28": spent }));
    assert_eq!((&budget["reserved_micros"], &budget["balance_micros"]), (&json!(0), &Value::Null));
    for by in ["day", "agent", "model", "day,agent,model"] {
        let page = owner.get(&format!("/usage?by={by}")).await.ok();
        let rows = page["data"].as_array().expect("rows");
        assert_eq!((rows.len(), micros(&rows[0]["usage"])), (1, spent), "{by}");
        assert_eq!(rows[0]["usage"]["steps"], steps);
        assert_eq!(rows[0].get("model").is_some(), by.contains("model"));
    }
    // After the cap is raised, the stopped sessions continue.
    owner.patch("/budget", json!({ "spend_caps": { "days_7": CAP * 100 } })).await.ok();
    let at = logs.iter().position(|log| ends(log)[0] == "budget_exceeded").expect("one was stopped");
    steer(owner, &ids[at], "Go on.").await;
    assert_eq!(ends(&owner.settled(&ids[at], 2).await)[1], "completed");
    scene.close().await;
}

#[tokio::test]
async fn an_agents_cap_is_its_own_and_is_warned_of_once() {
    let call = |micros: u64| {
        Step::text("Said.").using(Used { input: micros, output: 0, cache_write: 0, cache_read: 0 })
    };
    let fake = Fake::script(Anthropic::default(), [call(850), call(100), call(100), call(100)]).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    let capped = agent(owner, json!({ "spend_caps": { "days_28": 1_000 } })).await;
    let id = start(owner, &capped, json!({})).await;
    owner.settled(&id, 1).await;
    for turn in 2..=4 {
        steer(owner, &id, "More.").await;
        owner.settled(&id, turn).await;
    }
    let log = owner.settled(&id, 4).await;
    assert_eq!(ends(&log), ["completed", "completed", "completed", "budget_exceeded"]);
    let warnings = of(&log, "limit.warning");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert_eq!(warnings[0]["body"], json!({ "limit": "agent_spend_28d", "used": 850, "allowed": 1_000 }));
    let exceeded = &of(&log, "limit.exceeded")[0]["body"];
    assert_eq!(*exceeded, json!({ "limit": "agent_spend_28d", "used": 1_050, "allowed": 1_000 }));
    // It was detected before the turn started, so no resource was created for it.
    assert_eq!(of(&log, "session.rejected")[0]["body"]["reason"], "spend_cap_exceeded");
    assert_eq!((of(&log, "turn.started").len(), fake.calls()), (3, 3));
    assert_eq!(session(owner, &id).await["exit_status"], "budget_hit");

    let other = agent(owner, json!({ "name": "other" })).await;
    let id = start(owner, &other, json!({})).await;
    assert_eq!(ends(&owner.settled(&id, 1).await), ["completed"]);
    let raised = owner.patch(&format!("/agents/{capped}"), json!({ "spend_caps": {} })).await.ok();
    assert_eq!(raised["spend_caps"], json!({}));
    scene.close().await;
}

#[tokio::test]
async fn a_balance_is_paid_from_and_topped_up() {
    let call = |step: Step| step.using(Used { input: 2_000, output: 0, cache_write: 0, cache_read: 0 });
    let ask = || call(Step::default().and_tool("no_such_tool", json!({})));
    let fake = Fake::script(Anthropic::default(), [ask(), ask(), call(Step::text("Paid."))]).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    assert_eq!(operator.store.top_up(operator.org, 3_000).await.expect("a balance"), 3_000);
    let owner = &scene.owner;
    let agent = agent(owner, json!({})).await;
    let id = start(owner, &agent, json!({})).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(of(&log, "turn.completed")[0]["body"]["error"]["code"], "payment_required");
    assert_eq!(owner.get("/budget").await.ok()["balance_micros"], -1_000);
    let unpaid = session(owner, &id).await;
    assert_eq!((&unpaid["status"], &unpaid["exit_status"]), (&json!("idle"), &json!("payment_required")));
    // Also before a turn starts.
    let second = start(owner, &agent, json!({})).await;
    let log = owner.settled(&second, 1).await;
    assert_eq!(of(&log, "session.rejected")[0]["body"]["reason"], "payment_required");
    assert_eq!(of(&log, "turn.completed")[0]["body"]["yield_reason"], "canceled");
    let unpaid = session(owner, &second).await;
    assert_eq!((&unpaid["status"], &unpaid["exit_status"]), (&json!("idle"), &json!("payment_required")));

    operator.store.top_up(operator.org, 5_000).await.expect("a balance");
    steer(owner, &id, "Go on.").await;
    assert_eq!(ends(&owner.settled(&id, 2).await)[1], "completed");
    assert_eq!(owner.get("/budget").await.ok()["balance_micros"], 2_000);
    scene.close().await;
}

#[tokio::test]
async fn a_reservation_lasts_as_long_as_its_lease_and_then_lets_others_continue() {
    let fake = Fake::script(Anthropic::default(), [Step::fault(Fault::Stall), Step::text("Free.")]).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    owner.patch("/budget", json!({ "spend_caps": { "days_1": 9_000 } })).await.ok();
    let agent = agent(owner, json!({})).await;
    let first = start(owner, &agent, json!({})).await;
    fake.called(1).await;
    let reserved = owner.get("/budget").await.ok()["reserved_micros"].as_u64().expect("a number");
    assert!(reserved > 9_000, "{reserved}");
    // The whole balance is reserved: the second session waits without holding a worker.
    let second = start(owner, &agent, json!({})).await;
    crate::turns::until(owner, &second, "turn.started").await;
    let mut waits = tokio::time::interval(std::time::Duration::from_millis(50));
    while session(owner, &second).await["phase"] != "retrying" {
        waits.tick().await;
    }
    assert_eq!(fake.calls(), 1);
    // The end of the first call releases the reservation.
    owner.post(&format!("/sessions/{first}/cancel"), json!({})).await.ok();
    let log = owner.settled(&second, 1).await;
    assert_eq!((ends(&log), fake.calls()), (vec!["completed"], 2));
    assert_eq!(owner.get("/budget").await.ok()["reserved_micros"], 0);

    // Reservations of workers with a live lease, then of dead workers.
    let mut superuser = scene.ground.database.superuser().await;
    let reservations_sql = |lease: &str| {
        format!(
            "insert into job (org_id, session_id, kind, ready_at, worker_id)
             select org_id, session_id, 'turn', now() + interval '{lease}', session_id from session
             on conflict (org_id, session_id, kind) do update set ready_at = excluded.ready_at;
             insert into reservation
             select org_id, session_id, agent_id, epoch, 7 from session
             on conflict do nothing"
        )
    };
    for (lease, counted) in [("1 hour", 14), ("-1 second", 0)] {
        let sql = sqlx::AssertSqlSafe(reservations_sql(lease));
        sqlx::raw_sql(sql).execute(&mut superuser).await.expect("rows");
        assert_eq!(owner.get("/budget").await.ok()["reserved_micros"], counted, "{lease}");
    }
    scene.close().await;
}

#[tokio::test]
async fn a_model_under_a_cost_limit_needs_a_price() {
    let fake = Fake::script(Anthropic::default(), []).await;
    let (scene, _operator) = scene(&fake.base_url).await;
    let owner = &scene.owner;
    owner.patch("/budget", json!({ "spend_caps": { "days_1": 50 } })).await.ok();
    let id = start(owner, &agent(owner, json!({})).await, json!({})).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(of(&log, "turn.completed")[0]["body"]["error"]["code"], "price_unknown");
    for (query, param) in [
        ("from=2026-02-30", "from"),
        ("to=-9999-01-01", "to"),
        ("from=2026-02-02&to=2026-02-01", "from"),
        ("from=2020-01-01&to=2026-01-01", "from"),
        ("by=week", "by"),
        ("until=x", "until"),
    ] {
        let error = owner.get(&format!("/usage?{query}")).await.error(400);
        assert_eq!(error["param"], param, "{query}");
    }
    scene.close().await;
}

#[tokio::test]
async fn only_one_of_the_sessions_close_to_a_cap_warns() {
    let call = |micros: u64| {
        Step::text("Said.").using(Used { input: micros, output: 0, cache_write: 0, cache_read: 0 })
    };
    let fake = Fake::script(Anthropic::default(), [call(850), call(10), call(10)]).await;
    let (scene, operator) = scene(&fake.base_url).await;
    operator.price(a_micro_each()).await;
    let owner = &scene.owner;
    owner.patch("/budget", json!({ "spend_caps": { "days_7": 1_000 } })).await.ok();
    let agent = agent(owner, json!({})).await;
    let mut warned = Vec::new();
    for _ in 0..3 {
        let id = start(owner, &agent, json!({})).await;
        warned.push(of(&owner.settled(&id, 1).await, "limit.warning").len());
    }
    assert_eq!(warned, [0, 1, 0]);
    scene.close().await;
}

#[tokio::test]
async fn a_day_of_a_cap_trails_by_the_hour() {
    let (scene, operator) = scene("http://127.0.0.1:9").await;
    let owner = &scene.owner;
    let mut superuser = scene.ground.database.superuser().await;
    // Two shards of each hour, as two connections write them.
    for (hours, micros) in
        [(3, 1), (23, 20), (26, 300), (30, 4_000), (24 * 7 + 2, 50_000), (24 * 29, 600_000)]
    {
        for shard in [0, 5] {
            sqlx::query(
                "insert into usage_hour (
                    org_id, hour, agent_id, model, shard, steps, unpriced_steps, tool_calls, input_tokens, output_tokens,
                    cache_write_tokens, cache_read_tokens, model_micros, sandbox_cpu_micros, sandbox_memory_micros,
                    fee_micros
                 )
                 select $1, date_trunc('hour', now(), 'UTC') - make_interval(hours => $2),
                        '00000000-0000-0000-0000-000000000000', '', $4, 0, 0, 0, 0, 0, 0, 0, $3, 0, 0, 0",
            )
            .bind(operator.org.uuid())
            .bind(hours)
            .bind(i64::from(micros))
            .bind(shard)
            .execute(&mut superuser)
            .await
            .expect("a row");
        }
    }
    let expected = json!({ "days_1": 42, "days_7": 8_642, "days_28": 108_642 });
    assert_eq!(owner.get("/budget").await.ok()["spent"], expected);
    // Old rows are folded into hours, and the sums are unchanged.
    let rows = "select count(*) from usage_hour where shard <> 0";
    let spread: i64 = sqlx::query_scalar(rows).fetch_one(&mut superuser).await.expect("a count");
    assert!(spread > 0);
    // The service may have done it already.
    operator.store.fold_shards().await.expect("rows");
    let spread: i64 = sqlx::query_scalar(rows).fetch_one(&mut superuser).await.expect("a count");
    assert!((2..=4).contains(&spread), "today's and yesterday's: {spread}");
    assert_eq!(owner.get("/budget").await.ok()["spent"], expected);
    scene.close().await;
}
