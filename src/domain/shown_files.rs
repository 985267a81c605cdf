//! Files of a history that a model is shown: the newest, and none that it refused.

use super::{
    content::{Content, SentAs},
    conversation::{Message, ModelRequest},
    ids::FileId,
    price::PROMPT_BYTES_PER_TOKEN,
};
use crate::base::limit::{
    FILE_BYTES_DROPPED_AT_ONCE, FILES_SENT_BYTES_MAX, IMAGES_DROPPED_AT_ONCE, IMAGES_SENT_MAX,
};

/// Leaves out the oldest files of a history that is too large for one request; a line with the path of each stays.
///
/// Several are left out at once, so that the beginning of the history, which the provider has cached, stays the same for
/// some files.
pub fn limit_files(history: &mut [Message]) {
    let is_shown = |part: &&Content| !matches!(part.sent_as(), None | Some((_, SentAs::Path)));
    let is_image = |part: &Content| matches!(part.sent_as(), Some((_, SentAs::Image)));
    let images = parts(history).filter(|part| is_image(part)).count();
    let surplus = images.saturating_sub(IMAGES_SENT_MAX);
    let mut images_to_drop = surplus.div_ceil(IMAGES_DROPPED_AT_ONCE) * IMAGES_DROPPED_AT_ONCE;
    let bytes = parts(history).map(Content::sent_bytes).fold(0, u64::saturating_add);
    let surplus = bytes.saturating_sub(FILES_SENT_BYTES_MAX);
    let mut bytes_to_drop =
        surplus.div_ceil(FILE_BYTES_DROPPED_AT_ONCE).saturating_mul(FILE_BYTES_DROPPED_AT_ONCE);
    for part in history.iter_mut().flat_map(Message::content_mut) {
        if !is_shown(&&*part) || (bytes_to_drop == 0 && (images_to_drop == 0 || !is_image(part))) {
            continue;
        }
        images_to_drop = images_to_drop.saturating_sub(usize::from(is_image(part)));
        bytes_to_drop = bytes_to_drop.saturating_sub(part.sent_bytes());
        part.drop_file("It is not shown again, because newer files are.");
    }
}

/// Leaves out these files; a line with the path of each stays. Returns the tokens that it saves.
pub fn drop_files<'a>(parts: impl Iterator<Item = &'a mut Content>, files: &[FileId]) -> u64 {
    let mut saved = 0;
    let dropped = |part: &&mut Content| part.file().is_some_and(|file| files.contains(&file.file_id));
    for part in parts.filter(dropped) {
        let before = part.tokens();
        part.drop_file("It is not shown, because the model refused it.");
        saved += before.saturating_sub(part.tokens());
    }
    saved
}

/// Returns the bytes of a prompt that has as many tokens as the files which a request shows, at most; of a PDF, an estimate.
pub fn prompt_bytes(request: &ModelRequest) -> usize {
    let shown = parts(&request.history)
        .filter(|part| part.file().is_some_and(|file| request.files.contains_key(&file.file_id)));
    let bytes = shown.map(|part| match part.sent_as() {
        Some((file, SentAs::Text)) => file.bytes,
        _ => part.tokens().saturating_mul(PROMPT_BYTES_PER_TOKEN),
    });
    usize::try_from(bytes.fold(0, u64::saturating_add)).unwrap_or(usize::MAX)
}

/// Returns the parts of all messages and results.
pub fn parts(history: &[Message]) -> impl Iterator<Item = &Content> {
    history.iter().flat_map(Message::content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        base::Id,
        domain::{
            content::{FileRef, ModelImage},
            conversation::ModelOptions,
            price::prompt_tokens_max,
        },
    };

    fn image(number: u128, bytes: u64) -> Content {
        let image = ModelImage {
            media_type: "image/png".to_owned(),
            bytes,
            width: 100,
            height: 75,
            converted: false,
        };
        Content::Image(FileRef {
            file_id: Id::from_uuid(uuid::Uuid::from_u128(number)),
            name: "a.png".to_owned(),
            path: format!("/a/{number}.png"),
            media_type: "image/png".to_owned(),
            bytes,
            sha256: String::new(),
            image: Some(image),
        })
    }

    fn history(count: usize, bytes: u64) -> Vec<Message> {
        (0..count)
            .map(|at| Message::User { text: String::new(), content: vec![image(at as u128, bytes)] })
            .collect()
    }

    fn sent(history: &[Message]) -> Vec<usize> {
        let is_sent = |message: &Message| message.content().any(|part| part.file().is_some());
        history.iter().enumerate().filter(|(_, message)| is_sent(message)).map(|(at, _)| at).collect()
    }

    #[test]
    fn the_newest_images_are_sent_and_the_first_one_stays_for_a_while() {
        for (count, first) in [(1, 0), (20, 0), (21, 10), (30, 10), (31, 20)] {
            let mut history = history(count, 1);
            limit_files(&mut history);
            assert_eq!(sent(&history), (first..count).collect::<Vec<_>>(), "{count}");
        }
    }

    #[test]
    fn a_request_is_not_larger_than_a_provider_accepts_and_its_beginning_stays_for_a_while() {
        let one = FILE_BYTES_DROPPED_AT_ONCE / 4;
        let most = usize::try_from(FILES_SENT_BYTES_MAX / one).expect("a count");
        for (more, first) in [(0, 0), (1, 4), (2, 4), (3, 4), (4, 4), (5, 8)] {
            let mut history = history(most + more, one);
            limit_files(&mut history);
            assert_eq!(sent(&history), (first..most + more).collect::<Vec<_>>(), "{more} more");
        }
    }

    #[test]
    fn a_reservation_covers_the_tokens_of_the_files() {
        let history = history(3, 1_000);
        let tokens: u64 = parts(&history).map(Content::tokens).sum();
        let files = parts(&history).filter_map(Content::file);
        let request = ModelRequest {
            model: String::new(),
            system: String::new(),
            tools: Vec::new(),
            files: files.map(|file| (file.file_id, bytes::Bytes::new())).collect(),
            history,
            max_tokens: 1,
            options: ModelOptions::default(),
        };
        assert_eq!(prompt_tokens_max(prompt_bytes(&request)), tokens);
    }

    #[test]
    fn a_file_that_is_left_out_is_named() {
        let mut history = history(2, 1);
        let file = image(1, 1).file().expect("a file").clone();
        drop_files(history.iter_mut().flat_map(Message::content_mut), &[file.file_id]);
        assert_eq!(sent(&history), [0]);
        let Content::Text { text } = history[1].content().next().expect("a part") else { panic!("a line") };
        assert!(text.contains(&file.path), "{text}");
    }
}
