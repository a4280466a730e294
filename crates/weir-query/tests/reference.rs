//! The reference pages under `docs/reference` match the descriptions in the code. `WEIR_BLESS=1
//! cargo test -p weir-query --test reference` rewrites them.

use std::fs;
use std::path::Path;

use weir_model::Catalog;
use weir_query::reference;

#[test]
fn the_reference_pages_match_the_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let pages = [
        ("functions.md", reference::functions()),
        ("streams.md", reference::streams(&Catalog::builtin())),
        ("diagnostics.md", reference::diagnostics()),
    ];
    for (name, page) in pages {
        let path = folder.join(name);
        if std::env::var_os("WEIR_BLESS").is_some() {
            fs::create_dir_all(&folder).expect("the folder can be made");
            fs::write(&path, &page).expect("the page can be written");
        }
        let held = fs::read_to_string(&path).unwrap_or_default();
        assert!(held == page, "{name} is out of date; run with WEIR_BLESS=1");
    }
}
