//! [`LineReader`]: reads the formats with one request per line; each format supplies the parser of
//! a line.

use weir_model::{Level, Nanos, Op};

use super::Faults;
use super::names::Names;
use super::record::{Extent, Reader, TraceRecord, TraceRequest, What, nanos};
use super::source::Input;
use crate::TapError;

/// Lines per read.
const LINES_PER_READ: usize = 1024;

/// Lines that are examined to detect the format.
const LINES_SNIFFED: usize = 8;

/// The request of one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked<'a> {
    /// Time of issue.
    pub when: When,
    /// Operation.
    pub op: Op,
    /// Sectors.
    pub extent: Extent,
    /// The VM, if the format names one.
    pub vm: Option<&'a str>,
    /// The disk, if the format names one; [`LineFormat::level`] decides whether it is the VM's or
    /// the host's.
    pub disk: Option<&'a str>,
    /// Insert to completion, if known.
    pub latency_ns: Option<Nanos>,
}

/// The time at which a request was issued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// At this timestamp.
    At(Nanos),
    /// After the previous request's completion and its think time (closed loop).
    Closed {
        /// From this request's completion to the next one's issue.
        think_ns: Nanos,
    },
}

/// A format with one request per line.
#[derive(Clone, Copy, Debug)]
pub struct LineFormat {
    /// True for a line with column names.
    pub is_header: fn(&[u8]) -> bool,
    /// Parses a line; the error is a message.
    pub parse: for<'a> fn(&'a str) -> Result<Asked<'a>, String>,
    /// Whether it contains completions.
    pub knows_responses: bool,
    /// The level at which the trace was recorded: disks are the VM's or the host's.
    pub level: Level,
}

impl LineFormat {
    /// Whether `head`, the beginning of a file, is in this format: certain if most of its first
    /// lines match.
    pub fn sniff(&self, head: &[u8]) -> Option<bool> {
        let whole = head.len() < super::SNIFF_BYTES;
        let end = match head.iter().rposition(|&b| b == b'\n') {
            Some(last) if !whole => last,
            _ => head.len(),
        };
        let lines = head[..end]
            .split(|&b| b == b'\n')
            .map(|l| l.strip_suffix(b"\r").unwrap_or(l));
        let lines = lines
            .filter(|l| !is_blank(l) && !(self.is_header)(l))
            .take(LINES_SNIFFED);
        let (mut good, mut bad) = (0, 0);
        for line in lines {
            match self.parse_line(line) {
                Ok(_) => good += 1,
                Err(_) => bad += 1,
            }
        }
        match (good, bad) {
            (0, _) => Some(false),
            (good, bad) if good > bad => Some(true),
            _ => None,
        }
    }

    /// Reads a trace.
    pub fn reader(&self, input: Input) -> Box<dyn Reader> {
        Box::new(LineReader {
            requests: Requests {
                format: *self,
                stem: input.stem().to_owned(),
                clock: 0,
                vms: Names::default(),
                disks: Names::default(),
            },
            input,
        })
    }

    fn parse_line<'a>(&self, line: &'a [u8]) -> Result<Asked<'a>, String> {
        let text = std::str::from_utf8(line).map_err(|_| "the line is not text".to_owned())?;
        (self.parse)(text)
    }
}

struct LineReader {
    input: Input,
    requests: Requests,
}

/// What lines are converted by.
struct Requests {
    format: LineFormat,
    /// The name of the disk if the format has none.
    stem: String,
    /// Time of the next issue in a closed loop.
    clock: Nanos,
    vms: Names,
    disks: Names,
}

impl Reader for LineReader {
    fn read(&mut self, out: &mut Vec<TraceRecord>, faults: &mut Faults) -> Result<bool, TapError> {
        for _ in 0..LINES_PER_READ {
            let Some(line) = self.input.line()? else {
                return Ok(false);
            };
            let offset = line.offset;
            let Some(bytes) = line.bytes else {
                faults.bad(offset, "the line is too long")?;
                continue;
            };
            let format = &self.requests.format;
            if is_blank(bytes) || (format.is_header)(bytes) {
                continue;
            }
            let asked = format.parse_line(bytes);
            match asked.and_then(|asked| self.requests.record(&asked)) {
                Ok(record) => out.push(record),
                Err(reason) => faults.bad(offset, reason)?,
            }
        }
        Ok(true)
    }

    fn progress(&self) -> f64 {
        self.input.progress()
    }

    fn knows_responses(&self) -> bool {
        self.requests.format.knows_responses
    }
}

impl Requests {
    fn record(&mut self, asked: &Asked) -> Result<TraceRecord, String> {
        let mut request = TraceRequest::new(asked.op, asked.extent, self.format.level);
        request.vm = asked.vm.map(|vm| self.vms.symbol(vm)).transpose()?;
        let disk = asked.disk.unwrap_or(&self.stem);
        request.disk = Some(self.disks.symbol(disk)?);
        request.latency_ns = asked.latency_ns;
        let latency = asked.latency_ns.unwrap_or(0);
        let out_of_range = || "the time is out of range".to_owned();
        let ts = match asked.when {
            When::At(ts) => ts,
            When::Closed { think_ns } => {
                let issued = self.clock;
                let done = issued.checked_add(latency).ok_or_else(out_of_range)?;
                self.clock = done.checked_add(think_ns).ok_or_else(out_of_range)?;
                request.without_wait = true;
                issued
            }
        };
        ts.checked_add(latency).ok_or_else(out_of_range)?;
        Ok(TraceRecord {
            ts,
            what: What::Request(request),
        })
    }
}

fn is_blank(line: &[u8]) -> bool {
    let first = line.iter().find(|b| !b.is_ascii_whitespace());
    first.is_none_or(|&b| b == b'#')
}

/// For formats without a line of column names.
pub fn no_header(_: &[u8]) -> bool {
    false
}

/// The `N` fields of a line of comma-separated values.
///
/// # Errors
/// If there are more or fewer.
pub fn comma_fields<const N: usize>(line: &str) -> Result<[&str; N], String> {
    let mut taken = [""; N];
    let (mut count, mut start) = (0, 0);
    let ends = memchr::memchr_iter(b',', line.as_bytes());
    for end in ends.chain([line.len()]) {
        if let Some(place) = taken.get_mut(count) {
            *place = trimmed(&line[start..end]);
        }
        count += 1;
        start = end + 1;
    }
    match count == N {
        true => Ok(taken),
        false => Err(wrong_number(count, N)),
    }
}

/// The field without white space around it.
fn trimmed(field: &str) -> &str {
    let is_plain = |b: Option<&u8>| b.is_some_and(u8::is_ascii_graphic);
    match is_plain(field.as_bytes().first()) && is_plain(field.as_bytes().last()) {
        true => field,
        false => field.trim(),
    }
}

fn wrong_number(count: usize, expected: usize) -> String {
    format!("{count} fields, expected {expected}")
}

/// The `N` fields of a line separated by spaces or tabs.
///
/// # Errors
/// If there are more or fewer.
pub fn space_fields<const N: usize>(line: &str) -> Result<[&str; N], String> {
    exactly(line.split_ascii_whitespace())
}

fn exactly<'a, const N: usize>(
    fields: impl Iterator<Item = &'a str>,
) -> Result<[&'a str; N], String> {
    let mut taken = [""; N];
    let mut count = 0;
    for field in fields {
        if let Some(place) = taken.get_mut(count) {
            *place = field;
        }
        count += 1;
    }
    match count == N {
        true => Ok(taken),
        false => Err(wrong_number(count, N)),
    }
}

/// A non-negative integer.
///
/// # Errors
/// If the field is not one.
pub fn whole(what: &str, field: &str) -> Result<u64, String> {
    let parsed = decimal(field.as_bytes()).or_else(|| field.parse().ok());
    parsed.ok_or_else(|| format!("the {what} `{}` is not an integer", excerpt(field)))
}

/// Decimal digits that a `u64` holds, whatever they are.
const DIGITS_MAX: usize = 19;

/// The number of at most [`DIGITS_MAX`] decimal digits.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > DIGITS_MAX {
        return None;
    }
    let (eights, rest) = digits.as_chunks::<8>();
    let mut number = 0;
    for eight in eights {
        number = number * 100_000_000 + eight_digits(*eight)?;
    }
    for digit in rest {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    Some(number)
}

/// The number of eight decimal digits, all at once: neighbours are joined to pairs, pairs to
/// numbers of four digits, and these to one (D. Lemire, Quickly parsing eight digits, 2018).
fn eight_digits(digits: [u8; 8]) -> Option<u64> {
    const ZEROES: u64 = 0x3030_3030_3030_3030;
    const TO_HIGH_BIT: u64 = 0x4646_4646_4646_4646;
    const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
    const EVERY_SECOND_PAIR: u64 = 0x0000_00ff_0000_00ff;
    let digits = u64::from_le_bytes(digits);
    let values = digits.wrapping_sub(ZEROES);
    if (digits.wrapping_add(TO_HIGH_BIT) | values) & HIGH_BITS != 0 {
        return None;
    }
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8);
    let first = (pairs & EVERY_SECOND_PAIR).wrapping_mul(100 + (1_000_000 << 32));
    let second = ((pairs >> 16) & EVERY_SECOND_PAIR).wrapping_mul(1 + (10_000 << 32));
    Some(first.wrapping_add(second) >> 32)
}

/// A decimal number of units of `unit_ns` nanoseconds, exactly; fractions of a nanosecond are
/// truncated.
///
/// # Errors
/// If the field is not one, or out of range.
pub fn decimal_nanos(what: &str, field: &str, unit_ns: i64) -> Result<Nanos, String> {
    let bad = || format!("the {what} `{}` is not a number", excerpt(field));
    let (integer, fraction) = field.split_once('.').unwrap_or((field, ""));
    if integer.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let mut ns = nanos(integer.parse().map_err(|_| bad())?, unit_ns)?;
    let mut place = unit_ns;
    for digit in fraction.bytes() {
        place /= 10;
        ns = ns.saturating_add(i64::from(digit - b'0') * place);
    }
    Ok(ns)
}

/// The beginning of a field, for messages.
pub fn excerpt(field: &str) -> String {
    field.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        assert_eq!(
            decimal_nanos("time", "13.191135", 1_000_000),
            Ok(13_191_135)
        );
        assert_eq!(decimal_nanos("time", "7", 1_000), Ok(7_000));
        assert_eq!(decimal_nanos("time", "0.1234", 1_000), Ok(123));
        assert!(decimal_nanos("time", "1e3", 1_000).is_err());
        assert!(decimal_nanos("time", "99999999999999999", 1_000_000).is_err());
    }

    #[test]
    fn integers_are_read_as_the_standard_library_reads_them() {
        let mut fields: Vec<String> = ["", "+7", "-7", "007", "1 2", "1/3", "9:", "\u{663}"]
            .map(String::from)
            .into();
        for digits in 1..=21 {
            fields.push("9".repeat(digits));
            fields.push("1234567890123456789012"[..digits].into());
            for at in 0..digits {
                for other in ["/", ":", "+", "\u{b2}", "\u{0}"] {
                    let mut field = "8".repeat(digits);
                    field.replace_range(at..=at, other);
                    fields.push(field);
                }
            }
        }
        for field in fields {
            assert_eq!(whole("field", &field).ok(), field.parse().ok(), "{field}");
        }
    }

    #[test]
    fn the_number_of_fields_is_checked() {
        assert_eq!(comma_fields("a, b"), Ok(["a", "b"]));
        assert!(comma_fields::<2>("a,b,c").is_err());
        assert!(comma_fields::<2>("a").is_err());
        assert_eq!(space_fields(" a\t b "), Ok(["a", "b"]));
    }
}
