//! Reads fio's I/O logs.

use weir_model::{Level, Nanos, Op};

use super::super::Faults;
use super::super::lines::{excerpt, whole};
use super::super::record::{Extent, Reader, TraceRecord, TraceRequest, What, micros, name, nanos};
use super::super::source::Input;
use super::{VERSION_2, VERSION_3};
use crate::TapError;

/// Lines per read.
const LINES_PER_READ: usize = 1024;

/// One millisecond.
const MILLI_NS: i64 = 1_000_000;

/// Whether `head` is the beginning of an I/O log.
pub fn sniff(head: &[u8]) -> Option<bool> {
    Some(head.starts_with(VERSION_2.as_bytes()) || head.starts_with(VERSION_3.as_bytes()))
}

/// Reads a log.
///
/// # Errors
/// None; the type is common to all formats.
pub fn open(input: Input) -> Result<Box<dyn Reader>, TapError> {
    Ok(Box::new(Iolog {
        input,
        version: None,
        clock: 0,
    }))
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    V2,
    V3,
}

struct Iolog {
    input: Input,
    version: Option<Version>,
    /// The time of version 2's last `wait`.
    clock: Nanos,
}

impl Reader for Iolog {
    fn read(&mut self, out: &mut Vec<TraceRecord>, faults: &mut Faults) -> Result<bool, TapError> {
        for _ in 0..LINES_PER_READ {
            let Some(line) = self.input.line()? else {
                return Ok(false);
            };
            let offset = line.offset;
            let record = line.text().and_then(|text| match text.trim() {
                "" => Ok(None),
                _ => parse(text, &mut self.version, &mut self.clock),
            });
            match record {
                Ok(record) => out.extend(record),
                Err(reason) => faults.bad(offset, reason)?,
            }
        }
        Ok(true)
    }

    fn progress(&self) -> f64 {
        self.input.progress()
    }

    fn knows_responses(&self) -> bool {
        false
    }
}

/// Parses a line; `None` for those that are not I/O.
fn parse(
    line: &str,
    version: &mut Option<Version>,
    clock: &mut Nanos,
) -> Result<Option<TraceRecord>, String> {
    let Some(known) = *version else {
        // Without a version line, times are where version 3 has them.
        *version = Some(if line == VERSION_2 {
            Version::V2
        } else {
            Version::V3
        });
        return match line == VERSION_2 || line == VERSION_3 {
            true => Ok(None),
            false => Err("the first line is not that of an I/O log of version 2 or 3".into()),
        };
    };
    let mut words = line.split_ascii_whitespace();
    let mut next = |what: &str| words.next().ok_or_else(|| format!("the {what} is missing"));
    let ts = match known {
        Version::V3 => Some(micros(whole("time", next("time")?)?)?),
        Version::V2 => None,
    };
    let (file, action) = (next("file")?, next("action")?);
    if matches!(action, "add" | "open" | "close" | "unlink") {
        return Ok(None);
    }
    let offset = whole("offset", next("offset")?)?;
    let length = whole("length", next("length")?)?;
    if action == "wait" {
        if known == Version::V3 {
            return Err("`wait` is not allowed in version 3".into());
        }
        *clock = nanos(offset, MILLI_NS)?.max(*clock);
        return Ok(None);
    }
    let op = match action {
        "read" => Op::Read,
        "write" => Op::Write,
        "trim" => Op::Discard,
        "sync" | "datasync" | "sync_file_range" | "syncfs" => Op::Flush,
        _ => return Err(format!("`{}` is not an action", excerpt(action))),
    };
    let extent = match op {
        Op::Flush => Extent::NONE,
        _ => Extent::of_bytes(offset, length)?,
    };
    let level = if file.starts_with("/dev/") {
        Level::Block
    } else {
        Level::Vfs
    };
    let mut request = TraceRequest::new(op, extent, level);
    request.disk = Some(name(file)?);
    Ok(Some(TraceRecord {
        ts: ts.unwrap_or(*clock),
        what: What::Request(request),
    }))
}

#[cfg(test)]
mod tests {
    use super::super::super::TraceInput;
    use super::*;

    /// Time in us, operation and first sector of each request, and the number of bad lines.
    fn read(text: &str) -> (Vec<(i64, Op, Option<i64>)>, i64) {
        let input = Input::open(&TraceInput::bytes(text)).unwrap();
        let mut faults = Faults::new(input.path(), false);
        let mut records = Vec::new();
        open(input)
            .unwrap()
            .read(&mut records, &mut faults)
            .unwrap();
        let requests = records.into_iter().map(|record| match record.what {
            What::Request(request) => (record.ts / 1000, request.op, request.sector()),
            What::Action(action) => panic!("{action:?}"),
        });
        (requests.collect(), faults.bad_records())
    }

    #[test]
    fn version_2_takes_its_times_from_wait() {
        let (requests, bad) = read(
            "fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda read 0 4096\n/dev/sda wait 1500 0\n\
             /dev/sda write 8192 4096\n/dev/sda sync 0 0\n/dev/sda trim 4096 4096\n/dev/sda close\n",
        );
        let expected = [
            (0, Op::Read, Some(0)),
            (1_500_000, Op::Write, Some(16)),
            (1_500_000, Op::Flush, None),
            (1_500_000, Op::Discard, Some(8)),
        ];
        assert_eq!((&requests[..], bad), (&expected[..], 0));
    }

    #[test]
    fn version_3_has_times_and_no_wait() {
        let (requests, bad) = read(
            "fio version 3 iolog\n5 /dev/sda read 512 512\n6 /dev/sda wait 5 0\n7 /dev/sda scrub 0 1\n8 /dev/sda read 1\n",
        );
        assert_eq!((&requests[..], bad), (&[(5, Op::Read, Some(1))][..], 3));
    }
}
