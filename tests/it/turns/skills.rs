//! Skills: uploads and versions, their files in sandboxes, and what is refused.

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Scene, bash, ends, log, of, outputs, script, steer};
use crate::{
    fake::{Fake, Step, anthropic::Anthropic},
    support::{
        folder::{archive, instructions},
        service::{Answer, Caller, send},
        wait::wait_for,
    },
};

/// Uploads a skill with a script that prints `body`.
async fn upload(owner: &Caller, name: &str, body: &str) -> Answer {
    let script = format!("echo {body}\n");
    let files = archive(&[("SKILL.md", &instructions(name, body)), ("bin/say.sh", &script)]);
    send(owner.request(Method::POST, "/skills").body(files)).await
}

async fn agent(owner: &Caller, skills: Value) -> Answer {
    let agent = json!({ "name": "skilled", "prompt": "", "model": "scripted/inline", "skills": skills });
    owner.post("/agents", agent).await
}

fn versions(snapshot: &Value) -> Vec<(String, i64)> {
    let pinned = snapshot["pinned_skills"].as_array().expect("skills");
    let of = |skill: &Value| {
        let name = skill["name"].as_str().expect("a name").to_owned();
        (name, skill["version"].as_i64().expect("a version"))
    };
    pinned.iter().map(of).collect()
}

fn id(value: &Value) -> &str {
    value["id"].as_str().expect("an id")
}

#[tokio::test]
async fn a_session_keeps_the_versions_that_it_pinned_and_cannot_change_them() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    upload(owner, "greet", "one").await.ok();
    upload(owner, "other", "o").await.ok();
    agent(owner, json!([{ "skill": "greet" }, { "skill": "other", "version": 1 }])).await.ok();
    let commands = "/skills/greet/bin/say.sh; cat /skills/other/SKILL.md | tail -1; ls /skills; \
                    touch /skills/greet/x; rm -rf /skills/other; echo x > /skills/greet/SKILL.md; mkdir /skills/new; \
                    chmod -R 777 /skills; stat -c '%U %a' /skills /skills/greet/SKILL.md /skills/greet/bin/say.sh";
    let input = json!({ "script": [{ "tools": [bash(commands)] }, { "text": "Done." }] });
    let made = owner.post("/sessions", json!({ "agent": "skilled", "input": input })).await.ok();
    let first = id(&made["session"]).to_owned();
    let events = owner.settled(&first, 1).await;
    let output = outputs(&events)[0].to_owned();
    assert!(output.starts_with("one\no\ngreet\nother\n"), "{output}");
    assert!(output.contains("root 755\nroot 644\nroot 755\n"), "{output}");
    let refusals = output.matches("Permission denied").count() + output.matches("not permitted").count();
    assert!(refusals >= 6, "{output}");

    let second = upload(owner, "greet", "two").await.ok();
    assert_eq!(second["version"], 2);
    let say = json!([{ "tools": [bash("/skills/greet/bin/say.sh")] }, { "text": "Done." }]);
    steer(owner, &first, &script(say.clone())).await;
    assert_eq!(outputs(&owner.settled(&first, 2).await).last(), Some(&"one\n"));
    let body = json!({ "agent": "skilled", "input": { "script": say } });
    let made = owner.post("/sessions", body).await.ok();
    assert_eq!(
        versions(&made["session"]["agent_snapshot"]),
        [("greet".to_owned(), 2), ("other".to_owned(), 1)]
    );
    let events = owner.settled(id(&made["session"]), 1).await;
    assert_eq!(outputs(&events), ["two\n"]);

    // The session uses the first version until it has another list.
    let first_version = owner.get("/skills?name=greet").await.ok()["data"][1].clone();
    let first_version = format!("/skills/{}", id(&first_version));
    assert_eq!(owner.delete(&first_version).await.error(409)["code"], "in_use");

    // Another list for this session: the sandbox has these skills, and no others.
    let change = json!({ "skills": [{ "skill": "greet", "version": 2 }] });
    let changed = owner.patch(&format!("/sessions/{first}"), change).await.ok();
    assert_eq!(versions(&changed["agent_snapshot"]), [("greet".to_owned(), 2)]);
    let both = json!([{ "tools": [bash("/skills/greet/bin/say.sh; ls /skills")] }, { "text": "Done." }]);
    steer(owner, &first, &script(both)).await;
    assert_eq!(outputs(&owner.settled(&first, 3).await).last(), Some(&"two\ngreet\n"));
    owner.delete(&first_version).await.ok();
    owner.patch(&format!("/sessions/{first}"), json!({ "skills": [] })).await.ok();
    let none = json!([{ "tools": [bash("ls /skills")] }, { "text": "Done." }]);
    steer(owner, &first, &script(none)).await;
    assert_eq!(outputs(&owner.settled(&first, 4).await).last(), Some(&"(no output)"));
    scene.close().await;
}

#[tokio::test]
async fn skills_are_written_again_to_a_sandbox_that_replaces_another() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    upload(owner, "greet", "one").await.ok();
    agent(owner, json!([{ "skill": "greet" }])).await.ok();
    let say = json!([{ "tools": [bash("/skills/greet/bin/say.sh")] }, { "text": "Done." }]);
    let made = owner.post("/sessions", json!({ "agent": "skilled", "input": { "script": say } })).await.ok();
    let first = id(&made["session"]).to_owned();
    owner.settled(&first, 1).await;
    owner.post(&format!("/sessions/{first}/stop"), json!({})).await.ok();
    wait_for("its sandbox is hibernated", async || {
        let events = log(owner, &first).await;
        (!of(&events, "sandbox.hibernated").is_empty() || !of(&events, "sandbox.terminated").is_empty())
            .then_some(())
    })
    .await;
    owner.post(&format!("/sessions/{first}/start"), json!({})).await.ok();
    steer(owner, &first, &script(say)).await;
    let events = owner.settled(&first, 2).await;
    assert_eq!(outputs(&events), ["one\n"; 2]);
    assert!(of(&events, "sandbox.created").len() + of(&events, "sandbox.restored").len() >= 2, "{events:?}");
    // A caller's commands see them, too.
    let command = json!({ "command": ["/skills/greet/bin/say.sh"] });
    let ran = owner.post(&format!("/sessions/{first}/exec"), command).await.ok();
    assert_eq!(ran["stdout"], "one\n", "{ran}");
    scene.close().await;
}

#[tokio::test]
async fn the_prompt_ends_with_the_skills_and_stays_the_same() {
    let fake = Fake::script(Anthropic::default(), [Step::text("One."), Step::text("Two.")]).await;
    let base = format!("--anthropic-base-url={}", fake.base_url);
    let scene = Scene::open(&[&base]).await;
    let owner = &scene.owner;
    upload(owner, "greet", "one").await.ok();
    let body = json!({
        "name": "fake", "prompt": "Be brief.", "model": "anthropic/m-1", "key": "sk-a-key-of-the-test",
        "skills": [{ "skill": "greet", "version": "latest" }],
    });
    owner.post("/agents", body).await.ok();
    let made = owner.post("/sessions", json!({ "agent": "fake", "input": "Hi" })).await.ok();
    let first = id(&made["session"]).to_owned();
    owner.settled(&first, 1).await;
    upload(owner, "greet", "two").await.ok();
    steer(owner, &first, "Go on.").await;
    owner.settled(&first, 2).await;
    let systems: Vec<_> = fake.requests().iter().map(|request| request.body["system"].to_string()).collect();
    assert!(systems[0].contains("Be brief.\\n\\n# Skills"), "{}", systems[0]);
    assert!(systems[0].contains("- greet (/skills/greet/SKILL.md): Says greet."), "{}", systems[0]);
    assert_eq!(systems[0], systems[1]);
    scene.close().await;
}

#[tokio::test]
async fn versions_count_up_and_equal_folders_are_one() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let first = upload(owner, "greet", "one").await;
    assert_eq!(first.status, 201);
    let first = first.ok();
    let again = upload(owner, "greet", "one").await;
    assert_eq!((again.status.as_u16(), &again.ok()), (200, &first));
    let uploads = (0..8).map(|at| async move { upload(owner, "greet", &format!("n{at}")).await.ok() });
    let mut numbers: Vec<_> =
        futures::future::join_all(uploads).await.iter().map(|made| made["version"].as_i64()).collect();
    numbers.sort();
    assert_eq!(numbers, (2..10).map(Some).collect::<Vec<_>>(), "concurrent uploads");
    // An older version that comes back is a new one; the number of a deleted one is not used again.
    let back = upload(owner, "greet", "one").await.ok();
    assert_eq!((&back["version"], &back["sha256"]), (&json!(10), &first["sha256"]));
    owner.delete(&format!("/skills/{}", id(&back))).await.ok();
    assert_eq!(upload(owner, "greet", "one").await.ok()["version"], 11);
    upload(owner, "other", "one").await.ok();
    let listed = owner.get("/skills?name=greet&limit=3").await.ok();
    let numbers: Vec<_> =
        listed["data"].as_array().expect("a page").iter().map(|row| &row["version"]).collect();
    assert_eq!(numbers.len(), 3);
    assert_eq!(*numbers[0], 11);
    assert_eq!(owner.get(&format!("/skills/{}", id(&first))).await.ok(), first);

    let content = owner.request(Method::GET, &format!("/skills/{}/content", id(&first))).send().await;
    let content = content.expect("an answer").bytes().await.expect("bytes");
    assert_eq!(content.len() as u64, first["bytes"].as_u64().expect("a size"));
    let mut read = tar::Archive::new(content.as_ref());
    let paths = read
        .entries()
        .expect("entries")
        .map(|entry| entry.expect("an entry").path().expect("a path").to_string_lossy().into_owned());
    assert_eq!(paths.collect::<Vec<_>>(), ["greet/SKILL.md", "greet/bin/say.sh"]);
    let other = scene.service.caller(&scene.ground.organization("other").await);
    for path in ["", "/content"] {
        other.get(&format!("/skills/{}{path}", id(&first))).await.error(404);
    }
    other.delete(&format!("/skills/{}", id(&first))).await.error(404);
    assert_eq!(other.get("/skills").await.ok()["data"], json!([]));
    let refused = agent(&other, json!([{ "skill": "greet" }])).await.error(400);
    assert_eq!(refused["param"], "skills[0]");
    scene.close().await;
}

#[tokio::test]
async fn a_version_that_is_needed_cannot_be_deleted() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let first = upload(owner, "greet", "one").await.ok();
    let path = |skill: &Value| format!("/skills/{}", id(skill));
    let held = agent(owner, json!([{ "skill": "greet" }])).await.ok();
    let made = owner.post("/sessions", json!({ "agent": "skilled" })).await.ok();
    let error = owner.delete(&path(&first)).await.error(409);
    assert_eq!(error["code"], "in_use");
    assert!(error["message"].as_str().expect("words").contains("the agent `skilled`"), "{error}");

    // The agent can have the next one, the session still has the first.
    let second = upload(owner, "greet", "two").await.ok();
    assert!(
        owner.delete(&path(&first)).await.error(409)["message"]
            .as_str()
            .expect("words")
            .contains("a session")
    );
    owner
        .patch(&format!("/agents/{}", id(&held)), json!({ "skills": [{ "skill": "greet", "version": 2 }] }))
        .await
        .ok();
    let third = upload(owner, "greet", "three").await.ok();
    assert_eq!(owner.delete(&path(&second)).await.error(409)["code"], "in_use", "the agent names its number");
    owner.delete(&path(&third)).await.ok();
    let session_path = format!("/sessions/{}", id(&made["session"]));
    owner.post(&format!("{session_path}/archive"), json!({})).await.ok();
    owner.delete(&session_path).await.ok();
    owner.delete(&path(&first)).await.ok();
    owner.patch(&format!("/agents/{}", id(&held)), json!({ "skills": null })).await.ok();
    owner.delete(&path(&second)).await.ok();
    let activate = format!("/agents/{}/revisions/2/activate", id(&held));
    assert_eq!(owner.post(&activate, json!({})).await.error(400)["param"], "skills[0]");
    assert_eq!(owner.get("/skills").await.ok()["data"], json!([]));
    assert_eq!(scene.ground.count("select count(*) from purged_session_blobs").await, 4);
    scene.close().await;
}

#[tokio::test]
async fn skills_that_cannot_be_used_are_refused() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let refused = async |files: &[(&str, &str)]| {
        let request = owner.request(Method::POST, "/skills").body(archive(files));
        send(request).await.error(400)["message"].as_str().expect("words").to_owned()
    };
    assert!(refused(&[("README.md", "x")]).await.contains("no SKILL.md"));
    assert!(refused(&[("SKILL.md", "x")]).await.contains("must begin with"));
    assert_eq!(scene.ground.count("select count(*) from skill").await, 0, "nothing is left");

    upload(owner, "greet", "one").await.ok();
    for (skills, param) in [
        (json!([{ "skill": "none" }]), "skills[0]"),
        (json!([{ "skill": "greet" }, { "skill": "greet" }]), "skills[1].skill"),
        (json!([{ "skill": "greet", "version": 2 }]), "skills[0]"),
        (json!([{ "skill": "greet", "version": 0 }]), "skills[0].version"),
        (json!([{ "skill": "Greet" }]), "skills[0].skill"),
    ] {
        assert_eq!(agent(owner, skills.clone()).await.error(400)["param"], param, "{skills}");
        let inline = owner.inline_agent().await;
        let body = json!({ "agent": inline, "skills": skills });
        assert_eq!(owner.post("/sessions", body).await.error(400)["param"], param, "{skills}");
    }
    let many = json!((0..21).map(|at| json!({ "skill": format!("s{at}") })).collect::<Vec<_>>());
    assert_eq!(agent(owner, many).await.error(400)["param"], "skills");
    let body = json!({ "name": "blind", "prompt": "", "model": "scripted/inline", "tools": ["write"],
        "skills": [{ "skill": "greet" }] });
    assert_eq!(owner.post("/agents", body).await.error(400)["param"], "skills");
    // Nor can a session whose own tools cannot read.
    let inline = owner.inline_agent().await;
    let greet = json!([{ "skill": "greet" }]);
    let body = json!({ "agent": inline, "tools": ["write"], "skills": greet });
    assert_eq!(owner.post("/sessions", body).await.error(400)["param"], "skills");
    let made = owner.post("/sessions", json!({ "agent": inline, "skills": greet })).await.ok();
    let path = format!("/sessions/{}", id(&made["session"]));
    assert_eq!(owner.patch(&path, json!({ "tools": ["write"] })).await.error(400)["param"], "skills");
    owner.patch(&path, json!({ "tools": ["write"], "skills": [] })).await.ok();
    scene.ground.sql("update skill set bytes = 5 * 1024::bigint ^ 3").await;
    assert_eq!(upload(owner, "greet", "two").await.error(409)["code"], "skill_storage_full");
    scene.close().await;
}

#[tokio::test]
async fn a_skill_that_is_gone_ends_the_turn() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    upload(owner, "greet", "one").await.ok();
    agent(owner, json!([{ "skill": "greet" }])).await.ok();
    let blobs = scene.ground.data_dir.path().join("blobs");
    let removed =
        std::process::Command::new("find").arg(&blobs).args(["-name", "content", "-delete"]).status();
    assert!(removed.expect("find runs").success());
    let say = json!([{ "tools": [bash("true")] }, { "text": "Done." }]);
    let made = owner.post("/sessions", json!({ "agent": "skilled", "input": { "script": say } })).await.ok();
    let events = owner.settled(id(&made["session"]), 1).await;
    assert_eq!(ends(&events), ["error"]);
    let end = &of(&events, "turn.completed")[0]["body"]["error"];
    assert_eq!(end["code"], "skill_failed", "{end}");
    assert!(end["message"].as_str().expect("words").contains("version 1 of the skill `greet`"), "{end}");
    let command = json!({ "command": ["true"] });
    let path = format!("/sessions/{}", id(&made["session"]));
    let ran = owner.post(&format!("{path}/exec"), command).await.ok();
    assert_eq!(ran["error"]["code"], "skill_failed", "{ran}");
    // Without the skill, the session goes on.
    owner.patch(&path, json!({ "skills": [] })).await.ok();
    steer(owner, id(&made["session"]), &script(say)).await;
    assert_eq!(ends(&owner.settled(id(&made["session"]), 2).await), ["error", "completed"]);
    scene.close().await;
}

#[tokio::test]
async fn an_upload_that_failed_leaves_nothing() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let count = async || scene.ground.count("select count(*) from skill").await;
    // The blob store cannot be written to.
    let blobs = scene.ground.data_dir.path().join("blobs");
    let away = blobs.with_extension("away");
    fs::rename(&blobs, &away).expect("the blobs are moved");
    fs::write(&blobs, "").expect("a file in their place");
    assert_eq!(upload(owner, "greet", "one").await.error(503)["type"], "unavailable");
    fs::remove_file(&blobs).expect("the file is removed");
    fs::rename(&away, &blobs).expect("the blobs are back");
    assert_eq!((count().await, owner.get("/skills").await.ok()["data"].clone()), (1, json!([])));
    assert_eq!(upload(owner, "greet", "one").await.ok()["version"], 1, "the same files can be sent again");
    scene.ground.sql("update skill set created_at = created_at - interval '25 hours'").await;
    wait_for("the deletion of what has no number", async || (count().await == 1).then_some(())).await;
    assert_eq!(owner.get("/skills").await.ok()["data"][0]["version"], 1);
    scene.close().await;
}

#[tokio::test]
async fn a_child_has_the_skills_and_repositories_of_its_parent_unless_it_is_started_without() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    upload(owner, "greet", "one").await.ok();
    upload(owner, "own", "o").await.ok();
    agent(owner, json!([{ "skill": "own" }])).await.ok();
    let unread = json!({ "name": "unread", "prompt": "", "model": "scripted/inline", "tools": [],
        "environment": { "cpus": 1.0 } });
    owner.post("/agents", unread).await.ok();
    let lead = json!({ "name": "lead", "prompt": "", "model": "scripted/inline", "tools": ["start_session", "read"],
        "skills": [{ "skill": "greet" }, { "skill": "own" }], "sources": [{ "repo": "acme/app" }] });
    owner.post("/agents", lead).await.ok();
    let starts = [
        json!({ "agent": "skilled", "input": "a", "title": "all" }),
        json!({ "agent": "unread", "input": "b", "title": "unread" }),
        json!({ "agent": "skilled", "input": "c", "title": "alone", "inherit": false }),
    ];
    let calls: Vec<_> =
        starts.iter().map(|input| json!({ "tool": "start_session", "input": input })).collect();
    let input = json!({ "script": [{ "tools": calls }, { "text": "Done." }] });
    let made = owner.post("/sessions", json!({ "agent": "lead", "input": input })).await.ok();
    let parent = id(&made["session"]).to_owned();
    owner.settled(&parent, 1).await;
    let page = owner.get(&format!("/sessions?parent_session_id={parent}")).await.ok();
    let child = |title: &str| {
        let all = page["data"].as_array().expect("a page");
        all.iter().find(|child| child["title"] == title).expect("a child").clone()
    };
    let names = |child: &Value| -> Vec<String> {
        let skills = child["agent_snapshot"]["pinned_skills"].as_array().cloned().unwrap_or_default();
        skills.iter().map(|skill| skill["name"].as_str().expect("a name").to_owned()).collect()
    };
    let repositories = |child: &Value| child["sources"].as_array().map_or(0, Vec::len);
    let (all, unread, alone) = (child("all"), child("unread"), child("alone"));
    assert_eq!((names(&all), repositories(&all)), (vec!["own".to_owned(), "greet".to_owned()], 1));
    assert_eq!((names(&unread), repositories(&unread)), (Vec::new(), 1), "it has no tool that reads");
    assert_eq!((names(&alone), repositories(&alone)), (vec!["own".to_owned()], 0));
    assert_eq!(unread["environment"]["config"], json!({ "cpus": 1.0 }), "the parent has none");
    scene.close().await;
}
