//! The scripts of the page are type-checked by TypeScript, from their JSDoc comments.

use std::process::Command;

use weir_testing::skipped;

#[test]
fn the_scripts_of_the_page_have_no_type_error() {
    let test = "the_scripts_of_the_page_have_no_type_error";
    let folder = env!("CARGO_MANIFEST_DIR");
    let checked = Command::new("tsc").arg("--project").arg(folder).output();
    let Ok(checked) = checked else {
        return skipped(test, "tsc is not installed (package node-typescript)");
    };
    let errors = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{errors}");
}
