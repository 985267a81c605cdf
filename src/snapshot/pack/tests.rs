//! Packs in memory: round trips, what is written again, and bytes that nobody wrote.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
};

use bytes::Bytes;
use proptest::prelude::*;

use super::{
    frame::{HEADER, LEVEL},
    node::{Child, encode},
    *,
};
use crate::{
    base::seal::sha256,
    domain::tree::{
        Chunk, Entry, Kind, Place, Tree,
        tests::{entry, file, trees},
    },
    snapshot::Error,
};

/// Packs by number, with a count of the reads.
#[derive(Default)]
struct Packs {
    packs: BTreeMap<u32, Bytes>,
    reads: Mutex<Vec<Place>>,
}

impl Packs {
    fn add(&mut self, number: u32, pack: impl Into<Bytes>) {
        self.packs.insert(number, pack.into());
    }

    fn read(&self, place: Place) -> Result<Bytes, Error> {
        self.reads.lock().unwrap().push(place);
        let pack = self.packs.get(&place.pack).ok_or_else(|| Error::Unavailable("no pack".to_owned()))?;
        let start = usize::try_from(place.offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(place.bytes as usize).min(pack.len());
        Ok(if start < end { pack.slice(start..end) } else { Bytes::new() })
    }

    fn tree(&self, root: Place) -> Result<StoredTree, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read_tree(root, |place| async move { self.read(place) }))
    }

    fn chunk(&self, chunk: &Chunk) -> Result<Vec<u8>, Error> {
        Expander::new()?.chunk(chunk, &self.read(chunk.place)?)
    }
}

fn writer(number: u32) -> Writer<Vec<u8>> {
    Writer::new(number, HashMap::new(), Vec::new()).unwrap()
}

/// Writes a tree as the pack with this number.
fn stored(number: u32, tree: &Tree, previous: Option<&StoredTree>) -> (FinishedPack<Vec<u8>>, StoredTree) {
    writer(number).finish(tree.clone(), previous).unwrap()
}

/// Frames that follow each other in pack 0.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    fn put(&mut self, content: &[u8]) -> Place {
        let frame = zstd::bulk::compress(content, LEVEL).unwrap();
        let bytes = u32::try_from(frame.len()).unwrap();
        let place = Place { pack: 0, offset: self.0.len() as u64, bytes };
        self.0.extend(frame);
        place
    }

    fn add(&mut self, content: &[u8]) -> DirectoryNode {
        let (place, bytes) = (self.put(content), u32::try_from(content.len()).unwrap());
        DirectoryNode { place, digest: sha256(content), bytes }
    }

    fn node(&mut self, children: &[(&[u8], Entry, Option<DirectoryNode>)]) -> DirectoryNode {
        let children = children.iter();
        self.add(&encode(children.map(|(name, entry, node)| Child { name, entry, node: *node })))
    }

    fn tree(&self, root: Place) -> Result<StoredTree, Error> {
        let mut packs = Packs::default();
        packs.add(0, self.0.clone());
        packs.tree(root)
    }
}

/// Bytes that no compressor shrinks, the same each time.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(length);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_is_read_back_as_it_was_written(tree in trees()) {
        let (pack, written) = stored(3, &tree, None);
        prop_assert!(pack.out.starts_with(&HEADER));
        prop_assert_eq!(pack.bytes, pack.out.len() as u64);
        prop_assert_eq!(pack.digest, sha256(&pack.out));
        let mut packs = Packs::default();
        packs.add(3, pack.out);
        let read = packs.tree(written.root()).unwrap();
        prop_assert_eq!(&read, &written);
        prop_assert_eq!(read.tree(), &tree);
    }

    #[test]
    fn only_changed_directories_are_written_again(first in trees(), second in trees()) {
        let (pack, before) = stored(0, &first, None);
        let mut packs = Packs::default();
        packs.add(0, pack.out);
        let (pack, after) = stored(1, &second, Some(&before));
        packs.add(1, pack.out);
        prop_assert_eq!(&packs.tree(after.root()).unwrap(), &after);
        prop_assert_eq!(after.tree(), &second);
        let content = |tree: &Tree, directory: &[u8]| -> Vec<(Vec<u8>, Entry)> {
            let inside = |path: &[u8]| {
                let below = [directory, b"/"].concat();
                directory.is_empty() || path.starts_with(&below)
            };
            let entries = tree.iter().filter(|(path, _)| inside(path));
            entries.map(|(path, entry)| (path.to_vec(), entry.clone())).collect()
        };
        for (path, node) in after.nodes() {
            let had_node = before.nodes().any(|(other, _)| other == path);
            let is_equal = had_node && content(&first, path) == content(&second, path);
            prop_assert_eq!(node.place.pack == 0, is_equal, "{}", path.escape_ascii());
        }

        let (pack, again) = stored(2, &second, Some(&after));
        prop_assert!(pack.is_empty());
        prop_assert_eq!(again, after);
    }

    #[test]
    fn damaged_packs_are_errors(tree in trees(), at in any::<prop::sample::Index>(), bits in 1u8..) {
        let (pack, written) = stored(0, &tree, None);
        let mut damaged = pack.out.clone();
        damaged[at.index(pack.out.len())] ^= bits;
        let cut = pack.out[..at.index(pack.out.len())].to_vec();
        for bytes in [damaged, cut] {
            let mut packs = Packs::default();
            packs.add(0, bytes);
            // The header is not read, and zstd ignores one bit of each frame.
            if let Ok(read) = packs.tree(written.root()) {
                prop_assert_eq!(&read, &written);
            }
        }
    }

    #[test]
    fn random_nodes_are_errors_or_trees(bytes in prop::collection::vec(0u8..3, 0..80)) {
        let mut frames = Frames::default();
        let root = frames.add(&[&[1][..], &bytes].concat());
        let _ = frames.tree(root.place);
    }
}

#[test]
fn contents_are_stored_once() {
    let mut first = writer(0);
    let contents = [b"one".to_vec(), b"two".to_vec(), noise(100_000), b"one".to_vec()];
    let chunks: Vec<_> = contents.iter().map(|content| first.add_content(content).unwrap()).collect();
    assert_eq!(chunks[0], chunks[3]);
    let first = first.close().unwrap();
    assert!(!first.is_empty() && first.bytes < 100_200, "{}", first.bytes);
    let mut packs = Packs::default();
    packs.add(0, first.out);
    for (content, chunk) in contents.iter().zip(&chunks) {
        assert_eq!(&packs.chunk(chunk).unwrap(), content);
    }

    let mut second = Writer::new(1, first.known, Vec::new()).unwrap();
    let Kind::File { size, digest, chunks: again } = second.add_file(&contents[2]).unwrap() else {
        unreachable!("a file");
    };
    assert_eq!((size, digest, again), (100_000, sha256(&contents[2]), vec![chunks[2]]));
    assert_eq!(second.bytes(), HEADER.len() as u64);
    assert!(matches!(second.add_content(&vec![0; CHUNK_BYTES_MAX + 1]), Err(Error::TooLarge(_))));
    let empty = Kind::File { size: 0, digest: sha256(b""), chunks: Vec::new() };
    assert_eq!(second.add_file(b"").unwrap(), empty);
}

#[test]
fn a_stored_tree_names_its_chunks_and_packs() {
    let mut tree = Tree::new();
    tree.insert(b"home".to_vec(), entry(Kind::Directory)).unwrap();
    tree.insert(b"home/a".to_vec(), entry(file(2, 4))).unwrap();
    let (_, stored) = stored(6, &tree, None);
    assert_eq!(stored.packs().into_iter().collect::<Vec<_>>(), [4, 6]);
    let Kind::File { chunks, .. } = file(2, 4) else { unreachable!("a file") };
    assert_eq!(
        stored.chunks(),
        chunks.into_iter().map(|chunk| (chunk.digest, chunk)).collect::<HashMap<_, _>>()
    );
}

#[test]
fn a_chunk_that_is_another_is_damaged() {
    let mut pack = writer(0);
    let (chunk, other) = (pack.add_content(b"chunk").unwrap(), pack.add_content(b"other").unwrap());
    let mut packs = Packs::default();
    packs.add(0, pack.close().unwrap().out);
    let one_less = Place { bytes: chunk.place.bytes - 1, ..chunk.place };
    let wrong = [
        Chunk { place: other.place, ..chunk },
        Chunk { digest: other.digest, ..chunk },
        Chunk { size: 4, ..chunk },
        Chunk { size: u32::MAX, ..chunk },
        Chunk { place: one_less, ..chunk },
        Chunk { place: Place { offset: 0, ..chunk.place }, ..chunk },
    ];
    for wrong in wrong {
        assert!(matches!(packs.chunk(&wrong), Err(Error::Damaged(_))), "{wrong:?}");
    }
}

#[test]
fn a_large_file_is_cut_by_its_content() {
    let content = noise(CHUNK_BYTES_MAX + (1 << 20));
    let write = |number, known, content: &[u8], part: usize| {
        let mut pack = Writer::new(number, known, Vec::new()).unwrap();
        let mut file = FileWriter::new();
        content.chunks(part).for_each(|part| file.write(&mut pack, part).unwrap());
        let Kind::File { size, digest, chunks } = file.finish(&mut pack).unwrap() else {
            unreachable!("a file");
        };
        assert_eq!((size, digest), (content.len() as u64, sha256(content)));
        (pack.close().unwrap(), chunks)
    };
    let (first, chunks) = write(0, HashMap::new(), &content, content.len());
    assert!(chunks.len() > 2 && chunks.iter().all(|chunk| chunk.size <= 4 << 20));
    let mut packs = Packs::default();
    packs.add(0, first.out);
    let read: Vec<_> = chunks.iter().flat_map(|chunk| packs.chunk(chunk).unwrap()).collect();
    assert!(read == content);

    // The same file in other parts, and one that begins with a new byte.
    let (again, same) = write(1, first.known, &content, 700_001);
    assert!(again.is_empty() && same == chunks);
    let longer = [&b"x"[..], &content].concat();
    let (second, changed) = write(1, again.known, &longer, 1 << 20);
    assert!(second.bytes <= 5 << 20, "{}", second.bytes);
    assert_eq!(changed.last(), chunks.last());

    let (_, one) = write(2, HashMap::new(), &content[..CHUNK_BYTES_MAX], 1 << 20);
    assert_eq!(one.len(), 1);
}

#[test]
fn a_level_is_read_at_once() {
    let mut tree = Tree::new();
    tree.insert(b"workspace".to_vec(), entry(Kind::Directory)).unwrap();
    for number in 0..300 {
        let path = format!("workspace/{number}");
        tree.insert(path.clone().into(), entry(Kind::Directory)).unwrap();
        tree.insert(format!("{path}/f").into(), entry(file(number as u8, 0))).unwrap();
    }
    let (pack, written) = stored(0, &tree, None);
    let mut packs = Packs::default();
    packs.add(0, pack.out);
    assert_eq!(packs.tree(written.root()).unwrap(), written);
    assert_eq!(packs.reads.lock().unwrap().len(), 3);
}

#[test]
fn spans_join_what_is_near() {
    let place = |pack, offset, bytes| Place { pack, offset, bytes };
    let places = [
        place(0, 8, 10),
        place(0, 18, 10),
        place(0, 18, 4),
        place(0, 30_000, 10),
        place(0, 200_000, 5 << 20),
        place(1, 0, 10),
        place(1, u64::MAX - 10, 10),
    ];
    let found = spans(&places).unwrap();
    let members: Vec<_> = found.iter().map(|span| span.members.clone()).collect();
    assert_eq!(members, [0..4, 4..5, 5..6, 6..7]);
    assert_eq!(found[0].place, place(0, 8, 30_002));
    let bytes: Vec<_> = (0..30_002_u32).map(|number| number as u8).collect();
    assert_eq!(found[0].part(&bytes, places[2]).unwrap(), [10, 11, 12, 13]);
    assert!(found[0].part(&bytes[1..], places[2]).is_err());
    assert!(found[0].part(&bytes, places[4]).is_err());
    assert!(found[0].part(&bytes, place(0, 7, 1)).is_err());
    assert!(spans(&[place(0, u64::MAX, 1)]).is_err());
    assert!(spans(&[place(0, 0, u32::MAX)]).is_err());
    assert!(spans(&[]).unwrap().is_empty());
}

#[test]
fn a_node_that_no_writer_made_is_damaged() {
    let directory = || entry(Kind::Directory);
    let refused = |children: &[(&[u8], Entry, Option<DirectoryNode>)]| {
        let mut frames = Frames::default();
        let root = frames.node(children);
        let read = frames.tree(root.place);
        assert!(matches!(read, Err(Error::Damaged(_))), "{children:?}: {read:?}");
    };
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b", &[b'x'; 5_000]] {
        refused(&[(name, entry(file(1, 0)), None)]);
    }
    let link = |target: &[u8]| entry(Kind::Link { target: target.to_vec() });
    refused(&[(b"b", link(b"x"), None), (b"a", link(b"x"), None)]);
    refused(&[(b"a", link(b"x"), None), (b"a", link(b"y"), None)]);
    refused(&[(b"a", link(b""), None)]);
    refused(&[(b"a", Entry { mode: 0o10_000, ..link(b"x") }, None)]);
    refused(&[(b"a", entry(Kind::File { size: 1, digest: [0; 32], chunks: Vec::new() }), None)]);
    let place = Place { pack: 0, offset: 0, bytes: 1 };
    for size in [0, u32::MAX] {
        let chunks = vec![Chunk { digest: [0; 32], size, place }];
        refused(&[(b"a", entry(Kind::File { size: size.into(), digest: [0; 32], chunks }), None)]);
    }
    // The node of a directory is not where it should be, or is another.
    let mut frames = Frames::default();
    let other = frames.node(&[]);
    for place in [place, Place { bytes: u32::MAX, ..place }, Place { offset: u64::MAX, ..place }] {
        refused(&[(b"a", directory(), Some(DirectoryNode { place, ..other }))]);
    }
    let mut frames = Frames::default();
    let child = frames.node(&[]);
    let wrong = DirectoryNode { digest: [7; 32], ..child };
    let root = frames.node(&[(b"a", directory(), Some(wrong))]);
    assert!(matches!(frames.tree(root.place), Err(Error::Damaged(_))));
    assert!(matches!(frames.tree(place), Err(Error::Damaged(_))));

    // Another version, another type, a frame that is cut short.
    let whole = encode([Child { name: b"a", entry: &link(b"x"), node: None }].into_iter());
    let mut cases =
        vec![Vec::new(), [&[2][..], &whole[1..]].concat(), [&whole[..4], &[9], &whole[5..]].concat()];
    cases.extend((2..whole.len()).map(|length| whole[..length].to_vec()));
    for case in cases {
        let mut frames = Frames::default();
        let root = frames.add(&case);
        assert!(matches!(frames.tree(root.place), Err(Error::Damaged(_))), "{}", case.escape_ascii());
    }
}

#[test]
fn trees_that_expand_without_end_are_refused() {
    // A frame of zeros, which is small until it is expanded.
    let mut frames = Frames::default();
    let root = frames.put(&vec![0; 65 << 20]);
    assert!(matches!(frames.tree(root), Err(Error::Damaged(_))));

    // An empty directory, and behind it a frame of 256 bytes that a decompressor skips.
    let mut frames = Frames::default();
    let root = frames.node(&[]).place;
    frames.0.extend([0x50, 0x2a, 0x4d, 0x18, 0, 1, 0, 0]);
    frames.0.extend([0; 256]);
    assert!(frames.tree(root).is_ok());
    let padded = Place { bytes: root.bytes + 264, ..root };
    assert!(matches!(frames.tree(padded), Err(Error::Damaged(_))));

    // Ten directories that are all the same one, on each of seven levels.
    let mut frames = Frames::default();
    let mut node = frames.node(&[]);
    for _ in 0..7 {
        let names: Vec<_> = (b'0'..=b'9').map(|digit| [digit]).collect();
        let children: Vec<_> =
            names.iter().map(|name| (name.as_slice(), entry(Kind::Directory), Some(node))).collect();
        node = frames.node(&children);
    }
    assert!(matches!(frames.tree(node.place), Err(Error::TooLarge(_))));

    // A path that is longer than a path can be.
    let mut frames = Frames::default();
    let mut node = frames.node(&[]);
    for _ in 0..3_000 {
        node = frames.node(&[(b"a", entry(Kind::Directory), Some(node))]);
    }
    assert!(matches!(frames.tree(node.place), Err(Error::Damaged(_))));
}

#[test]
fn the_faults_of_reads_are_passed_on() {
    let (_, written) = stored(0, &Tree::new(), None);
    let missing = Packs::default().tree(written.root());
    assert_eq!(missing, Err(Error::Unavailable("no pack".to_owned())));
}
