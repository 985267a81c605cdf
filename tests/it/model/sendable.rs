//! After any sequence of responses, the next request is accepted: a session lives for months, changes its
//! model and loses responses in the middle.

use proptest::prelude::*;
use sojourn::{
    domain::{
        Answer, Message,
        conversation::{ModelOptions, ModelRequest, Thinking},
        tool::ToolResult,
    },
    model::Model,
};

use super::{connect, http, remember, request};
use crate::fake::{Fake, Said, Step, anthropic::Anthropic, openai::OpenAi};

/// One model call of a session, with its circumstances.
#[derive(Clone, Debug)]
struct Move {
    /// Which of the two providers is called.
    anthropic: bool,
    thinks: bool,
    says: Vec<Said>,
    stop: Option<&'static str>,
    output: String,
    is_error: bool,
    /// A caller sends a message after the results, as after a cancellation.
    interrupted: bool,
    words: Vec<String>,
}

fn words() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", " ", "\n\n", "Fix it.", "ä — \u{0}", "{}"]).prop_map(str::to_owned)
}

fn said() -> impl Strategy<Value = Said> {
    let tool = prop::sample::select(vec!["bash", "read", "unknown_tool"]);
    let input = prop::sample::select(vec!["", "{}", r#"{"command":"ls"}"#, r#"{"comm"#, "[1]", "null"]);
    prop_oneof![
        words().prop_map(Said::Text),
        Just(Said::Thinking("Hm.".to_owned())),
        Just(Said::Redacted("hidden".to_owned())),
        (tool, input).prop_map(|(tool, input)| Said::Tool(tool.to_owned(), input.to_owned())),
    ]
}

fn next_move() -> impl Strategy<Value = Move> {
    let answer = (any::<bool>(), any::<bool>(), prop::collection::vec(said(), 0..5), any::<bool>());
    let after = (words(), any::<bool>(), any::<bool>(), prop::collection::vec(words(), 1..3));
    (answer, after).prop_map(|((anthropic, thinks, says, cut), (output, is_error, interrupted, words))| {
        Move {
            anthropic,
            thinks,
            says,
            stop: cut.then_some(if anthropic { "max_tokens" } else { "length" }),
            output,
            is_error,
            interrupted,
            words,
        }
    })
}

fn answered(history: &mut Vec<Message>, model: &dyn Model, answer: &Answer, next: &Move) {
    remember(history, model, answer);
    let result = |call: &sojourn::domain::tool::ToolCall| ToolResult {
        call_id: call.call_id.clone(),
        output: next.output.clone(),
        is_error: next.is_error,
        content: Vec::new(),
    };
    let results: Vec<_> = answer.tool_calls().map(result).collect();
    let open = !results.is_empty();
    if open {
        history.push(Message::Results { results });
    }
    if !open || next.interrupted {
        history.extend(next.words.iter().map(|text| Message::user(text.clone())));
    }
}

async fn play(moves: Vec<Move>) -> Result<(), TestCaseError> {
    let steps = |anthropic: bool| {
        let mine = moves.iter().filter(move |next| next.anthropic == anthropic);
        let step = |next: &Move| Step { said: next.says.clone(), stop: next.stop, ..Step::default() };
        mine.map(step).collect::<Vec<_>>()
    };
    let first = Fake::script(Anthropic::default(), steps(true)).await;
    let second = Fake::script(OpenAi, steps(false)).await;
    let (one, two) = (connect(&first, http(), "sk-1"), connect(&second, http(), "sk-1"));
    let mut history = vec![Message::user("Begin.")];
    for next in &moves {
        let model = if next.anthropic { &*one } else { &*two };
        let thinking = next.thinks.then_some(Thinking { budget_tokens: 1_500 });
        let options = ModelOptions { thinking, ..ModelOptions::default() };
        let request = ModelRequest { options, ..request(history.clone()) };
        let answer = model.answer(&request, &mut |_| {}).await;
        prop_assert!(answer.is_ok(), "{:?} refused {:?}", answer, history);
        answered(&mut history, model, &answer.expect("checked above"), next);
    }
    prop_assert_eq!((first.refusals(), second.refusals()), (Vec::new(), Vec::new()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn every_history_is_accepted_by_both_providers(moves in prop::collection::vec(next_move(), 1..9)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(play(moves))?;
    }
}
