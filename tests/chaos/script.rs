//! Scripts of turns for `scripted/inline`.

use serde_json::{Value, json};

use crate::{
    answers::{self, TOOL},
    load::TRACE,
    mcp,
    plan::SeededRng,
    record::Event,
};

/// A turn of some seconds: commands that must run once, among others.
pub fn script(name: &str, dice: &SeededRng) -> Value {
    let mut steps = Vec::new();
    for step in 0..2 + dice.below(4) {
        let mut tools = Vec::new();
        for call in 0..1 + dice.below(2) {
            let token = format!("{name}.{step}.{call}");
            // Some commands outlive the lease of a killed worker.
            let seconds = if dice.once_in(8) { 3.0 } else { dice.below(8) as f64 / 10.0 };
            let command = format!("echo {token} >> {TRACE}; sleep {seconds}; echo {token}");
            tools.push(json!({ "tool": "bash", "input": { "command": command } }));
        }
        if dice.once_in(3) {
            tools.push(json!({ "tool": "grep", "input": { "pattern": "d" } }));
            tools.push(json!({ "tool": "read", "input": { "path": TRACE } }));
        }
        if dice.once_in(3) {
            tools.insert(dice.below(2) as usize, json!({ "tool": TOOL, "input": { "city": name } }));
        }
        if dice.once_in(6) {
            tools.push(answers::question());
        }
        if dice.once_in(3) {
            tools.push(mcp::call(&format!("{name}.{step}.m")));
        }
        if dice.once_in(4) {
            let input = json!({ "path": format!("notes/{name}.{step}"), "content": name });
            tools.push(json!({ "tool": "write", "input": input }));
        }
        // Some histories are long enough for a summary.
        let words = if dice.once_in(4) { "word ".repeat(800) } else { String::new() };
        let text = format!("Step {step} of {name}. {words}");
        steps.push(json!({ "text": text, "delay_ms": dice.below(400), "tools": tools, "new_ids": true }));
    }
    let mut last = json!({ "text": format!("Done with {name}.") });
    if dice.once_in(6) {
        // Once in each worker process: the turn fails, and is retried until another process knows it.
        last["fault"] = json!({ "kind": "refused" });
    }
    steps.push(last);
    json!({ "script": steps })
}

/// A turn that has to submit an output. In some, the first one does not fit the schema.
pub fn submitting_script(name: &str, dice: &SeededRng) -> Value {
    let mut play = script(name, dice);
    let steps = play["script"].as_array_mut().expect("steps");
    let submit =
        |input: Value| json!({ "tools": [{ "tool": "submit_output", "input": input }], "new_ids": true });
    let mut last = submit(json!({ "name": name }));
    // The last answer, which may be refused.
    if let Some(fault) = steps.pop().and_then(|mut last| last.get_mut("fault").map(Value::take)) {
        last["fault"] = fault;
    }
    if dice.once_in(3) {
        steps.push(submit(json!({ "name": 7 })));
    }
    steps.push(last);
    play
}

/// Schema of the output: the name of the script.
pub fn output_schema() -> Value {
    let name = json!({ "type": "string", "pattern": "^d[0-9]+\\.[0-9]+\\.[0-9]+s?$" });
    json!({ "type": "object", "properties": { "name": name }, "required": ["name"], "additionalProperties": false })
}

/// The output that the script of a message submits; none of a message whose event has only the begin of its text.
pub fn output_of(message: &Event) -> Option<Value> {
    let play: Value = serde_json::from_str(message.text("text")).ok()?;
    let last = play["script"].as_array()?.last()?;
    Some(last["tools"][0]["input"].clone())
}
