//! Questions of a server to a person, as an action has them, and the answers, as the server wants them.
//!
//! Versions from 2026-07-28 on: the server ends the request, and the call is made again with the responses and the state
//! that the server gave. The form of the questions is kept beside that state, so the answers need nothing else.

use std::collections::{BTreeMap, HashSet};

use rmcp::model::{ElicitRequestParams, InputRequest, InputRequiredResult, InputResponses};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};

use super::Failure;
use crate::{
    base::limit::{
        ELICITATION_BYTES_MAX, ELICITATION_QUESTIONS_MAX, ELICITATION_REQUEST_BYTES_MAX,
        ELICITATION_STATE_BYTES_MAX,
    },
    domain::{
        elicitation::Response,
        question::{Answer, AnswerFormat, AnswerType, Question, QuestionOption},
    },
};

/// Labels of the answers to a yes-or-no question, and of one without fields.
const YES: &str = "Yes";
const NO: &str = "No";
const ACCEPT: &str = "Accept";

/// Questions of a server in the middle of a call.
#[derive(Debug, PartialEq)]
pub struct Asked {
    /// Its words, one line for each request.
    pub message: String,
    pub questions: Vec<Question>,
    pub continuation: Continuation,
}

/// State for the next request of the call: that of the server, and the form of its questions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Continuation {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    /// By the server's key of the request: its fields, in the order of the questions. A request without fields has one
    /// question, too.
    #[serde(default)]
    requests: BTreeMap<String, Vec<Field>>,
}

/// A field of a form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Field {
    name: String,
    value: FieldValue,
}

/// The value of a field, from an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FieldValue {
    Boolean,
    Written(AnswerFormat),
    One(Vec<Choice>),
    Several(Vec<Choice>),
}

/// An option, and what it stands for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Choice {
    label: String,
    value: String,
}

/// The schema of a field, as far as it is shown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Schema {
    r#type: String,
    title: Option<String>,
    description: Option<String>,
    #[serde(flatten)]
    choices: Choices,
    /// Of a field with several values.
    items: Option<Choices>,
    minimum: Option<Number>,
    maximum: Option<Number>,
    min_length: Option<u32>,
    max_length: Option<u32>,
    min_items: Option<u32>,
    max_items: Option<u32>,
    format: Option<String>,
}

/// The values of a field, with or without names.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Choices {
    r#enum: Option<Vec<String>>,
    enum_names: Option<Vec<String>>,
    #[serde(alias = "anyOf")]
    one_of: Option<Vec<Named>>,
}

#[derive(Deserialize)]
struct Named {
    r#const: String,
    title: Option<String>,
}

impl Asked {
    /// Reads what a server wants.
    ///
    /// # Errors
    /// `Protocol` for what is not offered to servers, and for more than the bounds.
    pub(super) fn read(wanted: InputRequiredResult) -> Result<Self, Failure> {
        let mut asked = Self {
            message: String::new(),
            questions: Vec::new(),
            continuation: Continuation { state: wanted.request_state, requests: BTreeMap::new() },
        };
        // The conversion below takes more than linear time.
        let wanted_bytes = serde_json::to_vec(&wanted.input_requests).map_or(usize::MAX, |json| json.len());
        if wanted_bytes > ELICITATION_REQUEST_BYTES_MAX {
            return Err(protocol(&format!(
                "it asks a person in {wanted_bytes} bytes; at most {ELICITATION_REQUEST_BYTES_MAX} are accepted"
            )));
        }
        let mut words = Vec::new();
        for (key, request) in wanted.input_requests.unwrap_or_default() {
            let InputRequest::Elicitation(request) = request else {
                return Err(protocol(
                    "it wants a model or the directories of the client, which are not offered",
                ));
            };
            let (message, fields) = asked.take(request.params)?;
            words.push(message);
            asked.continuation.requests.insert(key, fields);
        }
        asked.message = shown(&words.join("\n"));
        let bytes =
            serde_json::to_vec(&(&asked.message, &asked.questions)).map_or(usize::MAX, |json| json.len());
        let state_bytes = serde_json::to_vec(&asked.continuation).map_or(usize::MAX, |json| json.len());
        if asked.questions.len() > ELICITATION_QUESTIONS_MAX || bytes > ELICITATION_BYTES_MAX {
            return Err(protocol(&format!(
                "it asks a person {} questions of {bytes} bytes; at most {ELICITATION_QUESTIONS_MAX} of \
                 {ELICITATION_BYTES_MAX} bytes are accepted",
                asked.questions.len()
            )));
        }
        if state_bytes > ELICITATION_STATE_BYTES_MAX {
            return Err(protocol(&format!(
                "its state of a question has {state_bytes} bytes; at most {ELICITATION_STATE_BYTES_MAX} are accepted"
            )));
        }
        Ok(asked)
    }

    /// Adds the questions of a request; returns its words and its fields.
    fn take(&mut self, params: ElicitRequestParams) -> Result<(String, Vec<Field>), Failure> {
        let accept = |question: &str, url: Option<String>| Question {
            url: url.as_deref().map(shown),
            free_text: false,
            options: vec![option(ACCEPT.to_owned())],
            ..question_of(shown(question))
        };
        match params {
            ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
                self.questions.push(accept(&message, Some(url)));
                Ok((message, Vec::new()))
            }
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                let schema =
                    serde_json::to_value(requested_schema).map_err(|error| protocol(&error.to_string()))?;
                let required: Vec<String> =
                    serde_json::from_value(schema["required"].clone()).unwrap_or_default();
                let mut fields = Vec::new();
                for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                    let (question, field) = field(name, schema, !required.contains(name))?;
                    self.questions.push(question);
                    fields.push(field);
                }
                if fields.is_empty() {
                    self.questions.push(accept(&message, None));
                }
                Ok((message, fields))
            }
            _ => Err(protocol("it asks a person in a way that is not known")),
        }
    }

    /// Returns whether the server only wants to be called again.
    pub fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }
}

impl Continuation {
    /// Returns the server's state and the responses to its requests.
    pub(super) fn responses(&self, response: &Response) -> (Option<String>, InputResponses) {
        let answers = match response {
            Response::Accepted(answers) => answers.as_slice(),
            Response::Declined | Response::Canceled => &[],
        };
        let mut answers = answers.iter();
        let of_request = |(key, fields): (&String, &Vec<Field>)| {
            let result = match response {
                Response::Declined => json!({ "action": "decline" }),
                Response::Canceled => json!({ "action": "cancel" }),
                Response::Accepted(_) if fields.is_empty() => {
                    answers.next();
                    json!({ "action": "accept", "content": {} })
                }
                Response::Accepted(_) => {
                    let value = |(field, answer): (&Field, &Answer)| {
                        Some((field.name.clone(), field.value.of(answer)?))
                    };
                    // The fields first: no answer of the next request is taken.
                    let content: Map<_, _> = fields.iter().zip(answers.by_ref()).filter_map(value).collect();
                    json!({ "action": "accept", "content": content })
                }
            };
            (key.clone(), result)
        };
        (self.state.clone(), self.requests.iter().map(of_request).collect())
    }
}

impl Choices {
    /// Returns the options, if the field has some. Names are used only if they are all different.
    fn read(self) -> Option<Vec<Choice>> {
        let named = match (self.one_of, self.r#enum) {
            (Some(named), _) => named,
            (None, Some(values)) => {
                let mut names = self.enum_names.unwrap_or_default().into_iter();
                values.into_iter().map(|value| Named { r#const: value, title: names.next() }).collect()
            }
            (None, None) => return None,
        };
        let by_name = named.iter().map(|one| shown(one.title.as_ref().unwrap_or(&one.r#const)));
        let mut labels: Vec<_> = by_name.collect();
        if labels.iter().collect::<HashSet<_>>().len() < labels.len() {
            labels = named.iter().map(|one| shown(&one.r#const)).collect();
        }
        let choice = |(label, one): (String, Named)| Choice { label, value: one.r#const };
        Some(labels.into_iter().zip(named).map(choice).collect())
    }
}

impl FieldValue {
    /// Returns the value of an answer; `None` for an empty one.
    fn of(&self, answer: &Answer) -> Option<Value> {
        let is_chosen = |choice: &&Choice| answer.labels.contains(&choice.label);
        match self {
            Self::Boolean => Some(Value::Bool(answer.labels.first()? == YES)),
            Self::Written(format) => {
                let text = answer.text.as_ref()?;
                let text = text.trim();
                Some(format.number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number))
            }
            Self::One(choices) => Some(choices.iter().find(is_chosen)?.value.clone().into()),
            Self::Several(choices) => {
                let chosen: Vec<_> = choices.iter().filter(is_chosen).map(|one| one.value.clone()).collect();
                (!chosen.is_empty()).then(|| chosen.into())
            }
        }
    }
}

/// Returns a field of a form as a question.
fn field(name: &str, schema: &Value, optional: bool) -> Result<(Question, Field), Failure> {
    let schema: Schema = serde_json::from_value(schema.clone())
        .map_err(|error| protocol(&format!("its field `{name}` cannot be shown: {error}")))?;
    let title = schema.title.unwrap_or_else(|| name.to_owned());
    let (header, words) = match schema.description {
        Some(description) => (Some(title), description),
        None => (None, title),
    };
    let (header, words) = (header.as_deref().map(shown), shown(&words));
    let (min_options, max_options) = (schema.min_items, schema.max_items);
    let format = AnswerFormat {
        r#type: AnswerType::String,
        minimum: schema.minimum,
        maximum: schema.maximum,
        min_length: schema.min_length,
        max_length: schema.max_length,
        format: schema.format.as_deref().map(shown),
    };
    let is_of_several = schema.items.is_some();
    let choices = schema.choices.read().or_else(|| schema.items?.read());
    let value = match (schema.r#type.as_str(), choices) {
        ("boolean", _) => FieldValue::Boolean,
        (_, Some(choices)) if is_of_several => FieldValue::Several(choices),
        (_, Some(choices)) => FieldValue::One(choices),
        ("integer", None) => FieldValue::Written(AnswerFormat { r#type: AnswerType::Integer, ..format }),
        ("number", None) => FieldValue::Written(AnswerFormat { r#type: AnswerType::Number, ..format }),
        ("string", None) => FieldValue::Written(format),
        (other, None) => {
            return Err(protocol(&format!("its field `{name}` of the type {other} cannot be shown")));
        }
    };
    let labels = match &value {
        FieldValue::Boolean => vec![YES.to_owned(), NO.to_owned()],
        FieldValue::One(choices) | FieldValue::Several(choices) => {
            choices.iter().map(|choice| choice.label.clone()).collect()
        }
        FieldValue::Written(_) => Vec::new(),
    };
    if let FieldValue::One(choices) | FieldValue::Several(choices) = &value {
        let labels: HashSet<_> = choices.iter().map(|choice| &choice.label).collect();
        if choices.is_empty() || labels.len() < choices.len() {
            return Err(protocol(&format!("its field `{name}` has no options, or equal ones")));
        }
    }
    let question = Question {
        header,
        free_text: labels.is_empty(),
        options: labels.into_iter().map(option).collect(),
        multiple: is_of_several,
        format: match &value {
            FieldValue::Written(format) => Some(format.clone()),
            _ => None,
        },
        optional,
        min_options,
        max_options,
        ..question_of(words)
    };
    Ok((question, Field { name: name.to_owned(), value }))
}

fn question_of(question: String) -> Question {
    Question {
        question,
        header: None,
        options: Vec::new(),
        multiple: false,
        free_text: true,
        format: None,
        optional: false,
        min_options: None,
        max_options: None,
        url: None,
    }
}

/// A text as it can be shown and stored.
fn shown(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn option(label: String) -> QuestionOption {
    QuestionOption { label, description: None }
}

fn protocol(words: &str) -> Failure {
    Failure::Protocol(words.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(requests: Value) -> InputRequiredResult {
        serde_json::from_value(json!({
            "resultType": "input_required", "requestState": "s1", "inputRequests": requests,
        }))
        .expect("a result")
    }

    fn form(properties: Value, required: &[&str]) -> Value {
        json!({ "method": "elicitation/create", "params": {
            "mode": "form", "message": "Which one?",
            "requestedSchema": { "type": "object", "properties": properties, "required": required },
        }})
    }

    fn answer(labels: &[&str], text: Option<&str>) -> Answer {
        Answer {
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            text: text.map(str::to_owned),
        }
    }

    #[test]
    fn a_form_is_questions_and_the_answers_are_its_content() {
        let properties = json!({
            "a_name": { "type": "string", "title": "Name", "minLength": 2 },
            "b_count": { "type": "integer", "minimum": 1, "maximum": 9 },
            "c_share": { "type": "number" },
            "d_sure": { "type": "boolean", "description": "Are you sure?" },
            "e_tier": { "type": "string", "enum": ["s", "m"], "enumNames": ["Small", "Medium"] },
            "f_tags": { "type": "array", "items": { "type": "string", "enum": ["x", "y", "z"] } },
            "g_note": { "type": "string" },
        });
        let required = ["a_name", "b_count", "c_share", "d_sure", "e_tier"];
        let asked = Asked::read(wanted(json!({ "q": form(properties, &required) }))).expect("questions");
        assert_eq!(asked.message, "Which one?");
        let labels: Vec<Vec<_>> = asked
            .questions
            .iter()
            .map(|question| question.options.iter().map(|option| option.label.as_str()).collect())
            .collect();
        let none = Vec::<&str>::new();
        assert_eq!(labels[3], ["Yes", "No"]);
        assert_eq!((&labels[0], labels[4].as_slice()), (&none, ["Small", "Medium"].as_slice()));
        let optional: Vec<_> = asked.questions.iter().map(|question| question.optional).collect();
        assert_eq!(optional, [false, false, false, false, false, true, true]);
        assert!(asked.questions[5].multiple && !asked.questions[4].multiple);
        let answers = vec![
            answer(&[], Some("Ada")),
            answer(&[], Some("7")),
            answer(&[], Some("0.5")),
            answer(&["No"], None),
            answer(&["Medium"], None),
            answer(&["x", "z"], None),
            Answer::default(),
        ];
        assert_eq!(crate::domain::question::problem(&asked.questions, &answers), None);
        let (state, responses) = asked.continuation.responses(&Response::Accepted(answers));
        let content = json!({
            "a_name": "Ada", "b_count": 7, "c_share": 0.5, "d_sure": false, "e_tier": "m", "f_tags": ["x", "z"],
        });
        assert_eq!(state.as_deref(), Some("s1"));
        assert_eq!(responses["q"], json!({ "action": "accept", "content": content }));
        for (response, action) in [(Response::Declined, "decline"), (Response::Canceled, "cancel")] {
            assert_eq!(asked.continuation.responses(&response).1["q"], json!({ "action": action }));
        }
    }

    #[test]
    fn options_have_different_labels_and_nothing_shown_has_a_zero() {
        let named = json!({ "f": { "type": "string", "oneOf": [
            { "const": "1", "title": "Same" }, { "const": "2", "title": "Same" }, { "const": "3", "title": "1" },
        ]}});
        let asked = Asked::read(wanted(json!({ "q": form(named, &["f"]) }))).expect("questions");
        let labels: Vec<_> = asked.questions[0].options.iter().map(|option| option.label.as_str()).collect();
        assert_eq!(labels, ["1", "2", "3"]);
        let zero = json!({ "f\u{0}": { "type": "string", "enum": ["a\u{0}"], "description": "x\u{0}" } });
        let asked = Asked::read(wanted(json!({ "q": form(zero, &["f"]) }))).expect("questions");
        let json = serde_json::to_string(&(&asked.message, &asked.questions)).expect("JSON");
        assert!(!json.contains("\\u0000"), "{json}");
        let label = asked.questions[0].options[0].label.clone();
        let answers = vec![Answer { labels: vec![label], text: None }];
        let (_, responses) = asked.continuation.responses(&Response::Accepted(answers));
        assert_eq!(responses["q"]["content"]["f\u{0}"], "a\u{0}");
        let several = json!({ "f": { "type": "array", "minItems": 2, "maxItems": 2,
            "items": { "type": "string", "enum": ["x", "y", "z"] } } });
        let asked = Asked::read(wanted(json!({ "q": form(several, &["f"]) }))).expect("questions");
        for (labels, fits) in [(&["x"][..], false), (&["x", "y"], true), (&["x", "y", "z"], false)] {
            let problem = crate::domain::question::problem(&asked.questions, &[answer(labels, None)]);
            assert_eq!(problem.is_none(), fits, "{labels:?}");
        }
    }

    #[test]
    fn several_requests_share_the_answers_in_their_order() {
        let visit = json!({ "method": "elicitation/create", "params": {
            "mode": "url", "message": "Sign in.", "url": "https://login.example.com/x",
        }});
        let requests = json!({
            "a": visit, "b": form(json!({}), &[]), "c": form(json!({ "n": { "type": "string" } }), &["n"]),
        });
        let asked = Asked::read(wanted(requests)).expect("questions");
        assert_eq!(asked.questions[0].url.as_deref(), Some("https://login.example.com/x"));
        let answers = vec![answer(&["Accept"], None), answer(&["Accept"], None), answer(&[], Some("seven"))];
        let responses = asked.continuation.responses(&Response::Accepted(answers)).1;
        assert_eq!(responses["a"], json!({ "action": "accept", "content": {} }));
        assert_eq!(responses["c"]["content"], json!({ "n": "seven" }));
    }

    #[test]
    fn what_is_not_offered_and_what_is_too_large_is_refused() {
        let many: Map<String, Value> =
            (0..17).map(|at| (format!("f{at}"), json!({ "type": "string" }))).collect();
        let large = form(json!({ "f": { "type": "string", "description": "x".repeat(9_000) } }), &[]);
        for request in [json!({ "method": "roots/list" }), form(many.into(), &[]), large] {
            assert!(matches!(Asked::read(wanted(json!({ "q": request }))), Err(Failure::Protocol(_))));
        }
        let options = |schema: Value| form(json!({ "f": schema }), &[]);
        let huge: Vec<_> = (0..20_000).map(|at| at.to_string()).collect();
        for schema in [
            json!({ "type": "string", "enum": [] }),
            json!({ "type": "string", "enum": ["1", "1"] }),
            json!({ "type": "string", "enum": huge }),
        ] {
            let asked = Asked::read(wanted(json!({ "q": options(schema) })));
            assert!(matches!(asked, Err(Failure::Protocol(_))));
        }
        let state = InputRequiredResult::from_request_state("x".repeat(10_000));
        assert!(matches!(Asked::read(state), Err(Failure::Protocol(_))));
        assert!(Asked::read(InputRequiredResult::from_request_state("x")).expect("a retry").is_empty());
    }
}
