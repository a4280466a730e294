//! Histograms as text: bars as bcc's tools draw them, with figures below; and as SVG.

use weir_model::Op;
use weir_sink::plot::{BinLayout, HistogramPlot, Ink, Quantity, phrase, svg, terminal, thousands};
use weir_sink::text::width;
use weir_workload::json::QUANTILES;
use weir_workload::{Class, Distribution, Histograms, Metric};

use crate::hist::counted::{CountedHistograms, name};

/// Maximum number of histograms side by side.
const COLUMNS_MAX: usize = 3;

/// The number of pictures side by side.
const PICTURES_ABREAST: usize = 2;

/// The width of the names of figures.
const NAME_WIDTH: usize = 12;

/// Histograms of one metric, each with its name.
struct Group<'a> {
    title: String,
    of: Vec<(String, &'a Distribution)>,
}

/// All metrics of everything that was counted, for lines of `columns` characters.
pub fn text(counted: &CountedHistograms, metrics: &[Metric], ink: Ink, columns: usize) -> String {
    groups(counted, metrics)
        .iter()
        .map(|group| group.text(ink, columns))
        .collect()
}

/// As [`text`], as one picture.
pub fn picture(counted: &CountedHistograms, metrics: &[Metric]) -> String {
    drawn(&groups(counted, metrics))
}

/// Two counts that are compared: each metric's classes side by side.
pub struct Compared<'a> {
    /// Their names.
    pub names: [&'a str; 2],
    /// Their histograms.
    pub both: [&'a Histograms; 2],
}

impl Compared<'_> {
    /// As text for lines of `columns` characters.
    pub fn text(&self, metrics: &[Metric], ink: Ink, columns: usize) -> String {
        self.groups(metrics)
            .iter()
            .map(|group| group.text(ink, columns))
            .collect()
    }

    /// As one picture.
    pub fn picture(&self, metrics: &[Metric]) -> String {
        drawn(&self.groups(metrics))
    }

    fn groups(&self, metrics: &[Metric]) -> Vec<Group<'_>> {
        let mut groups = Vec::new();
        for metric in metrics {
            for class in Class::ALL.into_iter().filter(|class| metric.is_of(*class)) {
                let pair = self.both.map(|histograms| histograms.of(*metric, class));
                let same =
                    |h: &&Histograms| h.of(*metric, class).count == h.of(*metric, Class::All).count;
                // A single class that contains all requests would be shown twice.
                let again = class != Class::All && self.both.iter().all(same);
                if again || pair.iter().all(|of| of.count == 0) {
                    continue;
                }
                let kind = match class {
                    Class::All => String::new(),
                    class => format!(", {}", label(class)),
                };
                groups.push(Group {
                    title: format!("{}{kind}", phrase(*metric)),
                    of: self
                        .names
                        .map(str::to_owned)
                        .into_iter()
                        .zip(pair)
                        .collect(),
                });
            }
        }
        groups
    }
}

fn groups<'a>(counted: &'a CountedHistograms, metrics: &[Metric]) -> Vec<Group<'a>> {
    let subjects = counted.subjects.iter();
    let of = |(subject, histograms): &'a (_, Histograms)| {
        let group = move |metric: &Metric| Group {
            title: format!("{}: {}", name(subject), phrase(*metric)),
            of: classes(*metric, histograms),
        };
        metrics.iter().map(group).collect::<Vec<Group>>()
    };
    subjects.flat_map(of).collect()
}

/// All requests, and each class if there are several.
fn classes(metric: Metric, histograms: &Histograms) -> Vec<(String, &Distribution)> {
    let kinds = Class::ALL[1..].iter();
    let kinds = kinds.map(|class| (label(*class).to_owned(), histograms.of(metric, *class)));
    let kinds: Vec<(String, &Distribution)> = kinds.filter(|(_, of)| of.count > 0).collect();
    let of = histograms.of(metric, Class::All);
    match &kinds[..] {
        // A single class that contains all requests is named.
        [(_, only)] if only.count == of.count => kinds,
        _ => std::iter::once((label(Class::All).to_owned(), of))
            .chain(kinds)
            .collect(),
    }
}

fn label(class: Class) -> &'static str {
    match class {
        Class::All => "all",
        Class::Of(Op::Read) => "read",
        Class::Of(Op::Write) => "write",
        Class::Of(Op::Flush) => "flush",
        Class::Of(Op::Discard) => "discard",
        Class::Of(Op::WriteZeroes) => "write zeroes",
    }
}

impl Group<'_> {
    fn histogram(&self, title: &str, some: &[(String, &Distribution)]) -> HistogramPlot {
        let some: Vec<(&str, &Distribution)> =
            some.iter().map(|(n, of)| (n.as_str(), *of)).collect();
        HistogramPlot::new(title, &some, BinLayout::Limits)
    }

    fn text(&self, ink: Ink, columns: usize) -> String {
        let mut text = String::new();
        for (place, some) in self.of.chunks(COLUMNS_MAX).enumerate() {
            let title = if place == 0 { &self.title } else { "" };
            text += &terminal::histogram(&self.histogram(title, some), ink, columns);
        }
        if self.of.iter().any(|(_, of)| of.count > 0) {
            text += &self.figures();
        }
        text + "\n"
    }

    /// Count, mean, quantiles and extremes, a line for each.
    fn figures(&self) -> String {
        let mut head = ["", "count", "mean", "min"].map(str::to_owned).to_vec();
        head.extend(QUANTILES.iter().map(|(name, _)| (*name).to_owned()));
        head.push("max".into());
        let mut rows = vec![head];
        for (name, of) in &self.of {
            let quantity = Quantity::from(of.metric.measure());
            let show = |x: Option<f64>| x.map_or("-".to_owned(), |x| quantity.short(x));
            let filled = |value: i64| (of.count > 0).then_some(value as f64);
            let quantiles = QUANTILES.map(|(_, q)| show(of.quantile(q).map(|value| value as f64)));
            let mut row = vec![end_of(name), thousands(&of.count.to_string())];
            row.extend([show(of.mean()), show(filled(of.min))]);
            row.extend(quantiles);
            row.push(show(filled(of.max)));
            rows.push(row);
        }
        right_aligned(&rows)
    }
}

/// Right-aligned columns.
fn right_aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |c: usize| rows.iter().map(|row| width(&row[c])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(widest).collect();
    let mut text = String::new();
    for row in rows {
        for (cell, room) in row.iter().zip(&widths) {
            text += &format!("  {:1$}{cell}", "", room - width(cell));
        }
        text.push('\n');
    }
    text
}

/// A shortened name: its end is more specific than its beginning.
fn end_of(name: &str) -> String {
    let length = name.chars().count();
    match length > NAME_WIDTH {
        true => format!(
            "..{}",
            name.chars()
                .skip(length + 2 - NAME_WIDTH)
                .collect::<String>()
        ),
        false => name.to_owned(),
    }
}

/// Everything as one SVG.
fn drawn(groups: &[Group]) -> String {
    let filled = groups
        .iter()
        .filter(|g| g.of.iter().any(|(_, of)| of.count > 0));
    let pictures: Vec<svg::Picture> = filled
        .map(|group| svg::histogram(&group.histogram(&group.title, &group.of)))
        .collect();
    svg::Picture::side_by_side("histograms", &pictures, PICTURES_ABREAST).standalone()
}
