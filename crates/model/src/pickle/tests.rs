//! Files that PyTorch wrote (tests/data/pickles.py made them), one that tries to run a command, and
//! damaged bytes.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::*;

const SAVED: &[u8] = include_bytes!("../../tests/data/saved.pt");
const HOSTILE: &[u8] = include_bytes!("../../tests/data/hostile.pt");

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The tensors of a file as f32, after a round trip through safetensors.
fn converted(name: &str) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let pickled = PickledTensors::open(&data(name)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write_tensors(&path, pickled.renamed(|name| Some(name.to_owned()))).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<_> = read
        .iter()
        .map(|(name, view)| {
            let values = crate::checkpoint::convert::to_f32(view.dtype(), view.data()).unwrap();
            (name.to_owned(), view.shape().to_vec(), values)
        })
        .collect();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

#[test]
fn what_torch_saved_is_read() {
    let table: Vec<f32> = (0..12_u8).map(f32::from).collect();
    let transposed: Vec<f32> =
        (0..4).flat_map(|column| (0..3).map(move |row| (4 * row + column) as f32)).collect();
    let expected = [
        ("bf16", vec![1, 2], vec![1.5, -2.0]),
        ("empty", vec![0, 4], vec![]),
        ("f16", vec![1], vec![0.5]),
        ("f64", vec![1], vec![0.25]),
        ("parameter", vec![1], vec![7.0]),
        ("row", vec![4], vec![4.0, 5.0, 6.0, 7.0]),
        ("scalar", vec![], vec![3.0]),
        ("table", vec![3, 4], table.clone()),
        ("tied", vec![3, 4], table),
        ("transposed", vec![4, 3], transposed),
    ];
    let expected: Vec<_> =
        expected.into_iter().map(|(name, shape, v)| (name.to_owned(), shape, v)).collect();
    assert_eq!(converted("saved.pt"), expected);
}

#[test]
fn the_weights_of_a_lightning_file_are_found_and_its_settings_are_not_followed() {
    let tensors = converted("lightning.ckpt");
    assert_eq!(tensors, [("llm.weight".to_owned(), vec![2, 2], vec![1.0; 4])]);
    let skipped = PickledTensors::open(&data("lightning.ckpt")).unwrap().skipped_classes;
    assert!(skipped.contains(&"argparse.Namespace".to_owned()), "{skipped:?}");
}

#[test]
fn a_command_in_a_pickle_is_not_run() {
    let marker = Path::new("/tmp/a-pickle-was-executed");
    assert!(
        HOSTILE
            .windows(marker.as_os_str().len())
            .any(|part| { part == marker.as_os_str().as_encoded_bytes() })
    );
    let was_there = marker.exists();
    assert_eq!(converted("hostile.pt"), converted("saved.pt"));
    assert_eq!(marker.exists(), was_there);
    let skipped = PickledTensors::open(&data("hostile.pt")).unwrap().skipped_classes;
    assert!(skipped.iter().any(|class| class.ends_with(".system")), "{skipped:?}");
}

#[test]
fn files_of_other_kinds_are_refused_with_a_reason() {
    for (bytes, reason) in [
        (&b"\x80\x02}q\x00."[..], "not a ZIP archive"),
        (b"", "not a ZIP archive"),
        (&SAVED[..SAVED.len() - 30], "truncated"),
    ] {
        let error = read_tensors(bytes).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn tensors_beyond_their_storage_are_refused() {
    // The shape (3, 4) of the first tensor, as BININT1 numbers in a tuple.
    let at = SAVED.windows(5).position(|w| w == [b'K', 3, b'K', 4, 0x86]).unwrap();
    let mut bytes = SAVED.to_vec();
    bytes[at + 1] = 200;
    let error = read_tensors(&bytes).unwrap_err();
    assert!(error.contains("larger than its storage"), "{error}");
}

#[test]
fn machines_stop_at_opcodes_that_no_weights_have() {
    let run = |code: &[u8]| machine::run(code).err().unwrap();
    assert!(run(b"\x80\x02I5\n.").contains("opcode 0x49"));
    assert!(run(b"").contains("truncated"));
    assert!(run(b"R").contains("damaged"));
    assert!(run(b"\x80\x02(u.").contains("damaged"));
    assert!(run(b"X\xff\xff\xff\xffabc").contains("truncated"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_files_are_errors_or_tensors_inside_their_files(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::weighted(0.1, any::<proptest::sample::Index>()),
    ) {
        let mut bytes = SAVED.to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok((tensors, _)) = read_tensors(&bytes) {
            for tensor in tensors.values() {
                let view = TensorBytes { tensor, bytes: &bytes[tensor.range.clone()] };
                prop_assert_eq!(view.data().len(), view.data_len());
            }
        }
    }

    #[test]
    fn arbitrary_pickles_end(code in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = machine::run(&code);
    }
}
