//! How files are accessed: a table for a terminal, and a table with a plot for each file for the
//! page.

use std::fmt::Write as _;

use weir_workload::files::{DiskFiles, FilePattern, FileReport};

use super::text::{bytes, percent};
use crate::plot::svg::{self, Picture, escaped};
use crate::plot::{PlotAxis, Points, Quantity, thousands};
use crate::text::{aligned, shown};

const TAKES_ALL: &str = "a String takes everything";

/// The columns of the tables.
const HEADERS: [&str; 9] = [
    "FILE", "PATTERN", "REQUESTS", "BYTES", "READ", "SEQ R", "SEQ W", "DIRECT", "SIZES",
];

/// The tables of all disks.
pub fn text(report: &FileReport) -> String {
    let mut out = String::new();
    for disk in &report.disks {
        writeln!(out, "files of {}: {}", name(disk), counted(disk)).expect(TAKES_ALL);
        let header = HEADERS.map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> = disk.files.iter().map(|file| cells(file).to_vec()).collect();
        let table = aligned(&[vec![header], rows].concat());
        for line in table.lines() {
            writeln!(out, "  {line}").expect(TAKES_ALL);
        }
        out.push('\n');
    }
    for remark in remarks(report) {
        writeln!(out, "{remark}\n").expect(TAKES_ALL);
    }
    out
}

/// The same as a part of the page.
pub(super) fn html(out: &mut String, report: &FileReport) {
    for disk in &report.disks {
        let title = format!("Files of {}", name(disk));
        writeln!(out, "<h2>{}</h2>", escaped(&title)).expect(TAKES_ALL);
        writeln!(out, "<p class=\"faint\">{}</p>\n<table>", counted(disk)).expect(TAKES_ALL);
        let row = |out: &mut String, tag: &str, cells: &[String]| {
            out.push_str("<tr>");
            for (i, cell) in cells.iter().enumerate() {
                let class = if tag == "td" && i > 1 {
                    " class=\"number\""
                } else {
                    ""
                };
                write!(out, "<{tag}{class}>{}</{tag}>", escaped(cell)).expect(TAKES_ALL);
            }
            out.push_str("</tr>\n");
        };
        row(out, "th", &HEADERS.map(str::to_owned));
        for file in &disk.files {
            row(out, "td", &cells(file));
        }
        out.push_str("</table>\n<div class=\"plots\">\n");
        let began_ns = report.began_ns.unwrap_or_default();
        for picture in disk.files.iter().filter_map(|file| offsets(file, began_ns)) {
            write!(out, "<figure>\n{}</figure>\n", picture.inline()).expect(TAKES_ALL);
        }
        out.push_str("</div>\n");
    }
    for remark in remarks(report) {
        writeln!(out, "<p class=\"faint\">{remark}</p>").expect(TAKES_ALL);
    }
}

/// Offset over time, as figures 8 and 9 of Ouarnoughi 2014 show the positions of a VM.
fn offsets(file: &FilePattern, began_ns: i64) -> Option<Picture> {
    let access = &file.access;
    let cloud = |write: bool| {
        let of_kind = access.points.iter().filter(|point| point.write == write);
        let place = |point: &weir_workload::analysis::access::Point| {
            (
                point.ts_ns.saturating_sub(began_ns) as f64,
                point.first_byte as f64,
            )
        };
        of_kind.map(place).collect::<Vec<_>>()
    };
    let clouds = [("reads", cloud(false)), ("writes", cloud(true))];
    let clouds = clouds.into_iter().filter(|(_, points)| !points.is_empty());
    let sample = match access.requests > access.points.len() as u64 {
        true => format!(
            ": a sample of {} of {} requests",
            thousands(&access.points.len().to_string()),
            thousands(&access.requests.to_string())
        ),
        false => String::new(),
    };
    let plot = Points {
        title: format!("{}{sample}", path(file)),
        x: PlotAxis::new("time", Quantity::Elapsed),
        y: PlotAxis::new("offset in the file", Quantity::Bytes),
        clouds: clouds
            .map(|(name, points)| (name.to_owned(), points))
            .collect(),
    };
    (!access.points.is_empty()).then(|| svg::points(&plot))
}

fn name(disk: &DiskFiles) -> String {
    disk.pdisk.map_or("an unknown device".into(), |pdisk| {
        shown(pdisk).into_owned()
    })
}

fn path(file: &FilePattern) -> String {
    match file.path {
        Some(path) => shown(path).into_owned(),
        None => format!("inode {}", file.inode),
    }
}

fn counted(disk: &DiskFiles) -> String {
    let (shown, all) = (disk.files.len(), disk.files_followed);
    match shown < all {
        true => format!("the {shown} files with the most bytes, of {all}"),
        false if all == 1 => "1 file".to_owned(),
        false => format!("{all} files"),
    }
}

fn cells(file: &FilePattern) -> [String; HEADERS.len()] {
    let share = |part: u64, all: u64| match all {
        0 => "-".to_owned(),
        all => percent(part as f64 / all as f64),
    };
    let lengths = file.lengths.iter().map(|(length, requests)| {
        let all = file.reads.requests + file.writes.requests;
        format!("{} ({})", bytes(*length as f64), share(*requests, all))
    });
    let moved = file.reads.bytes.saturating_add(file.writes.bytes);
    [
        path(file),
        file.pattern.as_str().to_owned(),
        file.requests.to_string(),
        bytes(moved as f64),
        file.read_bytes_share.map_or("-".to_owned(), percent),
        share(file.reads.sequential, file.reads.requests),
        share(file.writes.sequential, file.writes.requests),
        share(file.direct, file.requests),
        lengths.collect::<Vec<_>>().join(", "),
    ]
}

/// What is not in the tables.
fn remarks(report: &FileReport) -> Vec<String> {
    let mut remarks = Vec::new();
    if report.requests == 0 {
        remarks.push("no requests of files".to_owned());
    }
    if report.requests_nameless > 0 {
        let n = report.requests_nameless;
        remarks.push(format!(
            "{n} requests without a file are not in the tables of files"
        ));
    }
    if report.files_replaced > 0 {
        remarks.push(format!(
            "{} requests of files with few requests are not in the tables: more than {} files \
             were accessed ({} replaced)",
            report.requests_replaced,
            weir_workload::files::FILES_MAX,
            report.files_replaced
        ));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use weir_model::{Op, Symbol};
    use weir_workload::files::{FileCharacteriser, FileRequest, FileSubject};

    use super::*;

    fn report(files: i64) -> FileReport {
        let mut all = FileCharacteriser::default();
        for inode in 0..files {
            for i in 0..12 {
                let file = FileSubject {
                    pdisk: Some(Symbol::new("/dev/sda")),
                    fs: None,
                    inode,
                };
                let request = FileRequest {
                    begin: i,
                    op: Op::Write,
                    offset: Some(4096 * i),
                    bytes: 4096,
                    direct: false,
                };
                all.take(Some(file), Some(Symbol::new("/a<b>\u{1b}[2J")), &request);
            }
        }
        all.report()
    }

    #[test]
    fn names_are_escaped_in_tables_and_pages() {
        let report = report(20);
        let table = text(&report);
        assert!(table.contains("files of /dev/sda: the 16 files with the most bytes, of 20"));
        let line = "/a<b>\\x1b[2J  sequential  12        48.0 KiB  0 %   -      92 %   0 %     4.0 KiB (100 %)";
        assert!(table.contains(line), "{table}");
        let mut page = String::new();
        html(&mut page, &report);
        assert_eq!(page.matches("<figure>").count(), 16);
        assert!(
            page.contains("offset in the file") && page.contains("&lt;b&gt;"),
            "{page}"
        );
        assert!(!page.contains("<b>") && !page.contains('\u{1b}'), "{page}");
    }

    #[test]
    fn limits_that_were_reached_are_reported() {
        let many = i64::try_from(weir_workload::files::FILES_MAX).unwrap() + 3;
        let table = text(&report(many));
        assert!(
            table.contains("36 requests of files with few requests"),
            "{table}"
        );
        assert_eq!(text(&FileReport::default()), "no requests of files\n\n");
    }
}
