//! Requests that are written to files, for the types that the providers publish (`tests/providers`).

use std::{fs, io::Write, path::Path};

/// Directory into which requests are written, one a line, if it is set.
const REQUESTS: &str = "SOJOURN_TEST_REQUESTS";

/// Writes the JSON of a request that a fake accepts.
pub fn write(provider: &str, request: &[u8]) {
    let Some(directory) = std::env::var_os(REQUESTS) else { return };
    let file = Path::new(&directory).join(format!("{}.jsonl", provider.replace('/', "_")));
    // One write: other tests append to the same file.
    let line = [request, b"\n"].concat();
    let opened = fs::File::options().create(true).append(true).open(file);
    opened.and_then(|mut file| file.write_all(&line)).expect("the directory is writable");
}
