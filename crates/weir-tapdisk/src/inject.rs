//! Injected delays and errors, for tests: `--delay`, `--error`.
//!
//! ```
//! use weir_tapdisk::inject::{DelayRule, ErrorRule, Injections};
//!
//! // A tenth of the writes takes 20 ms longer; the hundredth read fails.
//! let delay: DelayRule = "20ms,op=w,rate=10%".parse().unwrap();
//! let error: ErrorRule = "EIO,op=r,after=99,times=1".parse().unwrap();
//! let injections = Injections { delays: vec![delay], errors: vec![error] };
//! # assert_eq!(injections.errors[0].errno, 5);
//! ```
//!
//! A rule is an injection, followed by conditions in any order:
//!
//! | condition | meaning |
//! | --- | --- |
//! | `op=rw` | only these operations, by their letters: `r`, `w`, `f` flush, `d` discard, `z` write zeroes |
//! | `sectors=2048..4096` | only requests that touch these sectors of 512 bytes, the last one excluded or omitted; not flushes |
//! | `rate=1%`, `rate=0.01` | this fraction of them |
//! | `seed=7` | which fraction: the same seed selects the same requests, by their number among the matching ones |
//! | `after=99` | not the first 99 |
//! | `times=1` | at most this number of times |
//!
//! Of the rules of a kind, the first that applies is used. A delay is between the issue and the
//! access to the image, so it is part of the service time. A request with an injected error is not
//! executed. `EOPNOTSUPP` makes it unsupported (`N`).

use std::ops::Range;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_model::{Op, SECTOR_BYTES};

use crate::Request;

/// The injections of a disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Injections {
    /// Delays.
    pub delays: Vec<DelayRule>,
    /// Errors.
    pub errors: Vec<ErrorRule>,
}

/// Requests that take longer: `5ms,op=r`.
#[derive(Clone, Debug, PartialEq)]
pub struct DelayRule {
    /// The added delay, at most [`DELAY_MAX`].
    pub delay: Duration,
    /// The requests.
    pub filter: RequestFilter,
}

/// Requests that fail: `ENOSPC,op=w`.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorRule {
    /// The errno.
    pub errno: i32,
    /// The requests.
    pub filter: RequestFilter,
}

/// The requests to which a rule applies.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestFilter {
    /// The operations.
    pub ops: Vec<Op>,
    /// The sectors; `None`: all, and flushes too.
    pub sectors: Option<Range<u64>>,
    /// The fraction of these, from 0 to 1.
    pub rate: f64,
    /// The seed for the fraction.
    pub seed: u64,
    /// The number of matching requests that are skipped first.
    pub after: u64,
    /// The maximum number of injections.
    pub times: Option<u64>,
}

impl Default for RequestFilter {
    fn default() -> RequestFilter {
        RequestFilter {
            ops: Op::ALL.to_vec(),
            sectors: None,
            rate: 1.0,
            seed: 0,
            after: 0,
            times: None,
        }
    }
}

/// The longest delay: longer than any guest waits.
pub const DELAY_MAX: Duration = Duration::from_secs(3600);

/// Maximum number of rules of a disk, of each kind.
pub const RULES_MAX: usize = 64;

/// The injection for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Injection {
    pub(crate) delay: Duration,
    pub(crate) errno: Option<i32>,
}

/// The active injections of a disk: for each rule, the number of matching requests and of
/// injections. All queues of the disk count together.
#[derive(Debug)]
pub(crate) struct Injector {
    delays: Vec<(DelayRule, Tally)>,
    errors: Vec<(ErrorRule, Tally)>,
}

#[derive(Debug, Default)]
struct Tally {
    matched: AtomicU64,
    affected: AtomicU64,
}

impl Injector {
    pub(crate) fn new(injections: Injections) -> Injector {
        let Injections { delays, errors } = injections;
        let fresh = Tally::default;
        Injector {
            delays: delays.into_iter().map(|rule| (rule, fresh())).collect(),
            errors: errors.into_iter().map(|rule| (rule, fresh())).collect(),
        }
    }

    /// The injection for a request; usually none.
    pub(crate) fn injection_for(&self, request: &Request) -> Option<Injection> {
        if self.delays.is_empty() && self.errors.is_empty() {
            return None;
        }
        let applies = |filter: &RequestFilter, tally: &Tally| filter.applies(request, tally);
        let delay = self
            .delays
            .iter()
            .find(|(rule, t)| applies(&rule.filter, t));
        let error = self
            .errors
            .iter()
            .find(|(rule, t)| applies(&rule.filter, t));
        (delay.is_some() || error.is_some()).then(|| Injection {
            delay: delay.map_or(Duration::ZERO, |(rule, _)| rule.delay),
            errno: error.map(|(rule, _)| rule.errno),
        })
    }
}

impl RequestFilter {
    fn applies(&self, request: &Request, tally: &Tally) -> bool {
        if !self.is_for(request) {
            return false;
        }
        let number = tally.matched.fetch_add(1, Ordering::Relaxed);
        let chosen = number >= self.after && chance(self.seed, number) < self.rate;
        chosen
            && self
                .times
                .is_none_or(|times| tally.affected.fetch_add(1, Ordering::Relaxed) < times)
    }

    fn is_for(&self, request: &Request) -> bool {
        let touches = |sectors: &Range<u64>| {
            let length = request.whole_bytes() / SECTOR_BYTES as u64;
            request.op != Op::Flush
                && request.sector < sectors.end
                && request.sector.saturating_add(length) > sectors.start
        };
        self.ops.contains(&request.op) && self.sectors.as_ref().is_none_or(touches)
    }
}

/// A number from 0 up to 1 for each `number`, the same each time: SplitMix64 (Steele, Lea, Flood:
/// Fast splittable pseudorandom number generators, OOPSLA 2014), entered at its `number`th step.
fn chance(seed: u64, number: u64) -> f64 {
    let steps = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut mixed = seed.wrapping_add(steps);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    // The upper 53 bits are what a float holds.
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

impl FromStr for DelayRule {
    type Err = String;

    fn from_str(text: &str) -> Result<DelayRule, String> {
        let (what, filter) = parts(text, "a delay such as `5ms,op=w`")?;
        let delay = span(what)?;
        Ok(DelayRule { delay, filter })
    }
}

impl FromStr for ErrorRule {
    type Err = String;

    fn from_str(text: &str) -> Result<ErrorRule, String> {
        let (what, filter) = parts(text, "an error such as `EIO,op=r`")?;
        let errno = errno(what)?;
        Ok(ErrorRule { errno, filter })
    }
}

/// The first part, and the conditions.
fn parts<'a>(text: &'a str, expected: &str) -> Result<(&'a str, RequestFilter), String> {
    let mut parts = text.split(',').map(str::trim);
    let what = parts
        .next()
        .filter(|part| !part.is_empty() && !part.contains('='));
    let what = what.ok_or_else(|| format!("expected {expected}"))?;
    let mut filter = RequestFilter::default();
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key.trim() {
            "op" => filter.ops = ops(value.trim())?,
            "sectors" => filter.sectors = Some(sectors(value.trim())?),
            "rate" => filter.rate = rate(value.trim())?,
            "seed" => filter.seed = number(value, "seed")?,
            "after" => filter.after = number(value, "after")?,
            "times" => filter.times = Some(number(value, "times")?),
            _ => {
                let known = "op=, sectors=, rate=, seed=, after= and times=";
                return Err(format!("`{part}`: expected one of {known}"));
            }
        }
    }
    Ok((what, filter))
}

fn number(text: &str, key: &str) -> Result<u64, String> {
    let parsed = text.trim().parse();
    parsed.map_err(|_| format!("`{key}={text}`: expected a number, such as `{key}=7`"))
}

fn ops(text: &str) -> Result<Vec<Op>, String> {
    let unknown = || format!("`op={text}`: expected letters of r, w, f, d and z, such as `op=rw`");
    let letters = text.chars();
    let ops = letters.map(|c| Op::from_letter(c.encode_utf8(&mut [0; 4])));
    let ops: Option<Vec<Op>> = ops.collect();
    ops.filter(|ops| !ops.is_empty()).ok_or_else(unknown)
}

fn sectors(text: &str) -> Result<Range<u64>, String> {
    let expected = || format!("`sectors={text}`: expected a range, such as `sectors=2048..4096`");
    let (start, end) = text.split_once("..").ok_or_else(expected)?;
    let start = start.trim().parse().map_err(|_| expected())?;
    let end = match end.trim() {
        "" => u64::MAX,
        end => end.parse().map_err(|_| expected())?,
    };
    (start < end).then_some(start..end).ok_or_else(expected)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|p| p / 100.0),
        None => text.parse(),
    };
    let rate = rate.ok().filter(|rate| (0.0..=1.0).contains(rate));
    rate.ok_or_else(|| {
        format!("`rate={text}`: expected a share up to 100%, such as `rate=1%` or `rate=0.01`")
    })
}

const SPANS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];

fn span(text: &str) -> Result<Duration, String> {
    let expected =
        || format!("`{text}`: expected a time up to 3600s with ns, us, ms or s, such as `5ms`");
    // `ms` ends in `s` too, so the longer units come first.
    let unit = SPANS.iter().find(|(unit, _)| text.ends_with(unit));
    let (unit, nanos) = unit.ok_or_else(expected)?;
    let count = text[..text.len() - unit.len()].trim().parse::<f64>();
    let count = count.map_err(|_| expected())?;
    let delay = Duration::try_from_secs_f64(count * nanos / 1e9).map_err(|_| expected())?;
    (delay <= DELAY_MAX).then_some(delay).ok_or_else(expected)
}

/// Errors of disks, by the names of errno(3).
const ERRNOS: &[(&str, i32)] = &[
    ("EIO", libc::EIO),
    ("ENOSPC", libc::ENOSPC),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("ENODATA", libc::ENODATA),
    ("EILSEQ", libc::EILSEQ),
    ("ENODEV", libc::ENODEV),
    ("ENOLINK", libc::ENOLINK),
    ("EREMOTEIO", libc::EREMOTEIO),
    ("ENOMEM", libc::ENOMEM),
    ("EDQUOT", libc::EDQUOT),
    ("EROFS", libc::EROFS),
    ("EBUSY", libc::EBUSY),
    ("EINVAL", libc::EINVAL),
    ("EPERM", libc::EPERM),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
];

/// The largest error number of the kernel: `MAX_ERRNO` (linux/err.h).
const ERRNO_MAX: i32 = 4095;

fn errno(text: &str) -> Result<i32, String> {
    let named = ERRNOS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text));
    let numbered = || text.parse().ok().filter(|n| (1..=ERRNO_MAX).contains(n));
    named
        .map(|(_, errno)| *errno)
        .or_else(numbered)
        .ok_or_else(|| {
            let names: Vec<&str> = ERRNOS.iter().map(|(name, _)| *name).collect();
            format!("`{text}`: expected a number or one of {}", names.join(", "))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op: Op, sector: u64, sectors: u64) -> Request {
        Request::new(op, sector, sectors * 512)
    }

    fn errors(rules: &[&str]) -> Injector {
        let errors = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let delays = Vec::new();
        Injector::new(Injections { delays, errors })
    }

    /// The positions of the requests with an injection, out of `count` equal ones.
    fn affected(injector: &Injector, request: &Request, count: usize) -> Vec<usize> {
        let numbers = 0..count;
        numbers
            .filter(|_| injector.injection_for(request).is_some())
            .collect()
    }

    #[test]
    fn a_rate_selects_its_fraction_and_the_same_requests_each_time() {
        let read = request(Op::Read, 0, 8);
        let first = affected(&errors(&["EIO,rate=10%,seed=7"]), &read, 10_000);
        let again = affected(&errors(&["EIO,rate=0.1,seed=7"]), &read, 10_000);
        assert_eq!(first, again);
        // Of 10,000 tries with a tenth, the deviation is 30; this is ten of them.
        assert!((700..1300).contains(&first.len()), "{}", first.len());
        let other = affected(&errors(&["EIO,rate=10%,seed=8"]), &read, 10_000);
        assert_ne!(first, other);
    }

    #[test]
    fn rates_of_0_and_1_are_valid() {
        let read = request(Op::Read, 0, 8);
        assert_eq!(affected(&errors(&["EIO,rate=100%"]), &read, 500).len(), 500);
        assert_eq!(affected(&errors(&["EIO,rate=0"]), &read, 500).len(), 0);
    }

    #[test]
    fn a_rule_applies_to_its_operations_and_sectors() {
        let injector = errors(&["EIO,op=wz,sectors=100..200"]);
        let strikes = |op, sector, sectors| {
            injector
                .injection_for(&request(op, sector, sectors))
                .is_some()
        };
        assert!(strikes(Op::Write, 92, 9));
        assert!(!strikes(Op::Write, 92, 8));
        assert!(strikes(Op::WriteZeroes, 199, 1));
        assert!(!strikes(Op::Write, 200, 1));
        assert!(!strikes(Op::Read, 150, 1));
        let anywhere = errors(&["EIO"]);
        assert!(anywhere.injection_for(&request(Op::Flush, 0, 0)).is_some());
        let somewhere = errors(&["EIO,sectors=0.."]);
        assert!(somewhere.injection_for(&request(Op::Flush, 0, 0)).is_none());
    }

    #[test]
    fn a_rule_can_select_the_hundredth_request() {
        let write = request(Op::Write, 0, 8);
        let injector = errors(&["EIO,op=w,after=99,times=1"]);
        assert_eq!(affected(&injector, &write, 1000), [99]);
    }

    #[test]
    fn the_first_matching_rule_applies() {
        let injector = errors(&["ENOSPC,op=w,times=1", "EIO"]);
        let write = request(Op::Write, 0, 8);
        let errno = || {
            injector
                .injection_for(&write)
                .and_then(|injection_for| injection_for.errno)
        };
        assert_eq!([errno(), errno()], [Some(libc::ENOSPC), Some(libc::EIO)]);
    }

    #[test]
    fn an_invalid_rule_is_reported_with_the_valid_forms() {
        let delay = |text: &str| text.parse::<DelayRule>().unwrap_err();
        let error = |text: &str| text.parse::<ErrorRule>().unwrap_err();
        assert_eq!(delay("op=w"), "expected a delay such as `5ms,op=w`");
        assert_eq!(
            delay("5"),
            "`5`: expected a time up to 3600s with ns, us, ms or s, such as `5ms`"
        );
        assert!(delay("2h").contains("3600s"));
        assert!(delay("-1ms").contains("expected a time"));
        assert!(delay("3601s").contains("expected a time"));
        assert!(delay("5ms,op=x").contains("letters of r, w, f, d and z"));
        assert!(delay("5ms,rate=2").contains("expected a share up to 100%"));
        assert!(delay("5ms,sectors=9..9").contains("expected a range"));
        assert!(delay("5ms,often").contains("expected one of op="));
        assert!(error("EWHAT").contains("one of EIO, ENOSPC"));
        assert!(error("0").contains("expected a number"));
        assert!(error("EIO,times=x").contains("`times=7`"));
    }

    #[test]
    fn times_have_units() {
        let delay = |text: &str| text.parse::<DelayRule>().unwrap().delay;
        assert_eq!(delay("5ms"), Duration::from_millis(5));
        assert_eq!(delay("1.5 s , op=r"), Duration::from_millis(1500));
        assert_eq!(delay("20us"), Duration::from_micros(20));
        assert_eq!(delay("3600s"), DELAY_MAX);
    }
}
