//! Questions that an agent asks within a turn, and the answers of a caller.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::ActionId;

/// A question of an agent.
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
        match text.as_deref().map(str::trim) {
            Some(_) if !self.takes_text() => Some(("text", "is not offered; choose an option".to_owned())),
            Some("") => Some(("text", "is empty".to_owned())),
            None if labels.is_empty() => Some(("labels", "or `text` is needed".to_owned())),
            Some(_) | None => None,
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
            Answers { action_id: ActionId::from_uuid(uuid::Uuid::nil()), answers: answers.to_vec() }.text()
        };
        assert_eq!(text(&[answer(&["staging"], None)]), "staging");
        assert_eq!(text(&[answer(&["a", "b"], Some("soon"))]), "a, b: soon");
        assert_eq!(text(&[answer(&["a"], None), answer(&[], Some("b"))]), "1. a\n2. b");
    }
}
