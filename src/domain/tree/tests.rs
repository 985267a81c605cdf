//! Trees against naive references, and random trees for other tests.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::base::{seal::sha256, text::hex};

/// Names that order differently as bytes of paths and as names, and some that are no text.
const NAMES: [&[u8]; 6] = [b"a", b"a-b", b"a0", b"b", b"x\ny", b"\xff\xfe"];

pub(crate) fn entry(kind: Kind) -> Entry {
    Entry { mode: 0o755, mtime_ns: 0, kind }
}

/// A file with a content that is named by a number; its places depend on `place`.
pub(crate) fn file(content: u8, place: u32) -> Kind {
    let count = u32::from(content % 3);
    let chunk = |number: u32| Chunk {
        digest: sha256(&[content, 1, u8::try_from(number).unwrap()]),
        size: 7 + number,
        place: Place { pack: place, offset: 8 + u64::from(number), bytes: 5 },
    };
    let chunks: Vec<_> = (0..count).map(chunk).collect();
    let size = chunks.iter().map(|chunk| u64::from(chunk.size)).sum();
    Kind::File { size, digest: sha256(&[content]), chunks }
}

/// Random trees with few names, so that two of them have paths in common.
pub(crate) fn trees() -> impl Strategy<Value = Tree> {
    let path = prop::collection::vec(prop::sample::select(NAMES.to_vec()), 1..5);
    let kind = prop_oneof![
        (0u8..6, 0u32..3).prop_map(|(content, place)| file(content, place)),
        Just(Kind::Directory),
        prop::sample::select(NAMES.to_vec()).prop_map(|name| Kind::Link { target: name.to_vec() }),
    ];
    let mode = prop::sample::select(vec![0o644, 0o755, 0o4_755, 0]);
    let one = (any::<bool>(), path, kind, mode, 0i64..3);
    prop::collection::vec(one, 0..24).prop_map(|entries| {
        let mut tree = Tree::new();
        for (is_home, names, kind, mode, mtime_ns) in entries {
            let mut path = if is_home { b"home".to_vec() } else { b"workspace".to_vec() };
            for name in names {
                if tree.get(&path).is_none() {
                    // Refused if it is below a file.
                    let _ = tree.insert(path.clone(), entry(Kind::Directory));
                }
                path = [path.as_slice(), name].join(&b'/');
            }
            let _ = tree.insert(path, Entry { mode, mtime_ns, kind });
        }
        tree
    })
}

/// The changes as their definition says, found path by path.
fn naive(before: &Tree, after: &Tree) -> Vec<(Vec<u8>, Change)> {
    let paths: BTreeSet<_> = before.iter().chain(after.iter()).map(|(path, _)| path.to_vec()).collect();
    let is_empty = |tree: &Tree, path: &[u8]| {
        let above = [path, b"/"].concat();
        !tree.iter().any(|(other, _)| other.starts_with(&above))
    };
    let content = |kind: &Kind| match kind {
        Kind::File { digest, .. } => (0, digest.to_vec()),
        Kind::Directory => (1, Vec::new()),
        Kind::Link { target } => (2, target.clone()),
    };
    let change = |path: &[u8]| {
        let (Some(old), Some(new)) = (before.get(path), after.get(path)) else {
            let is_added = before.get(path).is_none();
            let (tree, change) = if is_added { (after, Change::Added) } else { (before, Change::Deleted) };
            let is_directory = tree.get(path).unwrap().kind == Kind::Directory;
            return (!is_directory || is_empty(tree, path)).then_some(change);
        };
        let (old_content, new_content) = (content(&old.kind), content(&new.kind));
        if old_content.0 != new_content.0 {
            Some(Change::TypeChanged)
        } else if old_content.1 != new_content.1 {
            Some(Change::Modified)
        } else {
            (old.mode != new.mode).then_some(Change::ModeChanged)
        }
    };
    paths.into_iter().filter_map(|path| change(&path).map(|change| (path, change))).collect()
}

proptest! {
    #[test]
    fn changes_are_those_of_the_naive_reference(before in trees(), after in trees()) {
        let changes = compare(&before, &after);
        for change in &changes {
            prop_assert_eq!(change.before, before.get(&change.path));
            prop_assert_eq!(change.after, after.get(&change.path));
        }
        let changes: Vec<_> = changes.into_iter().map(|change| (change.path, change.change)).collect();
        prop_assert_eq!(changes, naive(&before, &after));
    }

    #[test]
    fn trees_without_a_change_have_one_id_and_others_have_two(one in trees(), other in trees()) {
        prop_assert_eq!(compare(&one, &other).is_empty(), one.id() == other.id());
    }

    #[test]
    fn times_and_places_are_no_part_of_the_id(tree in trees()) {
        let mut moved = Tree::new();
        for (path, entry) in tree.iter() {
            let mut entry = Entry { mtime_ns: entry.mtime_ns + 1, ..entry.clone() };
            if let Kind::File { chunks, .. } = &mut entry.kind {
                chunks.iter_mut().for_each(|chunk| chunk.place.pack += 1);
            }
            moved.insert(path.to_vec(), entry).unwrap();
        }
        prop_assert_eq!(moved.id(), tree.id());
        prop_assert!(compare(&tree, &moved).is_empty());
    }

    #[test]
    fn each_part_of_an_entry_changes_the_id(tree in trees(), at in any::<prop::sample::Index>()) {
        prop_assume!(!tree.is_empty());
        let (path, old) = tree.iter().nth(at.index(tree.len())).unwrap();
        let mut other = tree.clone();
        let changed = Entry { mode: old.mode ^ 0o100, ..old.clone() };
        other.insert(path.to_vec(), changed).unwrap();
        prop_assert_ne!(other.id(), tree.id());
        other.remove(path);
        prop_assert!(other.get(path).is_none() && other.is_childless(path));
        prop_assert_ne!(other.id(), tree.id());
    }
}

#[test]
fn the_digest_is_the_one_that_stored_ids_begin_with() {
    // Computed with Python's hashlib.
    let empty = "a026fcb5debfd9933994c5a0273d29ded7002ca3b33cdb2604a1cb2b1ffaad99";
    assert_eq!(hex(&Tree::new().digest()), empty);
    let content = sha256(b"hi\n");
    let place = Place { pack: 1, offset: 8, bytes: 12 };
    let chunks = vec![Chunk { digest: content, size: 3, place }];
    let entries: [(&[u8], u32, Kind); 5] = [
        (b"workspace", 0o755, Kind::Directory),
        (b"workspace/c", 0o755, Kind::Directory),
        (b"workspace/a-b", 0o777, Kind::Link { target: b"a".to_vec() }),
        (b"workspace/a", 0o644, Kind::File { size: 3, digest: content, chunks }),
        (b"home", 0o700, Kind::Directory),
    ];
    let mut tree = Tree::new();
    for (path, mode, kind) in entries {
        tree.insert(path.to_vec(), Entry { mode, mtime_ns: 5, kind }).unwrap();
    }
    let digest = "3c3fde820cb5bd82b971b5935c03d34dfbad0314191537c2721de81c4b53f292";
    assert_eq!(hex(&tree.digest()), digest);
    assert_eq!(tree.id().as_str(), &digest[..32]);
    assert_eq!(tree.size(), TreeSize { files: 1, bytes: 3 });
}

#[test]
fn an_id_has_one_spelling() {
    let id = Tree::new().id();
    assert_eq!(id.to_string().parse::<SnapshotId>(), Ok(id.clone()));
    let json = serde_json::to_string(&id).unwrap();
    assert_eq!(serde_json::from_str::<SnapshotId>(&json).unwrap(), id);
    for bad in ["", "b41c", &id.as_str().to_uppercase(), &format!("{id}0"), "é123456789012345678901234567890"]
    {
        assert_eq!(bad.parse::<SnapshotId>(), Err(InvalidSnapshotId), "{bad}");
    }
}

#[test]
fn a_tree_refuses_what_no_scan_lists() {
    let mut tree = Tree::new();
    tree.insert(b"workspace".to_vec(), entry(Kind::Directory)).unwrap();
    tree.insert(b"workspace/d".to_vec(), entry(Kind::Directory)).unwrap();
    tree.insert(b"workspace/d/f".to_vec(), entry(file(1, 0))).unwrap();
    let long = [b"workspace/".to_vec(), vec![b'x'; TREE_PATH_BYTES_MAX]].concat();
    let bad: [&[u8]; 12] = [
        b"",
        b"/",
        b"/workspace",
        b"workspace/",
        b"workspace//f",
        b"workspace/.",
        b"workspace/../home",
        b"..",
        b"workspace/a\0b",
        b"home/f",
        b"workspace/d/f/below",
        &long,
    ];
    for path in bad {
        assert!(tree.insert(path.to_vec(), entry(file(1, 0))).is_err(), "{}", path.escape_ascii());
    }
    assert!(tree.insert(b"workspace/d".to_vec(), entry(file(1, 0))).is_err());
    tree.insert(b"workspace/d".to_vec(), Entry { mode: 0, ..entry(Kind::Directory) }).unwrap();

    let Kind::File { digest, chunks, .. } = file(2, 0) else { unreachable!() };
    let empty = Chunk { size: 0, ..chunks[0] };
    let wrong = [
        Entry { mode: 0o10_000, ..entry(Kind::Directory) },
        entry(Kind::File { size: 1, digest, chunks }),
        entry(Kind::File { size: 1, digest, chunks: Vec::new() }),
        entry(Kind::File { size: 0, digest, chunks: vec![empty] }),
        entry(Kind::Link { target: Vec::new() }),
        entry(Kind::Link { target: b"a\0".to_vec() }),
        entry(Kind::Link { target: vec![b'x'; TREE_PATH_BYTES_MAX + 1] }),
    ];
    for wrong in wrong {
        assert!(tree.insert(b"workspace/n".to_vec(), wrong.clone()).is_err(), "{wrong:?}");
    }

    tree.insert(b"workspace/d-e".to_vec(), entry(file(1, 0))).unwrap();
    tree.remove(b"workspace/d");
    let paths: Vec<_> = tree.iter().map(|(path, _)| path).collect();
    assert_eq!(paths, [&b"workspace"[..], b"workspace/d-e"]);
}
