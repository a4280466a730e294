//! The default text output of blkparse.
//!
//! ```text
//! 259,0    1        6     0.000001676 21279  D  RA 2348060440 + 8 [fio]
//! 259,0    1        7     0.000056992     0  C  RA 2348060440 + 8 [0]
//! ```
//!
//! Device, CPU, sequence number, seconds since the start of the trace, process, action, the letters
//! of the operation, extent, and in brackets the process' name, or the error of a completion
//! (blkparse(1), "DEFAULT OUTPUT"). With `-t` a time in parentheses precedes the brackets.
//! [`super::block`] describes how the actions become rows; the summary after the events is not
//! read.

use std::collections::HashMap;

use weir_model::{NANOS_PER_SECOND, Nanos, Op, Symbol};

use super::Faults;
use super::blktrace::device_of;
use super::block::{Action, BlockAction};
use super::lines::{decimal_nanos, excerpt, whole};
use super::record::{Extent, Reader, TraceRecord, What, name};
use super::source::Input;
use crate::TapError;

/// Lines per read.
const LINES_PER_READ: usize = 1024;

/// Lines that are examined to detect the format.
const LINES_SNIFFED: usize = 8;

/// Beginnings of the lines of the summary.
const SUMMARY: [&str; 6] = [
    "CPU",
    "Total",
    "Throughput",
    "Events",
    "Skips",
    "Input file",
];

/// Result of parsing a line.
#[derive(Debug)]
enum Line {
    Action(Nanos, Action),
    /// An event that does not concern a request.
    Other,
    /// An event that is not block I/O.
    Skipped,
    Summary,
}

/// Whether `head` is the beginning of blkparse's output.
pub fn sniff(head: &[u8]) -> Option<bool> {
    let lines = head
        .split_inclusive(|&b| b == b'\n')
        .filter(|l| l.ends_with(b"\n") || head.len() < 1024);
    let mut names = Names::default();
    let lines = lines
        .filter_map(|l| std::str::from_utf8(l).ok())
        .take(LINES_SNIFFED);
    let events = lines.filter(|l| {
        matches!(
            names.line(l),
            Ok(Line::Action(..) | Line::Other | Line::Skipped)
        )
    });
    Some(events.count() > 0)
}

/// Reads a trace.
///
/// # Errors
/// None; the type is common to all formats.
pub fn open(input: Input) -> Result<Box<dyn Reader>, TapError> {
    Ok(Box::new(Blkparse {
        input,
        names: Names::default(),
        in_summary: false,
    }))
}

struct Blkparse {
    input: Input,
    names: Names,
    /// Lines that are not events are valid only after the first line of the summary.
    in_summary: bool,
}

impl Reader for Blkparse {
    fn read(&mut self, out: &mut Vec<TraceRecord>, faults: &mut Faults) -> Result<bool, TapError> {
        for _ in 0..LINES_PER_READ {
            let Some(line) = self.input.line()? else {
                return Ok(false);
            };
            let offset = line.offset;
            match line.text().and_then(|text| self.names.line(text)) {
                Ok(Line::Action(ts, action)) => out.push(TraceRecord {
                    ts,
                    what: What::Action(action.into()),
                }),
                Ok(Line::Other) => {}
                Ok(Line::Skipped) => faults.count("skipped", "not_block_io", 1),
                Ok(Line::Summary) => self.in_summary = true,
                Err(_) if self.in_summary => {}
                Err(reason) => faults.bad(offset, reason)?,
            }
        }
        Ok(true)
    }

    fn progress(&self) -> f64 {
        self.input.progress()
    }

    fn knows_responses(&self) -> bool {
        true
    }
}

/// Cache of the symbols of devices, to avoid a lookup by text for each line.
#[derive(Default)]
struct Names {
    devices: HashMap<Vec<u8>, Symbol>,
}

impl Names {
    fn line(&mut self, line: &str) -> Result<Line, String> {
        let mut rest = line;
        let device = word(&mut rest);
        let is_summary = SUMMARY.iter().any(|s| line.starts_with(s)) || line.ends_with(')');
        if device.is_empty() || (is_summary && device_of(device).is_none()) {
            return Ok(Line::Summary);
        }
        if device_of(device).is_none() {
            return Err(format!(
                "`{}` is not a device number such as 8,0",
                excerpt(device)
            ));
        }
        let cpu = whole("CPU", word(&mut rest))?;
        whole("sequence number", word(&mut rest))?;
        let ts = decimal_nanos("time", word(&mut rest), NANOS_PER_SECOND)?;
        let pid = whole("process", word(&mut rest))?;
        let (letter, operation) = (word(&mut rest), word(&mut rest));
        let Some(step) = step(letter, rest)? else {
            return Ok(Line::Other);
        };
        let Some((extent, tail)) = extent(rest)? else {
            return Ok(Line::Skipped);
        };
        let Some((op, flags)) = operation_of(operation, extent.sectors)? else {
            return Ok(Line::Skipped);
        };
        let bracket = bracket(tail);
        let completed = step == BlockAction::Complete;
        let action = Action {
            step,
            op,
            device: self.device(device)?,
            sector: if op == Op::Flush { 0 } else { extent.sector },
            sectors: extent.sectors,
            pid: Some(pid as i64),
            comm: bracket.filter(|_| !completed).map(name).transpose()?,
            cpu: Some(cpu as i64),
            flags,
            error: bracket.filter(|_| completed).and_then(error),
        };
        Ok(Line::Action(ts, action))
    }

    fn device(&mut self, device: &str) -> Result<Symbol, String> {
        if let Some(symbol) = self.devices.get(device.as_bytes()) {
            return Ok(*symbol);
        }
        let symbol = name(device)?;
        self.devices.insert(device.into(), symbol);
        Ok(symbol)
    }
}

/// Removes and returns the next word of `rest`; empty at the end.
fn word<'a>(rest: &mut &'a str) -> &'a str {
    let line = rest.trim_start();
    let end = line
        .find(|c: char| c.is_ascii_whitespace())
        .unwrap_or(line.len());
    *rest = &line[end..];
    &line[..end]
}

/// The step for an action letter; `None` for letters that do not concern a request.
fn step(letter: &str, rest: &str) -> Result<Option<BlockAction>, String> {
    Ok(Some(match letter {
        "Q" => BlockAction::Queue,
        "G" | "I" => BlockAction::Insert,
        "M" => BlockAction::BackMerge,
        "F" => BlockAction::FrontMerge,
        "D" => BlockAction::Issue,
        "R" => BlockAction::Requeue,
        "C" => BlockAction::Complete,
        "X" => {
            let at = rest
                .split('/')
                .nth(1)
                .and_then(|r| r.split_ascii_whitespace().next());
            let at = whole("sector of the split", at.unwrap_or_default())?;
            BlockAction::Split(Extent::of_sectors(at, 0)?.sector)
        }
        "A" | "B" | "P" | "U" | "UT" | "S" | "T" | "W" | "m" | "a" | "ZP" | "ZU" | "ZM" => {
            return Ok(None);
        }
        _ => return Err(format!("`{}` is not an action", excerpt(letter))),
    }))
}

/// The extent at the beginning of `rest`, and the text after it. A flush has no extent; `None` for
/// SCSI pass-through, which prints its command instead.
fn extent(rest: &str) -> Result<Option<(Extent, &str)>, String> {
    let mut tail = rest;
    let sector = word(&mut tail);
    if sector.starts_with('[') {
        return Ok(Some((Extent::NONE, rest)));
    }
    let mut after = tail;
    let sector = whole("sector", sector);
    match (word(&mut after), sector) {
        ("+", sector) => {
            let sectors = whole("length", word(&mut after))?;
            Ok(Some((Extent::of_sectors(sector?, sectors)?, after)))
        }
        ("/", sector) => Ok(Some((Extent::of_sectors(sector?, 0)?, after))),
        (next, Ok(_)) if next.starts_with('[') => Ok(Some((Extent::NONE, tail))),
        (next, _) if next.starts_with('(') || rest.trim_start().starts_with('(') => Ok(None),
        (_, sector) => Err(format!("sector {} without a length", sector?)),
    }
}

/// The operation and flags of blkparse's letters: `F` for a preceding flush, one letter for the
/// operation, then flags. `None` without an operation.
fn operation_of(letters: &str, sectors: i64) -> Result<Option<(Op, Option<Symbol>)>, String> {
    let (flush, rest) = match letters.strip_prefix('F') {
        Some(rest) => (true, rest),
        None => (false, letters),
    };
    let mut letters_left = rest.chars();
    let op = match letters_left.next() {
        Some('D') => Some(Op::Discard),
        Some('R' | 'W' | 'N') if flush && sectors == 0 => Some(Op::Flush),
        Some('R') => Some(Op::Read),
        Some('W') => Some(Op::Write),
        Some('N') => None,
        _ => {
            return Err(format!("`{}` is not an operation", excerpt(letters)));
        }
    };
    let flags = letters_left.as_str();
    if !flags.bytes().all(|b| b"FASM".contains(&b)) {
        return Err(format!("`{}` are not flags", excerpt(flags)));
    }
    let flags = (!flags.is_empty()).then(|| name(flags)).transpose()?;
    Ok(op.map(|op| (op, flags)))
}

/// The text in brackets at the end of a line.
fn bracket(tail: &str) -> Option<&str> {
    let start = tail.find('[')?;
    tail.trim_end().strip_suffix(']')?.get(start + 1..)
}

/// The errno of a completion, positive. blkparse prints the kernel's negative number unchanged, or
/// as an unsigned 16-bit number.
fn error(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    let errno = if number > 0x7fff {
        0x1_0000 - number
    } else {
        number.saturating_abs()
    };
    (errno > 0).then_some(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(line: &str) -> Action {
        match Names::default().line(line) {
            Ok(Line::Action(_, action)) => action,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn each_form_of_line_is_read() {
        let a =
            action("  8,16   3       12     1.500000000  4711  D  WFS 2048 + 8 [kworker/0:1 x]");
        assert_eq!(
            (a.step, a.op, a.sector, a.sectors),
            (BlockAction::Issue, Op::Write, 2048, 8)
        );
        assert_eq!((a.pid, a.cpu), (Some(4711), Some(3)));
        assert_eq!(a.comm, Some(Symbol::new("kworker/0:1 x")));
        assert_eq!(a.flags, Some(Symbol::new("FS")));
        let c = action("8,0 0 7 0.000056992 0 C RA 2348060440 + 8 (   55316) [65531]");
        assert_eq!(
            (c.step, c.error, c.comm),
            (BlockAction::Complete, Some(5), None)
        );
        let f = action("8,0 0 7 0.000056992 9 D FN [fio]");
        assert_eq!((f.op, f.sectors), (Op::Flush, 0));
        let f = action("8,0 0 7 0.000056992 9 C FN 0 [0]");
        assert_eq!((f.op, f.error), (Op::Flush, None));
        let x = action("8,0 0 7 0.000056992 9 X WS 1000 / 1256 [fio]");
        assert_eq!((x.step, x.sector), (BlockAction::Split(1256), 1000));
        let d = action("8,0 0 7 0.000056992 9 Q DS 0 + 4194304 [fstrim]");
        assert_eq!(d.op, Op::Discard);
    }

    #[test]
    fn lines_without_a_request_are_skipped() {
        let line = |text: &str| Names::default().line(text);
        for other in [
            "8,0 1 4 0.0 1 P N [fio]",
            "8,0 1 1 0.0 1 A R 1 + 8 <- (8,1) 5",
            "8,0 1 0 0.1 1 m N cfq xyz",
        ] {
            assert!(matches!(line(other), Ok(Line::Other)), "{other}");
        }
        assert!(matches!(
            line("8,0 1 4 0.0 1 D R 36 (12 00 00) [fio]"),
            Ok(Line::Skipped)
        ));
        for summary in [
            "CPU1 (259,0):",
            "fio (21279)",
            "",
            "Skips: 0 forward (0 - 0.0%)",
        ] {
            assert!(matches!(line(summary), Ok(Line::Summary)), "{summary}");
        }
        assert!(line("hello").is_err());
        assert!(line("8,0 1 4 0.0 1 D R 36").is_err());
    }
}
