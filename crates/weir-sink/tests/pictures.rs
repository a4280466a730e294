//! Pictures and pages: well-formed, consistent with the numbers, safe against injection through
//! names, and self-contained.

use roxmltree::{Document, Node};
use weir_model::{NANOS_PER_SECOND, Nanos, Op, Symbol};
use weir_sink::plot::svg::{self, Picture};
use weir_sink::plot::{
    Bands, BinLayout, HeatMap, HistogramPlot, Lines, Mark, PlotAxis, PlotLine, Quantity,
};
use weir_sink::report::html::html;
use weir_workload::{
    Characteriser, Distribution, IssuedRequest, Metric, RequestEvent, Response, Subject,
};

/// A name that contains markup and would end an attribute.
const HOSTILE: &str =
    "<script src=\"http://evil.example/x.js\">alert('1')</script>&\"'\u{1b}[2J\u{202e}";

fn of_class<'d>(document: &'d Document, class: &str) -> Vec<Node<'d, 'd>> {
    let has = |n: &Node| n.attribute("class") == Some(class);
    document.descendants().filter(has).collect()
}

fn coordinate(node: &Node, name: &str) -> f64 {
    let text = node.attribute(name).expect("an attribute");
    text.parse().expect("a number")
}

fn text_of<'d>(node: &Node<'d, 'd>) -> &'d str {
    let title = node.children().find(|n| n.has_tag_name("title"));
    title
        .and_then(|t| t.text())
        .expect("a text for the pointer")
}

fn lengths(counts: &[(i64, u64)]) -> Distribution {
    let mut distribution = Distribution::new(Metric::Length);
    for &(bytes, count) in counts {
        (0..count).for_each(|_| distribution.add(bytes));
    }
    distribution
}

#[test]
fn bars_are_as_high_as_their_counts() {
    let one = lengths(&[(512, 50), (4096, 608), (8192, 304)]);
    let histogram = HistogramPlot::new(HOSTILE, &[("reads", &one)], BinLayout::Limits);
    let text = svg::histogram(&histogram).standalone();
    let document = Document::parse(&text).expect("well-formed XML");
    let bars = of_class(&document, "bar s0");
    let tooltips: Vec<&str> = bars.iter().map(text_of).collect();
    assert_eq!(
        tooltips,
        [
            "0 B -> 512 B: 50 (5.2 %)",
            "4 KiB: 608 (63.2 %)",
            "8 KiB: 304 (31.6 %)"
        ]
    );
    let heights: Vec<f64> = bars.iter().map(|b| coordinate(b, "height")).collect();
    for (height, count) in heights.iter().zip([50.0, 608.0, 304.0]) {
        let expected = heights[1] * count / 608.0;
        assert!((height - expected).abs() < 0.02, "{heights:?}");
    }
    let feet = bars
        .iter()
        .map(|b| coordinate(b, "y") + coordinate(b, "height"));
    let feet: Vec<f64> = feet.collect();
    assert!(feet.iter().all(|y| (y - feet[0]).abs() < 0.02), "{feet:?}");
}

#[test]
fn compared_series_are_drawn_as_shares() {
    let few = lengths(&[(4096, 1), (8192, 3)]);
    let many = lengths(&[(4096, 300), (8192, 100)]);
    let both = [("a", &few), ("b", &many)];
    let text = svg::histogram(&HistogramPlot::new("", &both, BinLayout::Limits)).standalone();
    let document = Document::parse(&text).expect("well-formed XML");
    let heights = |class: &str| -> Vec<f64> {
        let bars = of_class(&document, class).into_iter();
        // The legend's swatch has no tooltip.
        let bars = bars.filter(|b| b.has_children());
        bars.map(|b| coordinate(&b, "height")).collect()
    };
    let (a, b) = (heights("bar s0"), heights("bar s1"));
    assert_eq!((a.len(), b.len()), (2, 2));
    assert!((a[0] - b[1]).abs() < 0.02 && (a[1] - b[0]).abs() < 0.02);
    assert!((a[1] - 3.0 * a[0]).abs() < 0.05, "{a:?}");
}

#[test]
fn labels_do_not_overlap() {
    let mut seeks = Distribution::new(Metric::Seek);
    let limits = Metric::Seek.limits();
    limits.iter().for_each(|&limit| seeks.add(limit));
    let histogram = HistogramPlot::new("seeks", &[("all", &seeks)], BinLayout::Limits);
    let text = svg::histogram(&histogram).standalone();
    let document = Document::parse(&text).expect("well-formed XML");
    let turned = document.descendants().filter(|n| {
        n.has_tag_name("text")
            && n.attribute("transform")
                .is_some_and(|t| t.starts_with("rotate(-45"))
    });
    let labels: Vec<(f64, &str)> = turned
        .map(|n| (coordinate(&n, "x"), n.text().unwrap_or_default()))
        .collect();
    assert!(
        labels.iter().any(|(_, text)| *text == "1"),
        "sequential has a label"
    );
    assert!(
        labels.windows(2).all(|w| w[1].0 - w[0].0 >= 12.9),
        "{labels:?}"
    );
}

#[test]
fn a_heat_map_draws_each_nonempty_cell() {
    let bands = |labels: &[&str]| Bands {
        title: HOSTILE.into(),
        labels: labels.iter().map(|l| (*l).into()).collect(),
    };
    let map = HeatMap {
        title: "latency over time".into(),
        x: bands(&["0 s", "1 s"]),
        y: bands(&["1 ms", "10 ms"]),
        counted: "requests".into(),
        counts: vec![1, 0, 0, 1_000],
    };
    let text = svg::heat_map(&map).standalone();
    let document = Document::parse(&text).expect("well-formed XML");
    let [few, many] = ["h1", "h9"].map(|class| of_class(&document, class));
    assert_eq!(few.len(), 1, "one cell of the least");
    assert_eq!(text_of(&few[0]), "0 s, 1 ms: 1 requests");
    assert_eq!(text_of(&many[0]), "1 s, 10 ms: 1,000 requests");
    assert!(
        coordinate(&many[0], "y") < coordinate(&few[0], "y"),
        "slower is higher"
    );
}

#[test]
fn lines_have_gaps_without_data() {
    let line = PlotLine {
        name: "mean".into(),
        points: vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, 4.0)],
        steps: false,
    };
    let plot = Lines {
        title: "latency".into(),
        x: PlotAxis::new("time", Quantity::Elapsed),
        y: PlotAxis::new("latency", Quantity::Nanoseconds),
        lines: vec![line],
        marks: vec![Mark {
            x: 2.0,
            text: HOSTILE.into(),
        }],
    };
    let picture = svg::lines(&plot);
    let all = Picture::side_by_side("two", &[picture.clone(), picture], 2).standalone();
    let document = Document::parse(&all).expect("well-formed XML");
    let paths = of_class(&document, "line s0");
    assert_eq!(paths.len(), 2, "one in each picture");
    let path = paths[0].attribute("d").expect("a path");
    assert_eq!(path.matches('M').count(), 2, "{path}");
    assert_eq!(path.matches('L').count(), 1, "{path}");
    assert!(!all.contains("NaN") && !all.contains("inf"));
}

/// A minute of two VMs on one device; the second is active for 10 of each 20 seconds, and the first
/// is ten times as slow during that time.
fn two_vms() -> Characteriser {
    let vm = |name: &str| Subject {
        vm: Some(Symbol::new(name)),
        vdisk: Some(Symbol::new("/dev/vda")),
        pdisk: Some(Symbol::new("/dev/sdb")),
        ..Subject::default()
    };
    let (victim, other) = (vm(HOSTILE), vm("noisy"));
    let active = |ts: Nanos| ts / (10 * NANOS_PER_SECOND) % 2 == 0;
    let mut events: Vec<(Nanos, Subject, RequestEvent)> = Vec::new();
    let mut add = |subject, ts: Nanos, id: i64, sector, latency_ns| {
        let (op, bytes) = if id % 4 == 0 {
            (Op::Write, 8)
        } else {
            (Op::Read, 16)
        };
        let request = IssuedRequest {
            ts,
            id,
            op,
            sector: Some(sector),
            sectors: bytes,
        };
        events.push((ts, subject, RequestEvent::Issued(request)));
        let response = Response {
            ts: ts + latency_ns - latency_ns / 4,
            id,
            op,
            wait_ns: Some(latency_ns / 4),
            service_ns: Some(latency_ns - latency_ns / 4),
            latency_ns: Some(latency_ns),
            failed: false,
        };
        events.push((response.ts, subject, RequestEvent::Finished(response)));
    };
    for i in 0..6_000i64 {
        let ts = i * 10_000_000;
        let usual = 300_000 + i * 7_919 % 200_000;
        let latency = if active(ts) { 10 * usual } else { usual };
        add(victim, ts, i, i * 16 % 40_000, latency);
        if active(ts) {
            add(
                other,
                ts + 3_000_000,
                i,
                1 << 30 | (i * 7_919 % 1_000_000),
                3_000_000,
            );
        }
    }
    events.sort_by_key(|(ts, ..)| *ts);
    let mut characteriser = Characteriser::new(1 << 20);
    for (_, subject, event) in &events {
        characteriser.take(subject, event);
    }
    characteriser
}

#[test]
fn a_page_is_complete_and_closed() {
    let report = two_vms().report();
    assert_eq!(report.interference.len(), 1, "one VM disturbs the other");
    let page = html(&report);
    let lower = page.to_lowercase();
    for loads in [
        "<script", "<link", "<img", "<iframe", "src=\"", "url(", "@import", "\u{1b}",
    ] {
        assert!(!lower.contains(loads), "the page has {loads}");
    }
    let without_namespace = lower.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    let addresses = without_namespace.matches("http").count();
    let of_the_name = without_namespace.matches("http://evil.example").count();
    assert_eq!(
        addresses, of_the_name,
        "nothing is named but in the VM's name"
    );
    // This HTML is XML without the doctype and with closed void elements.
    let body = page.split_once("<body>").expect("a body").1;
    let body = format!("<body>{}", body.split_once("</html>").expect("an end").0);
    let document = Document::parse(&body).expect("all elements are closed");
    let pictures = document
        .descendants()
        .filter(|n| n.tag_name().name() == "svg");
    let titles: Vec<&str> = pictures
        .filter_map(|svg| svg.children().find(|n| n.tag_name().name() == "title"))
        .filter_map(|title| title.text())
        .collect();
    for expected in [
        "position on the disk",
        "I/O length",
        "seek distance, sectors",
        "seek distance from the closest of the last requests, sectors: all",
        "time since the previous request",
        "outstanding requests",
        "latency (insert to complete)",
        "wait (insert to issue)",
        "service (issue to complete)",
        "latency by seek distance, sectors",
        "latency by I/O length",
        "latency by outstanding requests",
        "miss ratio of an LRU cache",
        "working set",
        "latency by load",
        "requests over time",
        "latency over time",
    ] {
        assert!(
            titles.iter().any(|t| t.starts_with(expected)),
            "{expected} is missing: {titles:#?}"
        );
    }
    assert!(
        titles
            .iter()
            .any(|t| t.ends_with("slowed down by noisy /dev/vda on /dev/sdb"))
    );
}

#[test]
fn an_empty_page_states_that_it_is_empty() {
    let page = html(&Characteriser::new(1 << 20).report());
    assert!(page.contains("no requests") && page.ends_with("</html>\n"));
}
