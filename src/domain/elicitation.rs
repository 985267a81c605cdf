//! Elicitations: questions of an MCP server to a person, before it goes on with a call.

use serde::{Deserialize, Serialize};

use super::question::{Answer, Answers, Question};

/// A server's questions, which the call waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elicitation {
    /// Name of the server.
    pub server: String,
    /// Its words for the person.
    pub message: String,
    pub questions: Vec<Question>,
    /// State of the server and the form of its questions, sealed.
    pub continuation: String,
    /// Time in which a person must respond, in seconds.
    pub expires_seconds: u64,
}

/// An elicitation that has ended: the call goes on with the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elicited {
    /// Number of elicitations of the call so far.
    pub round: u32,
    pub continuation: String,
    pub response: Response,
}

/// A person's response to an elicitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// One answer for each question.
    Accepted(Vec<Answer>),
    Declined,
    /// Nobody responded in time.
    Canceled,
}

impl Response {
    /// Returns the response that a caller's answers are.
    pub fn of(answers: &Answers) -> Self {
        if answers.declined { Self::Declined } else { Self::Accepted(answers.answers.clone()) }
    }
}
