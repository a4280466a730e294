//! A report as one HTML page: text, numbers and plots, without scripts or external resources.

use std::fmt::Write as _;

use weir_workload::files::FileReport;
use weir_workload::{Advice, Profile, Report};

use super::text::{disturbance, facts, grounds, impossible, missing_figures, time};
use super::{files, plots};
use crate::plot::svg::{Picture, STYLE, escaped};
use crate::plot::thousands;
use crate::time::readable;

const TAKES_ALL: &str = "a String takes everything";

/// The page. Names come from guests and hosts, so all external text is escaped.
pub fn html(report: &Report) -> String {
    html_with_files(report, None)
}

/// The same with the files, if they are known.
pub fn html_with_files(report: &Report, files: Option<&FileReport>) -> String {
    let mut out = String::new();
    let title = match &report.profiles[..] {
        [profile] => format!("Workload of {}", profile.subject),
        profiles => format!("Workload of {} disks", profiles.len()),
    };
    let only_files = files.is_some() && report.profiles.is_empty();
    if !only_files {
        summary(&mut out, report);
    }
    together(&mut out, report);
    for (i, profile) in report.profiles.iter().enumerate() {
        section(
            &mut out,
            profile,
            i,
            report.began_ns.unwrap_or(profile.began_ns),
        );
    }
    if let Some(report) = files {
        files::html(&mut out, report);
    }
    page(&title, &out)
}

/// A page with this title and these elements.
pub fn page(title: &str, body: &str) -> String {
    let (title, style) = (escaped(title), include_str!("page.css"));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"generator\" content=\"weir {}\">\n<title>{title}</title>\n\
         <style>\n{style}{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\
         </body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
    )
}

pub(super) fn paragraph(out: &mut String, class: &str, text: &str) {
    writeln!(out, "<p class=\"{class}\">{}</p>", escaped(text)).expect(TAKES_ALL);
}

fn count(n: u64) -> String {
    thousands(&n.to_string())
}

/// The time of the recording, and a line for each disk.
fn summary(out: &mut String, report: &Report) {
    let Some(began) = report.began_ns else {
        return paragraph(out, "verdict", "no requests");
    };
    let began: String = readable(began).chars().take(19).collect();
    let span = time(report.span_ns as f64);
    let requests = count(report.requests);
    paragraph(
        out,
        "faint",
        &format!("{requests} requests in {span}, from {began} UTC"),
    );
    if report.requests_omitted > 0 {
        let left = count(report.requests_omitted);
        let kept = report.profiles.len();
        let text = format!("{left} requests of disks beyond the first {kept} are omitted");
        paragraph(out, "faint", &text);
    }
    if report.requests_impossible > 0 {
        paragraph(out, "faint", &impossible(report));
    }
    if report.profiles.len() < 2 {
        return;
    }
    out.push_str("<table>\n<tr><th>disk</th><th>requests</th><th>workload</th></tr>\n");
    for (i, profile) in report.profiles.iter().enumerate() {
        writeln!(
            out,
            "<tr><td><a href=\"#disk{i}\">{}</a></td><td class=\"number\">{}</td><td>{}</td></tr>",
            escaped(&profile.subject.to_string()),
            count(profile.requests),
            escaped(label(profile)),
        )
        .expect(TAKES_ALL);
    }
    out.push_str("</table>\n");
}

fn label(profile: &Profile) -> &str {
    let label = profile.verdict.as_ref().map(|v| v.label.as_str());
    label.unwrap_or("too few requests for a verdict")
}

/// The disturbances.
fn together(out: &mut String, report: &Report) {
    if report.profiles.len() < 2 {
        return;
    }
    out.push_str("<h2 class=\"first\">All disks</h2>\n");
    for found in &report.interference {
        paragraph(out, "verdict", &disturbance(found));
    }
    if report.interference.is_empty() && report.pairs_tested > 0 {
        let pairs = report.pairs_tested;
        let text = format!("no interference found among {pairs} pairs that share a device");
        paragraph(out, "", &text);
    }
    for words in missing_figures(&report.missing) {
        paragraph(out, "faint", &words);
    }
    figures(out, &plots::of_disturbances(report));
}

fn section(out: &mut String, profile: &Profile, number: usize, began_ns: i64) {
    let name = escaped(&profile.subject.to_string());
    let class = if number == 0 { " class=\"first\"" } else { "" };
    writeln!(out, "<h2 id=\"disk{number}\"{class}>{name}</h2>").expect(TAKES_ALL);
    paragraph(out, "verdict", label(profile));
    out.push_str("<dl>\n");
    for (label, phrases) in facts(profile) {
        if !phrases.is_empty() {
            let phrases = escaped(&phrases.join("; "));
            writeln!(out, "<dt>{label}</dt><dd>{phrases}</dd>").expect(TAKES_ALL);
        }
    }
    out.push_str("</dl>\n");
    if !profile.advice.is_empty() || !profile.missing.is_empty() {
        out.push_str("<h3>Recommendations</h3>\n");
    }
    profile.advice.iter().for_each(|a| advice(out, a));
    for words in missing_figures(&profile.missing) {
        paragraph(out, "faint", &words);
    }
    out.push_str("<h3>Plots</h3>\n");
    figures(out, &plots::of_profile(profile, began_ns));
}

fn advice(out: &mut String, advice: &Advice) {
    let confidence = advice.confidence.as_str();
    writeln!(
        out,
        "<div class=\"advice {confidence}\"><p><strong>{}</strong>: {}</p><p class=\"faint\">{}</p></div>",
        advice.topic.as_str(),
        escaped(&advice.text),
        escaped(&grounds(advice.confidence, &advice.evidence)),
    )
    .expect(TAKES_ALL);
}

pub(super) fn figures(out: &mut String, pictures: &[Picture]) {
    out.push_str("<div class=\"plots\">\n");
    for picture in pictures {
        write!(out, "<figure>\n{}</figure>\n", picture.inline()).expect(TAKES_ALL);
    }
    out.push_str("</div>\n");
}
