//! `cargo xtask pictures [WORKLOAD..]`: recreates the pictures of `docs/workloads.md`.
//!
//! Each workload runs on a loop device of this host and recorded; weir draws the recording.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use weir_testing::MemoryFolder;
use weir_testing::workload::{self, WORKLOADS, Workload};

use crate::{cargo, execute, packages, root};

/// The start of the title of the plot of addresses over time, in weir's page.
const PLACES: &str = "<title>where on the disk";

/// Creates the pictures of all workloads, or of those named.
pub fn run(names: &[String]) -> Result<()> {
    for name in names {
        let known = Workload::named(name).is_some();
        ensure!(known, "there is no workload `{name}`");
    }
    packages::ensure(packages::TEST)?;
    execute(cargo().args(["build", "--locked", "--package", "weir"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let weir = target.map_or_else(|| root().join("target"), PathBuf::from);
    let weir = weir.join("debug/weir");
    let folder = root().join("docs/pictures");
    fs::create_dir_all(&folder)?;
    let wanted = |w: &&Workload| names.is_empty() || names.iter().any(|name| name == w.name);
    for workload in WORKLOADS.iter().filter(wanted) {
        draw(workload, &weir, &folder)?;
    }
    Ok(())
}

/// Two pictures: the addresses of requests over time, and the distance of each from the previous
/// one.
fn draw(workload: &Workload, weir: &Path, folder: &Path) -> Result<()> {
    let memory = MemoryFolder::new(64)?;
    let recording = memory.path().join("recording.parquet");
    let device = workload::record(&[*workload], weir, &recording)?.remove(0);
    let page = memory.path().join("page.html");
    let mut characterise = Command::new(weir);
    characterise
        .args(["characterise", "--from"])
        .arg(&recording);
    execute(characterise.arg("--html").arg(&page).stdout(Stdio::null()))?;
    let places = plot(&fs::read_to_string(&page)?, PLACES)?;
    fs::write(folder.join(format!("{}-places.svg", workload.name)), places)?;

    let seeks = folder.join(format!("{}-seeks.svg", workload.name));
    let mut hist = Command::new(weir);
    hist.args(["hist", "--from"]).arg(&recording);
    execute(hist.args(["-p", "seekDistance", "--svg"]).arg(&seeks))?;
    // The name of the device is not relevant to readers.
    let drawn = fs::read_to_string(&seeks)?;
    fs::write(&seeks, drawn.replace(&device, workload.name))?;
    Ok(())
}

/// A plot of a page as a file of its own, with the style sheet of the page.
fn plot(page: &str, title: &str) -> Result<String> {
    let titled = page.find(title).context("the page has no such plot")?;
    let from = page[..titled]
        .rfind("<svg")
        .context("a title is in a plot")?;
    let length = page[from..].find("</svg>").context("a plot has an end")?;
    let style = fs::read_to_string(root().join("crates/weir-sink/src/plot/svg/style.css"))?;
    let paper = r#"<rect class="paper" width="100%" height="100%"/>"#;
    let first = format!("</title>\n<style>\n{style}</style>\n{paper}");
    let plot = page[from..from + length].replacen("</title>", &first, 1);
    Ok(format!("{plot}</svg>\n"))
}
