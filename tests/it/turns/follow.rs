//! Streams of a caller's command: its output while it is written, through any process, and its end.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Scene, appears, workspace};
use crate::{
    api::stream::Reader,
    support::service::{Caller, send},
};

/// Starts a command; returns the path of its session and command.
async fn begin(caller: &Caller, command: &str) -> String {
    let created = caller.post("/sessions", json!({})).await.ok();
    let path = format!("/sessions/{}/exec", created["session"]["id"].as_str().expect("an id"));
    let request = caller.request(Method::POST, &path).header("Prefer", "wait=0");
    let asked = send(request.json(&json!({ "command": command }))).await.ok();
    format!("{path}/{}", asked["id"].as_str().expect("an id"))
}

/// The stream of a command.
struct Followed {
    reader: Reader,
    stdout: String,
    stderr: String,
    /// Ids of the frames.
    ids: Vec<String>,
    end: Value,
}

impl Followed {
    async fn open(caller: &Caller, path: &str, last_seen: Option<&str>) -> Self {
        let (headers, reader) = Reader::open(caller, &format!("{path}?stream=sse"), last_seen).await;
        assert_eq!(headers["content-type"], "text/event-stream");
        Self { reader, stdout: String::new(), stderr: String::new(), ids: Vec::new(), end: Value::Null }
    }

    /// Reads until the condition holds, or the stream ends.
    async fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            let Some(frame) = self.reader.frame().await else { return };
            let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
            let Some(data) = field("data: ") else { continue };
            let frame: Value = serde_json::from_str(data).expect("JSON");
            self.ids.push(field("id: ").expect("an id").to_owned());
            let text = frame["text"].as_str().unwrap_or_default();
            assert!(text.len() <= 16 << 10, "{} bytes in one frame", text.len());
            match (frame["type"].as_str(), frame["stream"].as_str()) {
                (Some("exec.output"), Some("stdout")) => self.stdout += text,
                (Some("exec.output"), Some("stderr")) => self.stderr += text,
                (Some("exec.ended"), None) => self.end = frame,
                other => panic!("{other:?}"),
            }
        }
    }

    async fn ended(mut self) -> Self {
        self.until(|_| false).await;
        assert_eq!(self.end["type"], "exec.ended", "the end is the last frame");
        self
    }
}

#[tokio::test]
async fn a_command_is_followed_through_any_process() {
    let scene = Scene::open(&["--role=worker"]).await;
    let (one, other) = (scene.ground.serve(&["--role=api"]).await, scene.ground.serve(&["--role=api"]).await);
    let (owner, beside) = (one.owner(), other.owner());
    let wait = "until [ -e go ]; do sleep 0.05; done";
    let path =
        begin(&owner, &format!("echo one; echo err >&2; {wait}; printf 'zwei \\303\\244'; exit 3")).await;
    let mut first = Followed::open(&owner, &path, None).await;
    first.until(|seen| seen.stdout == "one\n" && seen.stderr == "err\n").await;
    let mut second = Followed::open(&beside, &path, None).await;
    second.until(|seen| seen.stdout == "one\n").await;
    let running = beside.get(&path).await.ok();
    assert_eq!((&running["state"], &running["stdout"]), (&json!("running"), &json!("one\n")));
    assert_eq!((&running["stderr_bytes"], &running["exit_code"]), (&json!(4), &Value::Null));
    let place = first.ids.last().expect("a frame").clone();
    assert_eq!(place, "4-4");

    std::fs::write(workspace(&scene.ground).join("go"), "").expect("a file");
    for followed in [first, second] {
        let followed = followed.ended().await;
        assert_eq!((followed.stdout.as_str(), followed.stderr.as_str()), ("one\nzwei ä", "err\n"));
        assert_eq!((&followed.end["exit_code"], &followed.end["state"]), (&json!(3), &json!("completed")));
        assert_eq!(followed.end["stdout_bytes"], 11);
    }
    // A reader that connects later or reconnects misses nothing and gets no duplicates.
    let resumed = Followed::open(&beside, &path, Some(&place)).await.ended().await;
    assert_eq!((resumed.stdout.as_str(), resumed.stderr.as_str()), ("zwei ä", ""));
    let late = Followed::open(&owner, &path, None).await.ended().await;
    assert_eq!((late.stdout.as_str(), late.stderr.as_str()), ("one\nzwei ä", "err\n"));
    let mut superuser = scene.ground.database.superuser().await;
    let (left,): (i64,) =
        sqlx::query_as("select count(*) from exec_output").fetch_one(&mut superuser).await.expect("a count");
    assert_eq!(left, 0, "the response has all of it");
    for (query, header) in [("?cursor=x", None), ("?stream=sse", Some("5")), ("?after=1", None)] {
        let mut request = owner.request(Method::GET, &format!("{path}{query}"));
        if let Some(header) = header {
            request = request.header("Last-Event-ID", header);
        }
        send(request).await.error(400);
    }
    one.stop().await;
    other.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn output_has_no_gap_over_a_takeover() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let lines = "touch ready; for at in $(seq 400); do echo \"line $at äöü\"; [ $((at % 20)) -gt 0 ] || sleep 0.1; done";
    let path = begin(owner, lines).await;
    let mut followed = Followed::open(owner, &path, None).await;
    followed.until(|seen| seen.stdout.len() > 1_000).await;
    // As after a crash: another worker held the lease, and it has expired.
    let mut superuser = scene.ground.database.superuser().await;
    let sql = "with s as (update session set epoch = epoch + 1)
               update job set worker_id = gen_random_uuid(), ready_at = now() where kind = 'operation'";
    sqlx::query(sql).execute(&mut superuser).await.expect("an update");
    let followed = followed.ended().await;
    let wanted: String = (1..=400).map(|at| format!("line {at} äöü\n")).collect();
    assert_eq!(followed.stdout, wanted);
    assert_eq!(owner.get(&path).await.ok()["stdout"], wanted.as_str());
    scene.close().await;
}

#[tokio::test]
async fn much_output_comes_in_pieces_up_to_what_is_kept() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let path = begin(owner, "head -c 300000 /dev/zero | tr '\\0' x; sleep 0.5; echo more").await;
    let followed = Followed::open(owner, &path, None).await.ended().await;
    assert_eq!(followed.stdout.len(), 256 << 10);
    assert_eq!(followed.end["stdout_bytes"], 300_005);
    scene.close().await;
}

#[tokio::test]
async fn a_command_is_sent_signals() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let trap = "trap 'echo got; exit 7' INT; trap '' TERM; touch ready; while :; do sleep 0.02; done";
    let path = begin(owner, trap).await;
    appears(&scene.ground, "ready").await;
    let kill = async |path: &str, signal: &str| {
        owner.post(&format!("{path}/kill"), json!({ "signal": signal })).await
    };
    let sent = kill(&path, "TERM").await;
    assert_eq!(sent.status, 202, "it goes on");
    kill(&path, "INT").await.ok();
    let followed = Followed::open(owner, &path, None).await.ended().await;
    assert_eq!(followed.stdout, "got\n");
    assert_eq!((&followed.end["exit_code"], &followed.end["cause"]), (&json!(7), &json!("exited")));
    assert_eq!(kill(&path, "HUP").await.ok()["exit_code"], 7, "a finished command receives no signal");

    for (signal, code) in [("HUP", 129), ("TERM", 143), ("KILL", 137)] {
        let path = begin(owner, "exec sleep 60").await;
        // A queued command would end without a process that gets the signal.
        owner.until(&path, |exec| exec["state"] == "running").await;
        kill(&path, signal).await.ok();
        let followed = Followed::open(owner, &path, None).await.ended().await;
        assert_eq!((&followed.end["exit_code"], &followed.end["cause"]), (&json!(code), &json!("killed")));
    }
    let refused = owner.post(&format!("{path}/kill"), json!({ "signal": "STOP" })).await.error(400);
    assert_eq!(refused["param"], "signal");
    scene.close().await;
}
