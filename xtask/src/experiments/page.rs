//! docs/experiments.md: the results of the thesis and those of weir, side by side.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::kept::Kept;
use super::{Experiment, Figure, Findings};

const BEGINNING: &str = "# The thesis's experiments, repeated with weir

<!-- Written by `cargo xtask experiments`; do not edit. -->

Benke's thesis (2009, chapter 4) measured the overhead of its prototype: Blocktap in Xen's tapdisk, and the STREAM engine as
filter on the servers and as central monitor. `cargo xtask experiments` repeats the measurements with weir and writes this page.

The absolute numbers cannot be compared, only the overhead of a configuration and its growth. The thesis used blades
with two dual-core Opterons at 2.0 GHz, and VMs limited by one disk. Here a VM is a program that copies at a fixed rate on a loop
device in memory.
";

/// Writes the page.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, done: &[(&Experiment, Kept)]) -> Result<()> {
    let mut text = BEGINNING.to_owned();
    let _ = writeln!(
        text,
        "\nThe configurations of an experiment alternate. Figures are means with the 95 % \
         confidence interval. The processor time of the whole machine includes other processes. \
         The machine: {}.",
        machine()
    );
    for (experiment, kept) in done {
        let _ = write!(
            text,
            "\n## Experiment {}: {}\n\n**The thesis.** {}\n\n**Here.** {} Each configuration had {} turns of {} s.\n\n{}",
            experiment.number,
            experiment.title,
            experiment.thesis,
            experiment.here,
            kept.pace.runs,
            kept.pace.seconds,
            shown(&kept.findings)
        );
    }
    fs::write(path, text).with_context(|| path.display().to_string())?;
    println!("\nwritten: {}", path.display());
    Ok(())
}

/// Findings in Markdown.
pub fn shown(findings: &Findings) -> String {
    let table = table(findings);
    match findings.conclusion.as_str() {
        "" => table,
        conclusion => format!("{table}\n{conclusion}\n"),
    }
}

fn table(findings: &Findings) -> String {
    let mut text = format!("| configuration | {} |\n", findings.columns.join(" | "));
    let _ = writeln!(text, "| --- |{}", " ---: |".repeat(findings.columns.len()));
    for row in &findings.rows {
        let figures: Vec<String> = row.figures.iter().map(figure).collect();
        let _ = writeln!(text, "| {} | {} |", row.name, figures.join(" | "));
    }
    text
}

fn figure(figure: &Figure) -> String {
    let digits = match figure.mean().abs() {
        mean if mean >= 1_000.0 => 0,
        mean if mean >= 100.0 => 1,
        _ => 2,
    };
    format!(
        "{:.digits$} ± {:.digits$}",
        // Avoids minus zero.
        figure.mean() + 0.0,
        figure.half_width()
    )
}

/// Processors and kernel.
fn machine() -> String {
    let first_line = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = first_line("/proc/cpuinfo");
    let field = |name: &str| {
        let lines = cpuinfo.lines().filter(|l| l.starts_with(name));
        lines
            .filter_map(|l| l.split_once(':'))
            .map(|(_, v)| v.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let processors = field("processor").len();
    let model = field("model name").into_iter().next();
    format!(
        "{processors} processors ({}), Linux {}",
        model.unwrap_or_else(|| "of an unnamed model".into()),
        // The text after the version names the builder.
        first_line("/proc/sys/kernel/osrelease")
            .trim()
            .split('-')
            .next()
            .unwrap_or_default()
    )
}
