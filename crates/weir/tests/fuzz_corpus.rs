//! Replays the corpora of the fuzz targets through the same functions, on a plain toolchain.

#[path = "../../../fuzz/src/lib.rs"]
mod fuzz;

use std::fs;
use std::panic;
use std::path::Path;

#[test]
fn no_input_of_the_corpora_breaks_a_promise() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut broken = Vec::new();
    for (name, target) in fuzz::TARGETS {
        let entries = fs::read_dir(corpora.join(name)).expect("every target has a corpus");
        let mut files: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "the corpus of {name} has inputs");
        for file in files {
            let data = fs::read(&file).expect("an input can be read");
            // The whole, and cut off anywhere in its first half kilobyte or in its last.
            let ends = (0..data.len().min(512)).chain(data.len().saturating_sub(512)..=data.len());
            for end in ends {
                if panic::catch_unwind(|| target(&data[..end])).is_err() {
                    broken.push(format!("{}, first {end} bytes", file.display()));
                    break;
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
