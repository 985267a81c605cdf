//! Lists of a session's files, and the paths of a fetch, as they are sent between worker and sandbox.
//!
//! Called by the implementations of the port. A list is untrusted input: it is bounded, each entry is checked, and an
//! entry is accepted only below a directory of the list, in order, so that no path is in it twice.

use bytes::Bytes;
use sojourn_init::scan::{EntryKind, PATH_BYTES_MAX, ScanEntry, encode_path, is_path};
use tokio::sync::mpsc;

use super::Fault;
use crate::base::limit::{ARCHIVE_PARTS_WAITING, FETCH_PATHS_BYTES_MAX, SCAN_BYTES_MAX};

const _: () = assert!(PATH_BYTES_MAX < FETCH_PATHS_BYTES_MAX);

/// Reason of a refusal by [`Fault::unsupported`].
const UNSUPPORTED: &str =
    "the sandbox was created by an older version of the service, which does not list files";

impl Fault {
    /// A sandbox whose init is older than the calls to scan and to fetch.
    pub(crate) fn unsupported() -> Self {
        Self::Refused(UNSUPPORTED.to_owned())
    }

    /// Whether a scan or fetch was refused because the sandbox's init does not know it. The next sandbox of the
    /// session does.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Refused(reason) if reason == UNSUPPORTED)
    }
}

/// Collects the entries that `scan` sends in parts.
///
/// # Errors
/// Those of `scan`; `Refused` when the list is too long; `Unavailable` when it is none.
pub(crate) async fn collect<F: Future<Output = Result<(), Fault>>>(
    entries_max: u64,
    scan: impl FnOnce(mpsc::Sender<Bytes>) -> F,
) -> Result<Vec<ScanEntry>, Fault> {
    let (sender, mut parts) = mpsc::channel::<Bytes>(ARCHIVE_PARTS_WAITING);
    // Dropping the receiver ends the scan.
    let listed = async move {
        let mut list = List { entries: Vec::new(), entries_max, bytes: 0, directories: Vec::new() };
        while let Some(part) = parts.recv().await {
            list.add(&part)?;
        }
        Ok::<_, Fault>(list.entries)
    };
    let (sent, listed) = tokio::join!(scan(sender), listed);
    let entries = listed?;
    sent.map(|()| entries)
}

/// Entries of a list so far.
struct List {
    entries: Vec<ScanEntry>,
    entries_max: u64,
    /// Bytes of the parts.
    bytes: usize,
    /// The directories above the next entry, as indices.
    directories: Vec<usize>,
}

impl List {
    fn add(&mut self, mut part: &[u8]) -> Result<(), Fault> {
        self.bytes += part.len();
        if self.bytes > SCAN_BYTES_MAX {
            return Err(Fault::Refused(format!(
                "the list of the files is longer than {SCAN_BYTES_MAX} bytes"
            )));
        }
        while !part.is_empty() {
            let invalid =
                |error| Fault::Unavailable(format!("its init sent a list that cannot be read: {error}"));
            let entry = ScanEntry::decode(&mut part).map_err(invalid)?;
            if self.entries.len() as u64 >= self.entries_max {
                return Err(Fault::Refused(format!("there are more than {} files", self.entries_max)));
            }
            if !self.has_place(&entry) {
                return Err(Fault::Unavailable("its init sent a list that is not in order".to_owned()));
            }
            if entry.kind == EntryKind::Directory {
                self.directories.push(self.entries.len());
            }
            self.entries.push(entry);
        }
        Ok(())
    }

    /// Whether the entry is after the last one and in a directory of the list.
    fn has_place(&mut self, entry: &ScanEntry) -> bool {
        if self.entries.last().is_some_and(|last| names(&last.path).ge(names(&entry.path))) {
            return false;
        }
        let Some(end) = entry.path.iter().rposition(|&byte| byte == b'/') else {
            self.directories.clear();
            return entry.kind == EntryKind::Directory;
        };
        while let Some(&last) = self.directories.last() {
            if self.entries[last].path == entry.path[..end] {
                return true;
            }
            self.directories.pop();
        }
        false
    }
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
}

/// Payloads of as few calls as needed to fetch these paths, in order.
///
/// # Errors
/// `Refused` when one of them is not a path of a list.
pub(crate) fn payloads(paths: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Fault> {
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    for path in paths {
        if !is_path(path) {
            let path = String::from_utf8_lossy(path);
            return Err(Fault::Refused(format!("{path}: it is not one of the session's files")));
        }
        match payloads.last_mut() {
            Some(last) if last.len() + path.len() < FETCH_PATHS_BYTES_MAX => encode_path(path, last),
            Some(_) | None => {
                let mut next = Vec::new();
                encode_path(path, &mut next);
                payloads.push(next);
            }
        }
    }
    Ok(payloads)
}

#[cfg(test)]
mod tests {
    use sojourn_init::scan::decode_paths;

    use super::*;

    fn entry(path: &str, kind: EntryKind) -> ScanEntry {
        let target = if kind == EntryKind::Link { b"target".to_vec() } else { Vec::new() };
        ScanEntry {
            path: path.as_bytes().to_vec(),
            kind,
            mode: 0o644,
            size: 1,
            mtime_ns: 2,
            ctime_ns: 3,
            inode: 4,
            links: 5,
            target,
        }
    }

    /// Collects a list with each entry in a part of its own.
    async fn collected(entries: &[ScanEntry], entries_max: u64) -> Result<Vec<ScanEntry>, Fault> {
        let send = |parts: mpsc::Sender<Bytes>| async move {
            for entry in entries {
                let mut part = Vec::new();
                entry.encode(&mut part);
                parts.send(part.into()).await.map_err(|_| Fault::Gone)?;
            }
            Ok::<_, Fault>(())
        };
        collect(entries_max, send).await
    }

    #[tokio::test]
    async fn a_list_in_order_is_collected() {
        use EntryKind::{Directory, File, Link};
        let list = [
            entry("home", Directory),
            entry("workspace", Directory),
            entry("workspace/a", Directory),
            entry("workspace/a/b", Directory),
            entry("workspace/a/b/c", File),
            entry("workspace/a/d", Link),
            entry("workspace/a.b", File),
        ];
        assert_eq!(collected(&list, 7).await.as_deref(), Ok(list.as_slice()));
        assert_eq!(collected(&list, 6).await, Err(Fault::Refused("there are more than 6 files".to_owned())));
        assert_eq!(collected(&[], 0).await, Ok(Vec::new()));
    }

    #[tokio::test]
    async fn a_list_out_of_order_is_a_fault() {
        use EntryKind::{Directory, File};
        let (root, a) = (entry("workspace", Directory), entry("workspace/a", Directory));
        let bad = [
            vec![a.clone()],
            vec![entry("workspace", File)],
            vec![root.clone(), root.clone()],
            vec![root.clone(), entry("home", Directory)],
            vec![root.clone(), entry("workspace/b", File), a.clone()],
            vec![root.clone(), a.clone(), entry("workspace/a/b", File), a.clone()],
            // Below a file, and in a directory that the list has left.
            vec![root.clone(), entry("workspace/a", File), entry("workspace/a/b", File)],
            vec![root.clone(), a.clone(), entry("workspace/b", File), entry("workspace/a/b", File)],
            vec![root, a, entry("workspace/a/b/c", File)],
        ];
        for list in bad {
            let fault = collected(&list, 100).await.unwrap_err();
            assert!(matches!(fault, Fault::Unavailable(_)), "{list:?}: {fault:?}");
        }
    }

    #[tokio::test]
    async fn a_list_that_breaks_off_or_does_not_end_is_a_fault() {
        let broken = collect(10, |parts: mpsc::Sender<Bytes>| async move {
            let mut part = Vec::new();
            entry("home", EntryKind::Directory).encode(&mut part);
            part.pop();
            parts.send(part.into()).await.map_err(|_| Fault::Gone)
        });
        assert!(matches!(broken.await, Err(Fault::Unavailable(_))));
        let failed = collect(10, |_| async { Err(Fault::Stale) });
        assert_eq!(failed.await, Err(Fault::Stale));
        // Long names.
        let endless = collect(u64::MAX, |parts: mpsc::Sender<Bytes>| async move {
            let mut root = Vec::new();
            entry("home", EntryKind::Directory).encode(&mut root);
            parts.send(root.into()).await.map_err(|_| Fault::Gone)?;
            for number in 0.. {
                let mut part = Vec::new();
                entry(&format!("home/{number:0>3990}"), EntryKind::File).encode(&mut part);
                parts.send(part.into()).await.map_err(|_| Fault::Gone)?;
            }
            Ok::<_, Fault>(())
        });
        let fault = endless.await.unwrap_err();
        assert!(matches!(&fault, Fault::Refused(reason) if reason.contains("longer than")), "{fault:?}");
    }

    #[test]
    fn paths_are_divided_among_calls_in_order() {
        let paths: Vec<_> = (0..600).map(|number| format!("home/{number:0>3000}").into_bytes()).collect();
        let payloads = payloads(&paths).unwrap();
        assert_eq!(payloads.len(), 2);
        assert!(payloads.iter().all(|payload| payload.len() <= FETCH_PATHS_BYTES_MAX));
        let decoded: Vec<_> = payloads.iter().flat_map(|payload| decode_paths(payload).unwrap()).collect();
        assert_eq!(decoded, paths);
        assert_eq!(super::payloads(&[]), Ok(Vec::new()));
        for bad in ["/etc/passwd", "home/../x", "home/a\0home/b", ""] {
            let refused = super::payloads(&[b"home/a".to_vec(), bad.as_bytes().to_vec()]);
            assert!(matches!(refused, Err(Fault::Refused(_))), "{bad:?}");
        }
    }
}
