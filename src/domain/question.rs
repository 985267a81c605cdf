//! Questions that an agent, or an MCP server, asks within a turn, and the answers of a caller.

use serde::{Deserialize, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

use super::ids::ActionId;

/// A question of an agent or of an MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Question {
    pub question: String,
    /// A few words that name it, for a form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Answers to choose from.
    #[serde(default)]
    pub options: Vec<QuestionOption>,
    /// Whether several options may be chosen.
    #[serde(default)]
    pub multiple: bool,
    /// Whether an answer may be written, beside or instead of the options. Without options it always may.
    #[serde(default = "yes")]
    pub free_text: bool,
    /// Form of a written answer; any text if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<AnswerFormat>,
    /// Whether its answer may be empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub optional: bool,
    /// Fewest and most options that may be chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_options: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_options: Option<u32>,
    /// An address that an MCP server asks a person to open. Show its host; it is not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Form of a written answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AnswerFormat {
    pub r#type: AnswerType,
    /// Smallest and largest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub minimum: Option<Number>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub maximum: Option<Number>,
    /// Fewest and most characters of a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_length: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u32>,
    /// Format of a text by JSON Schema, such as `email`. The server checks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// Type of a written answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerType {
    String,
    Integer,
    Number,
}

/// An answer to choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuestionOption {
    pub label: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// A caller's answers to the questions of an action, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = QuestionAnswers)]
pub struct Answers {
    pub action_id: ActionId,
    pub answers: Vec<Answer>,
    /// Whether nobody answers the questions of an MCP server: it is told so. Then there are no answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub declined: bool,
}

/// The answer to one question: options by their labels, a text, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = QuestionAnswer)]
pub struct Answer {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub labels: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

fn yes() -> bool {
    true
}

impl Question {
    /// Returns whether an answer may be written.
    pub fn takes_text(&self) -> bool {
        self.free_text || self.options.is_empty()
    }

    /// Returns the field of an answer that does not fit, and why.
    fn problem(&self, answer: &Answer) -> Option<(&'static str, String)> {
        let Answer { labels, text } = answer;
        let is_offered = |label: &String| self.options.iter().any(|option| option.label == *label);
        if let Some(label) = labels.iter().find(|label| !is_offered(label)) {
            return Some(("labels", format!("`{label}` is not offered")));
        }
        if labels.iter().enumerate().any(|(index, label)| labels[..index].contains(label)) {
            return Some(("labels", "names an option twice".to_owned()));
        }
        if labels.len() > 1 && !self.multiple {
            return Some(("labels", "takes one option".to_owned()));
        }
        let chosen = u32::try_from(labels.len()).unwrap_or(u32::MAX);
        if chosen > 0 && self.min_options.is_some_and(|least| chosen < least) {
            return Some(("labels", format!("needs at least {} options", self.min_options?)));
        }
        if self.max_options.is_some_and(|most| chosen > most) {
            return Some(("labels", format!("takes at most {} options", self.max_options?)));
        }
        match text.as_deref().map(str::trim) {
            Some(_) if !self.takes_text() => Some(("text", "is not offered; choose an option".to_owned())),
            Some("") => Some(("text", "is empty".to_owned())),
            Some(text) => Some(("text", self.format.as_ref()?.problem(text)?)),
            None if labels.is_empty() && !self.optional => Some(("labels", "or `text` is needed".to_owned())),
            None => None,
        }
    }
}

impl AnswerFormat {
    /// Returns why a text does not fit.
    fn problem(&self, text: &str) -> Option<String> {
        if self.r#type == AnswerType::String {
            let length = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
            if self.min_length.is_some_and(|least| length < least) {
                return Some(format!("has {length} characters; at least {} are needed", self.min_length?));
            }
            if self.max_length.is_some_and(|most| length > most) {
                return Some(format!("has {length} characters; at most {} are accepted", self.max_length?));
            }
            return None;
        }
        let Some(number) = self.number(text).and_then(|number| number.as_f64()) else {
            let what = if self.r#type == AnswerType::Integer { "a whole number" } else { "a number" };
            return Some(format!("is not {what}"));
        };
        let bound = |bound: &Option<Number>| bound.as_ref().and_then(Number::as_f64);
        if let Some(least) = bound(&self.minimum).filter(|least| number < *least) {
            return Some(format!("is below {least}"));
        }
        let most = bound(&self.maximum).filter(|most| number > *most)?;
        Some(format!("is above {most}"))
    }

    /// Returns the number that a text is; `None` for another text.
    pub fn number(&self, text: &str) -> Option<Number> {
        match self.r#type {
            AnswerType::String => None,
            AnswerType::Integer => text.trim().parse::<i64>().ok().map(Number::from),
            AnswerType::Number => text.trim().parse::<f64>().ok().and_then(Number::from_f64),
        }
    }
}

/// Returns what is wrong with the answers to these questions: the place in the list of answers, a field of the answer,
/// and why.
pub fn problem(
    questions: &[Question],
    answers: &[Answer],
) -> Option<(Option<(usize, &'static str)>, String)> {
    if answers.len() != questions.len() {
        let words = format!("has {} answers; the action has {} questions", answers.len(), questions.len());
        return Some((None, words));
    }
    questions.iter().zip(answers).enumerate().find_map(|(index, (question, answer))| {
        let (field, words) = question.problem(answer)?;
        Some((Some((index, field)), words))
    })
}

impl Answers {
    /// Returns the text for the model: that of the only answer, or one line with a number for each.
    pub fn text(&self) -> String {
        match self.answers.as_slice() {
            [] => "declined".to_owned(),
            [answer] => answer.words(),
            answers => {
                let line = |(index, answer): (usize, &Answer)| format!("{}. {}", index + 1, answer.words());
                answers.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
            }
        }
    }
}

impl Answer {
    fn words(&self) -> String {
        let labels = (!self.labels.is_empty()).then(|| self.labels.join(", "));
        labels.into_iter().chain(self.text.clone()).collect::<Vec<_>>().join(": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(fields: serde_json::Value) -> Question {
        let mut all = serde_json::json!({ "question": "Where to?", "options": [{ "label": "staging" }, { "label": "production" }] });
        all.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        serde_json::from_value(all).expect("a question")
    }

    fn answer(labels: &[&str], text: Option<&str>) -> Answer {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        Answer { labels, text: text.map(str::to_owned) }
    }

    fn refused(fields: serde_json::Value, answer: &Answer) -> Option<&'static str> {
        let problem = problem(&[question(fields)], std::slice::from_ref(answer))?;
        Some(problem.0.expect("a place").1)
    }

    #[test]
    fn an_answer_must_fit_its_question() {
        let (one, many) = (serde_json::json!({}), serde_json::json!({ "multiple": true }));
        let closed = serde_json::json!({ "free_text": false });
        let open = serde_json::json!({ "free_text": false, "options": [] });
        for (fields, labels, text, expected) in [
            (&one, vec!["staging"], None, None),
            (&one, vec![], Some("both"), None),
            (&one, vec!["staging"], Some("the new one"), None),
            (&one, vec!["staging", "production"], None, Some("labels")),
            (&many, vec!["staging", "production"], None, None),
            (&many, vec!["staging", "staging"], None, Some("labels")),
            (&one, vec!["Staging"], None, Some("labels")),
            (&one, vec![], None, Some("labels")),
            (&one, vec![], Some(" "), Some("text")),
            (&closed, vec!["staging"], Some("x"), Some("text")),
            (&open, vec![], Some("x"), None),
        ] {
            assert_eq!(
                refused(fields.clone(), &answer(&labels, text)),
                expected,
                "{fields} {labels:?} {text:?}"
            );
        }
        assert!(problem(&[question(one)], &[]).is_some_and(|(place, _)| place.is_none()));
    }

    #[test]
    fn the_model_reads_what_was_chosen_and_written() {
        let text = |answers: &[Answer]| {
            Answers {
                action_id: ActionId::from_uuid(uuid::Uuid::nil()),
                answers: answers.to_vec(),
                declined: false,
            }
            .text()
        };
        assert_eq!(text(&[answer(&["staging"], None)]), "staging");
        assert_eq!(text(&[answer(&["a", "b"], Some("soon"))]), "a, b: soon");
        assert_eq!(text(&[answer(&["a"], None), answer(&[], Some("b"))]), "1. a\n2. b");
    }
}
