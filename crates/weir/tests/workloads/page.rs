//! `docs/workloads.md` states the asserted values of every workload, and has its pictures.

use std::fs;
use std::path::Path;

use weir_testing::workload::WORKLOADS;

/// A picture is for display in a page, not for the storage of data.
const PICTURE_BYTES_MAX: usize = 60_000;

#[test]
fn the_page_matches_the_output_of_weir() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = fs::read_to_string(docs.join("workloads.md")).unwrap();
    for w in WORKLOADS {
        let row = format!("| {} | {} | {} |", w.name, w.what, w.label);
        assert!(page.lines().any(|line| line == row), "no row `{row}`");
        for picture in ["places", "seeks"] {
            let picture = format!("pictures/{}-{picture}.svg", w.name);
            assert!(page.contains(&format!("({picture})")), "no {picture}");
            let drawn = fs::read_to_string(docs.join(&picture)).unwrap();
            assert!(
                drawn.starts_with("<svg") && drawn.contains("<style>"),
                "{picture}"
            );
            assert!(
                drawn.len() < PICTURE_BYTES_MAX,
                "{picture}: {}",
                drawn.len()
            );
        }
    }
}
