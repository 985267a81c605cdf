//! Removal of secrets from a stream, independent of chunk boundaries.
//!
//! Called by `exchange` on responses of hosts with a secret. Only bytes that may become a secret are held
//! back, so a stream of events is not delayed.

/// Replacements and the bytes held back.
#[derive(Clone, Debug, Default)]
pub struct Scrub {
    needles: Vec<(Vec<u8>, Vec<u8>)>,
    held: Vec<u8>,
}

impl Scrub {
    /// Creates a scrubber from pairs of secret and replacement.
    pub fn new(mut needles: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        needles.retain(|(from, _)| !from.is_empty());
        // Longest first, because one secret may be a prefix of another.
        needles.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        Self { needles, held: Vec::new() }
    }

    /// Adds bytes and returns those that are safe to forward.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        self.pass(false)
    }

    /// Returns the bytes held back, at the end of the stream.
    pub fn finish(&mut self) -> Vec<u8> {
        self.pass(true)
    }

    /// Scrubs a complete value.
    pub fn whole(&self, bytes: &[u8]) -> Vec<u8> {
        let mut own = Self { needles: self.needles.clone(), held: bytes.to_vec() };
        own.pass(true)
    }

    fn pass(&mut self, is_end: bool) -> Vec<u8> {
        let mut passed = Vec::with_capacity(self.held.len());
        let mut at = 0;
        while at < self.held.len() {
            let rest = &self.held[at..];
            let may_become =
                |(from, _): &&(Vec<u8>, Vec<u8>)| from.len() > rest.len() && from.starts_with(rest);
            if !is_end && self.needles.iter().any(|needle| may_become(&needle)) {
                break;
            }
            match self.needles.iter().find(|(from, _)| rest.starts_with(from)) {
                Some((from, to)) => {
                    passed.extend_from_slice(to);
                    at += from.len();
                }
                None => {
                    passed.push(rest[0]);
                    at += 1;
                }
            }
        }
        self.held.drain(..at);
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrub() -> Scrub {
        Scrub::new(vec![(b"abcab".to_vec(), b"X".to_vec()), (b"abcabcd!".to_vec(), b"YY".to_vec())])
    }

    #[test]
    fn only_what_may_become_a_secret_is_held() {
        let mut scrub = scrub();
        assert_eq!(scrub.push(b"event: 1\n\n"), b"event: 1\n\n");
        assert_eq!(scrub.push(b"..ab"), b"..");
        assert_eq!(scrub.push(b"z"), b"abz");
    }

    proptest::proptest! {
        #[test]
        fn no_cut_lets_a_secret_through(parts in proptest::collection::vec("[abcd!]{0,6}", 0..12)) {
            let whole = parts.concat();
            let mut stream = scrub();
            let mut passed = Vec::new();
            for part in &parts {
                passed.extend(stream.push(part.as_bytes()));
            }
            passed.extend(stream.finish());
            proptest::prop_assert_eq!(&passed, &scrub().whole(whole.as_bytes()));
            let text = String::from_utf8(passed).unwrap();
            proptest::prop_assert!(!text.contains("abcab"), "{} of {}", text, whole);
        }
    }
}
