//! Requests to a collector and its responses: lines of JSON over a Unix socket.
//!
//! A connection carries one request, a line of at most [`QUESTION_BYTES_MAX`]. The response is
//! lines of histograms (as [`saved`](crate::hist::saved) has them) or of collections, and at the
//! end `{"end":true}`, or `{"error":"..","words":false}`. A response without such an end is
//! incomplete.

use std::io::{self, BufRead, Read};
use std::time::Duration;

use serde_json::{Value, json};
use weir_model::Nanos;

use crate::hist::choice::Choice;
use crate::hist::counted::By;
use weir_runtime::failure::Failure;
use weir_runtime::quantity::nanos;

/// Maximum size of a request, bytes.
pub const QUESTION_BYTES_MAX: usize = 64 << 10;

/// A collection to be started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The VM and the disk.
    pub choice: Choice,
    /// The key of the histograms.
    pub by: By,
    /// The duration; `None` until it is stopped.
    pub span: Option<Duration>,
    /// The host's devices to observe; empty for all relevant ones.
    pub devices: Vec<String>,
    /// Observe stacked devices too.
    pub stacked: bool,
    /// Processes that are treated as VMs, in the syntax of `--vm`.
    pub declared: Vec<String>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Starts a collection, or extends one that was started with the same selection.
    Start(Order),
    /// Stops the selection.
    Stop(Choice),
    /// Resets the counts of the selection.
    Reset(Choice),
    /// The counts so far.
    Snapshot(Choice, By),
    /// The running collections.
    Status,
}

/// A collection that is running or stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collecting {
    /// The selected disks.
    pub choice: Choice,
    /// The key of the histograms.
    pub by: By,
    /// The start.
    pub since: Nanos,
    /// When it stops automatically; `None` for never.
    pub until: Option<Nanos>,
}

/// The last line of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The response is complete.
    Done,
    /// The error as text; and whether it is a usage error.
    Refused(String, bool),
}

impl Question {
    /// As a line, without its end.
    pub fn to_line(&self) -> String {
        let chosen =
            |verb: &str, choice: &Choice| json!({"do": verb, "vm": choice.vm, "disk": choice.disk});
        let line = match self {
            Question::Start(order) => json!({
                "do": "start",
                "vm": order.choice.vm,
                "disk": order.choice.disk,
                "by": order.by.as_str(),
                "for_ns": order.span.map(nanos),
                "devices": order.devices,
                "stacked": order.stacked,
                "declared": order.declared,
            }),
            Question::Stop(choice) => chosen("stop", choice),
            Question::Reset(choice) => chosen("reset", choice),
            Question::Snapshot(choice, by) => {
                let mut line = chosen("snapshot", choice);
                line["by"] = json!(by.as_str());
                line
            }
            Question::Status => json!({"do": "status"}),
        };
        line.to_string()
    }

    /// The request in a line.
    pub fn of_line(line: &str) -> Option<Question> {
        let line: Value = serde_json::from_str(line).ok()?;
        let choice = choice(&line);
        Some(match line["do"].as_str()? {
            "start" => Question::Start(Order {
                choice: choice?,
                by: by(&line)?,
                span: match &line["for_ns"] {
                    Value::Null => None,
                    span => Some(Duration::from_nanos(span.as_u64()?)),
                },
                devices: texts(&line["devices"])?,
                stacked: line["stacked"].as_bool()?,
                declared: texts(&line["declared"])?,
            }),
            "stop" => Question::Stop(choice?),
            "reset" => Question::Reset(choice?),
            "snapshot" => Question::Snapshot(choice?, by(&line)?),
            "status" => Question::Status,
            _ => return None,
        })
    }
}

impl Collecting {
    /// As a line, without its end.
    pub fn to_line(&self) -> String {
        let line = json!({
            "vm": self.choice.vm,
            "disk": self.choice.disk,
            "by": self.by.as_str(),
            "since_ns": self.since,
            "until_ns": self.until,
        });
        line.to_string()
    }

    /// The collection in a line.
    pub fn of_line(line: &str) -> Option<Collecting> {
        let line: Value = serde_json::from_str(line).ok()?;
        Some(Collecting {
            choice: choice(&line)?,
            by: by(&line)?,
            since: line["since_ns"].as_i64()?,
            until: match &line["until_ns"] {
                Value::Null => None,
                until => Some(until.as_i64()?),
            },
        })
    }
}

impl End {
    /// As a line, without its end.
    pub fn to_line(&self) -> String {
        match self {
            End::Done => json!({"end": true}).to_string(),
            End::Refused(why, words) => json!({"error": why, "words": words}).to_string(),
        }
    }

    /// The end of a response in a line, if it is one.
    pub fn of_line(line: &str) -> Option<Result<(), Failure>> {
        // Lines of histograms are long, and none of them ends a response.
        let short = line.len() <= QUESTION_BYTES_MAX && !line.starts_with("{\"hist\":");
        let line: Value = serde_json::from_str(short.then_some(line)?).ok()?;
        match (line["end"].as_bool(), line["error"].as_str()) {
            (Some(true), _) => Some(Ok(())),
            (_, Some(why)) => Some(Err(match line["words"].as_bool() {
                Some(true) => Failure::words(why),
                _ => Failure::world(why),
            })),
            _ => None,
        }
    }
}

/// The next line, without its end; `None` at the end of the input.
///
/// # Errors
/// When it is longer than `bytes_max`, is not UTF-8, or the peer is silent for too long.
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

fn choice(line: &Value) -> Option<Choice> {
    let text = |key: &str| match &line[key] {
        Value::Null => Some(None),
        Value::String(text) => Some(Some(text.clone())),
        _ => None,
    };
    Some(Choice {
        vm: text("vm")?,
        disk: text("disk")?,
    })
}

fn by(line: &Value) -> Option<By> {
    let all = [By::Disk, By::Device, By::Process, By::Cgroup];
    let name = line["by"].as_str()?;
    all.into_iter().find(|by| by.as_str() == name)
}

fn texts(list: &Value) -> Option<Vec<String>> {
    let text = |text: &Value| Some(text.as_str()?.to_owned());
    list.as_array()?.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_understood() {
        let choice = Choice {
            vm: Some("w\"e\nb".into()),
            disk: None,
        };
        let order = Order {
            choice: choice.clone(),
            by: By::Process,
            span: Some(Duration::from_millis(1)),
            devices: vec!["/dev/sda".into()],
            stacked: true,
            declared: vec!["a=pid:7".into()],
        };
        for question in [
            Question::Start(order),
            Question::Start(Order::default()),
            Question::Stop(choice.clone()),
            Question::Reset(Choice::default()),
            Question::Snapshot(choice.clone(), By::Cgroup),
            Question::Status,
        ] {
            let line = question.to_line();
            assert!(!line.contains('\n'));
            assert_eq!(Question::of_line(&line), Some(question));
        }
        for (since, until) in [(7, None), (8, Some(9))] {
            let (choice, by) = (choice.clone(), By::Disk);
            let collecting = Collecting {
                choice,
                by,
                since,
                until,
            };
            assert_eq!(Collecting::of_line(&collecting.to_line()), Some(collecting));
        }
        for bad in ["", "{}", "{\"do\":\"start\"}", "{\"do\":\"dance\"}", "[[["] {
            assert_eq!(Question::of_line(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_answer_has_an_end() {
        assert!(matches!(End::of_line(&End::Done.to_line()), Some(Ok(()))));
        let refused = End::Refused("no".into(), true).to_line();
        assert!(matches!(
            End::of_line(&refused),
            Some(Err(Failure::Words(_)))
        ));
        assert!(End::of_line("{\"hist\":1}").is_none());
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
