//! Histograms as JSON, a line for each subject: the output of `--json`, the responses of a
//! collector, and an input for `--from`.
//!
//! The format of a histogram is that of [`weir_workload::json`]. The distribution is restored from
//! a line without loss.

use std::io::{self, BufRead, Read};

use serde_json::{Value, json};
use weir_model::Symbol;
use weir_workload::json::{of_histograms, to_histograms};
use weir_workload::{Histograms, Metric, Subject};

use super::counted::CountedHistograms;

/// The version of the format, under the key that identifies a line.
const VERSION: u64 = 1;

/// The key of the ratio of Little's law, if `outstandingIOs` is left out because of it.
const UNRELIABLE: &str = "outstandingIOs_unreliable_little_ratio";

/// Maximum length of a line.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// The lines of all counts, of `metrics` only; the last one contains the interval, and the losses.
pub fn lines(counted: &CountedHistograms, metrics: &[Metric]) -> Vec<String> {
    let text = |symbol: Option<Symbol>| json!(symbol.map(Symbol::as_str));
    let line = |(subject, histograms): &(Subject, Histograms)| {
        let unreliable = counted.unreliable.iter().find(|(s, _)| s == subject);
        let Subject {
            vm,
            vdisk,
            pdisk,
            pid,
            cgroup,
        } = *subject;
        let rest = [
            ("vm", text(vm)),
            ("vdisk", text(vdisk)),
            ("pdisk", text(pdisk)),
            ("pid", json!(pid)),
            ("cgroup", text(cgroup)),
            ("histograms", of_histograms(histograms, metrics)),
        ];
        let unreliable = unreliable.map(|(_, ratio)| (UNRELIABLE, json!(ratio)));
        let rest: Vec<(&str, Value)> = rest.into_iter().chain(unreliable).collect();
        self::line(counted, &rest)
    };
    let mut lines: Vec<String> = counted.subjects.iter().map(line).collect();
    let lost = counted.lost.iter();
    let lost = lost.map(|(cause, n)| (cause.clone(), json!(n)));
    let rest = [
        ("subjects", json!(counted.subjects.len())),
        ("lost", Value::Object(lost.collect())),
    ];
    lines.push(self::line(counted, &rest));
    lines
}

/// True if `text` begins as lines of histograms do.
pub fn is_saved(text: &[u8]) -> bool {
    text.starts_with(br#"{"hist":"#)
}

/// The next line, without its end; `None` at the end of the input.
///
/// # Errors
/// When it is longer than `bytes_max`, is not UTF-8, or cannot be read.
pub fn read_line(from: &mut impl BufRead, bytes_max: usize) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    from.by_ref()
        .take(bytes_max as u64 + 1)
        .read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let odd = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    if line.pop() != Some(b'\n') {
        return Err(odd(match line.len() >= bytes_max {
            true => "a line is too long",
            false => "a line is cut off",
        }));
    }
    let text = String::from_utf8(line).map_err(|_| odd("a line is no text"))?;
    Ok(Some(text))
}

/// The counts in lines, added up over all intervals.
///
/// # Errors
/// A message with the line number, when a line is not of this format.
pub fn counted(
    lines: impl Iterator<Item = Result<String, String>>,
) -> Result<CountedHistograms, String> {
    let mut all: Option<CountedHistograms> = None;
    for (number, line) in lines.enumerate() {
        let wrong = |what: String| format!("line {}: {what}", number + 1);
        let line = line.map_err(wrong)?;
        if line.trim().is_empty() {
            continue;
        }
        let line: Value = serde_json::from_str(&line).map_err(|e| wrong(e.to_string()))?;
        let part = part(&line).ok_or_else(|| wrong("is not a line of histograms".into()))?;
        match &mut all {
            Some(all) => all.merge(part),
            None => all = Some(part),
        }
    }
    all.ok_or_else(|| "it contains no histograms".into())
}

/// A line, which begins with the key that identifies it.
fn line(counted: &CountedHistograms, rest: &[(&str, Value)]) -> String {
    let CountedHistograms {
        since,
        at,
        closest_of,
        ..
    } = counted;
    let mut line = format!(
        "{{\"hist\":{VERSION},\"since_ns\":{since},\"until_ns\":{at},\"closest_of\":{closest_of}"
    );
    for (key, value) in rest {
        line += &format!(",\"{key}\":{value}");
    }
    line + "}"
}

/// The counts in one line.
fn part(line: &Value) -> Option<CountedHistograms> {
    if line["hist"].as_u64()? != VERSION {
        return None;
    }
    let mut part = CountedHistograms {
        since: line["since_ns"].as_i64()?,
        at: line["until_ns"].as_i64()?,
        closest_of: usize::try_from(line["closest_of"].as_u64()?).ok()?,
        subjects: Vec::new(),
        lost: Vec::new(),
        unreliable: Vec::new(),
    };
    if let Some(lost) = line["lost"].as_object() {
        let lost = lost
            .iter()
            .map(|(cause, n)| Some((cause.clone(), n.as_u64()?)));
        part.lost = lost.collect::<Option<_>>()?;
        return Some(part);
    }
    let text = |key: &str| match &line[key] {
        Value::Null => Some(None),
        Value::String(text) => Symbol::try_new(text).ok().map(Some),
        _ => None,
    };
    let subject = Subject {
        vm: text("vm")?,
        vdisk: text("vdisk")?,
        pdisk: text("pdisk")?,
        pid: line["pid"].as_i64(),
        cgroup: text("cgroup")?,
    };
    let unreliable = line[UNRELIABLE].as_f64();
    part.unreliable
        .extend(unreliable.map(|ratio| (subject, ratio)));
    part.subjects
        .push((subject, to_histograms(&line["histograms"])?));
    Some(part)
}

#[cfg(test)]
mod tests {
    use weir_model::Op;
    use weir_workload::Class;

    use super::*;

    fn some() -> CountedHistograms {
        let mut histograms = Histograms::default();
        for value in [-700_000, -3, 1, 1, 17, 1 << 40] {
            histograms.of_mut(Metric::Seek, Class::All).add(value);
            histograms
                .of_mut(Metric::Seek, Class::Of(Op::Write))
                .add(value);
        }
        let latency = histograms.of_mut(Metric::Latency, Class::Of(Op::Read));
        (0..500).for_each(|i| latency.add(i * i * 977));
        latency.sum += i128::from(u64::MAX);
        let symbol = |text: &str| Some(Symbol::new(text));
        let subject = Subject {
            vm: symbol("w\"e\nb"),
            vdisk: symbol("/dev/vda"),
            ..Subject::default()
        };
        let process = Subject {
            pid: Some(4711),
            ..Subject::default()
        };
        CountedHistograms {
            since: 1_700_000_000_000_000_001,
            at: 1_700_000_001_000_000_003,
            closest_of: 16,
            subjects: vec![(subject, histograms), (process, Histograms::default())],
            lost: vec![("table_full".into(), 3)],
            unreliable: vec![(process, 0.25)],
        }
    }

    fn read(lines: &[String]) -> Result<CountedHistograms, String> {
        counted(lines.iter().cloned().map(Ok))
    }

    #[test]
    fn what_is_written_comes_back() {
        let lines = lines(&some(), &Metric::ALL);
        assert!(
            lines
                .iter()
                .all(|l| is_saved(l.as_bytes()) && !l.contains('\n'))
        );
        assert_eq!(read(&lines), Ok(some()));
    }

    #[test]
    fn spans_of_the_same_add_up() {
        let once = lines(&some(), &Metric::ALL);
        let twice = read(&[once.clone(), once].concat()).unwrap();
        let seeks = twice.subjects[0].1.of(Metric::Seek, Class::All);
        assert_eq!((seeks.count, seeks.max), (12, 1 << 40));
        assert_eq!(twice.lost, [("table_full".to_owned(), 6)]);
        assert_eq!(twice.subjects.len(), 2);
    }

    #[test]
    fn what_is_none_of_ours_is_named() {
        let good = lines(&some(), &Metric::ALL);
        let mut bad = good.clone();
        bad[0] = bad[0].replacen("\"count\":6", "\"count\":7", 1);
        assert!(
            read(&bad).unwrap_err().starts_with("line 1: "),
            "the bins say six"
        );
        for line in [
            "{}",
            "[1]",
            "{\"hist\":2}",
            "x",
            "{\"hist\":1,\"since_ns\":0}",
        ] {
            let error = read(&[good[0].clone(), line.into()]).unwrap_err();
            assert!(error.starts_with("line 2: "), "{error}");
        }
        assert!(read(&[]).is_err());
    }

    #[test]
    fn a_line_is_bounded_and_whole() {
        let read = |text: &str| read_line(&mut text.as_bytes(), 4);
        assert_eq!(read("abc\nd").unwrap().as_deref(), Some("abc"));
        assert_eq!(read("").unwrap(), None);
        assert_eq!(read("abcd\n").unwrap().as_deref(), Some("abcd"));
        assert!(read("abcde\n").unwrap_err().to_string().contains("long"));
        assert!(read("abc").unwrap_err().to_string().contains("cut off"));
    }
}
