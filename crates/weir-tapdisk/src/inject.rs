//! Delays and errors that a disk is to have, for tests and drills: `--delay`, `--error`.
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
//! A rule is what is done, and after it, in any order, what it is done to:
//!
//! | word | meaning |
//! | --- | --- |
//! | `op=rw` | only these operations, by their letters: `r`, `w`, `f` flush, `d` discard, `z` write zeroes |
//! | `sectors=2048..4096` | only requests that touch these sectors of 512 bytes, the last excluded or left out; no flush does |
//! | `rate=1%`, `rate=0.01` | this part of them |
//! | `seed=7` | which part: the same seed chooses the same requests, by their number among those the rule is for |
//! | `after=99` | not the first 99 |
//! | `times=1` | at most so often |
//!
//! Of the rules of a kind, the first that strikes counts. A delay passes between issue and the work on the image,
//! so it is part of the service time. A request that is to fail is not carried out at all. `EOPNOTSUPP` makes it
//! one that is not supported (`N`).

use std::ops::Range;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_model::{Op, SECTOR_BYTES};

use crate::Request;

/// What is to be done to a disk's requests.
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
    /// How much longer: at most [`DELAY_MAX`].
    pub delay: Duration,
    /// Which.
    pub which: Which,
}

/// Requests that fail: `ENOSPC,op=w`.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorRule {
    /// What they fail with.
    pub errno: i32,
    /// Which.
    pub which: Which,
}

/// Which requests a rule is for.
#[derive(Clone, Debug, PartialEq)]
pub struct Which {
    /// Of these operations.
    pub ops: Vec<Op>,
    /// Of these sectors; all and flushes too when there is none.
    pub sectors: Option<Range<u64>>,
    /// This part of them, from 0 to 1.
    pub rate: f64,
    /// Chooses the part.
    pub seed: u64,
    /// How many of those it is for are spared first.
    pub after: u64,
    /// How often at most.
    pub times: Option<u64>,
}

impl Default for Which {
    fn default() -> Which {
        Which {
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

/// Rules of a disk, of each kind.
pub const RULES_MAX: usize = 64;

/// What a request meets with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strike {
    pub(crate) delay: Duration,
    pub(crate) errno: Option<i32>,
}

/// The injections of a disk at work: with each rule, how many requests it was for and how often it
/// struck. All queues of the disk count together.
#[derive(Debug)]
pub(crate) struct Injector {
    delays: Vec<(DelayRule, Tally)>,
    errors: Vec<(ErrorRule, Tally)>,
}

#[derive(Debug, Default)]
struct Tally {
    matched: AtomicU64,
    struck: AtomicU64,
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

    /// What a request meets with; nothing as a rule.
    pub(crate) fn strike(&self, request: &Request) -> Option<Strike> {
        if self.delays.is_empty() && self.errors.is_empty() {
            return None;
        }
        let strikes = |which: &Which, tally: &Tally| which.strikes(request, tally);
        let delay = self.delays.iter().find(|(rule, t)| strikes(&rule.which, t));
        let error = self.errors.iter().find(|(rule, t)| strikes(&rule.which, t));
        (delay.is_some() || error.is_some()).then(|| Strike {
            delay: delay.map_or(Duration::ZERO, |(rule, _)| rule.delay),
            errno: error.map(|(rule, _)| rule.errno),
        })
    }
}

impl Which {
    fn strikes(&self, request: &Request, tally: &Tally) -> bool {
        if !self.is_for(request) {
            return false;
        }
        let number = tally.matched.fetch_add(1, Ordering::Relaxed);
        let chosen = number >= self.after && chance(self.seed, number) < self.rate;
        chosen
            && self
                .times
                .is_none_or(|times| tally.struck.fetch_add(1, Ordering::Relaxed) < times)
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

/// A number from 0 up to 1 for each `number`, the same each time: SplitMix64 (Steele, Lea, Flood: Fast
/// splittable pseudorandom number generators, OOPSLA 2014), entered at its `number`th step.
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
        let (what, which) = parts(text, "a delay, as in `5ms,op=w`")?;
        let delay = span(what)?;
        Ok(DelayRule { delay, which })
    }
}

impl FromStr for ErrorRule {
    type Err = String;

    fn from_str(text: &str) -> Result<ErrorRule, String> {
        let (what, which) = parts(text, "an error, as in `EIO,op=r`")?;
        let errno = errno(what)?;
        Ok(ErrorRule { errno, which })
    }
}

/// The first word, and what the others say.
fn parts<'a>(text: &'a str, expected: &str) -> Result<(&'a str, Which), String> {
    let mut words = text.split(',').map(str::trim);
    let what = words
        .next()
        .filter(|word| !word.is_empty() && !word.contains('='));
    let what = what.ok_or_else(|| format!("expected {expected}"))?;
    let mut which = Which::default();
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key.trim() {
            "op" => which.ops = ops(value.trim())?,
            "sectors" => which.sectors = Some(sectors(value.trim())?),
            "rate" => which.rate = rate(value.trim())?,
            "seed" => which.seed = number(value, "seed")?,
            "after" => which.after = number(value, "after")?,
            "times" => which.times = Some(number(value, "times")?),
            _ => {
                let known = "op=, sectors=, rate=, seed=, after= and times=";
                return Err(format!("`{word}`: expected one of {known}"));
            }
        }
    }
    Ok((what, which))
}

fn number(text: &str, key: &str) -> Result<u64, String> {
    let parsed = text.trim().parse();
    parsed.map_err(|_| format!("`{key}={text}`: expected a number, as in `{key}=7`"))
}

fn ops(text: &str) -> Result<Vec<Op>, String> {
    let unknown = || format!("`op={text}`: expected letters of r, w, f, d and z, as in `op=rw`");
    let letters = text.chars();
    let ops = letters.map(|c| Op::from_letter(c.encode_utf8(&mut [0; 4])));
    let ops: Option<Vec<Op>> = ops.collect();
    ops.filter(|ops| !ops.is_empty()).ok_or_else(unknown)
}

fn sectors(text: &str) -> Result<Range<u64>, String> {
    let expected = || format!("`sectors={text}`: expected a range, as in `sectors=2048..4096`");
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
        format!("`rate={text}`: expected a part, as in `rate=1%` or `rate=0.01`, at most all")
    })
}

const SPANS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];

fn span(text: &str) -> Result<Duration, String> {
    let expected =
        || format!("`{text}`: expected a time up to 3600s with ns, us, ms or s, as in `5ms`");
    // `ms` ends in `s` too, so the longer units come first.
    let unit = SPANS.iter().find(|(unit, _)| text.ends_with(unit));
    let (unit, nanos) = unit.ok_or_else(expected)?;
    let count = text[..text.len() - unit.len()].trim().parse::<f64>();
    let count = count.map_err(|_| expected())?;
    let delay = Duration::try_from_secs_f64(count * nanos / 1e9).map_err(|_| expected())?;
    (delay <= DELAY_MAX).then_some(delay).ok_or_else(expected)
}

/// What disks fail with, by the names of errno(3).
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

    /// Which of `count` equal requests are struck.
    fn struck(injector: &Injector, request: &Request, count: usize) -> Vec<usize> {
        let numbers = 0..count;
        numbers
            .filter(|_| injector.strike(request).is_some())
            .collect()
    }

    #[test]
    fn a_rate_strikes_its_part_and_the_same_requests_each_time() {
        let read = request(Op::Read, 0, 8);
        let first = struck(&errors(&["EIO,rate=10%,seed=7"]), &read, 10_000);
        let again = struck(&errors(&["EIO,rate=0.1,seed=7"]), &read, 10_000);
        assert_eq!(first, again);
        // Of 10,000 tries with a tenth, the deviation is 30; this is ten of them.
        assert!((700..1300).contains(&first.len()), "{}", first.len());
        let other = struck(&errors(&["EIO,rate=10%,seed=8"]), &read, 10_000);
        assert_ne!(first, other);
    }

    #[test]
    fn all_and_none_are_rates_too() {
        let read = request(Op::Read, 0, 8);
        assert_eq!(struck(&errors(&["EIO,rate=100%"]), &read, 500).len(), 500);
        assert_eq!(struck(&errors(&["EIO,rate=0"]), &read, 500).len(), 0);
    }

    #[test]
    fn a_rule_is_for_its_operations_and_sectors() {
        let injector = errors(&["EIO,op=wz,sectors=100..200"]);
        let strikes =
            |op, sector, sectors| injector.strike(&request(op, sector, sectors)).is_some();
        assert!(strikes(Op::Write, 92, 9));
        assert!(!strikes(Op::Write, 92, 8));
        assert!(strikes(Op::WriteZeroes, 199, 1));
        assert!(!strikes(Op::Write, 200, 1));
        assert!(!strikes(Op::Read, 150, 1));
        let anywhere = errors(&["EIO"]);
        assert!(anywhere.strike(&request(Op::Flush, 0, 0)).is_some());
        let somewhere = errors(&["EIO,sectors=0.."]);
        assert!(somewhere.strike(&request(Op::Flush, 0, 0)).is_none());
    }

    #[test]
    fn the_hundredth_alone() {
        let write = request(Op::Write, 0, 8);
        let injector = errors(&["EIO,op=w,after=99,times=1"]);
        assert_eq!(struck(&injector, &write, 1000), [99]);
    }

    #[test]
    fn the_first_rule_that_strikes_counts() {
        let injector = errors(&["ENOSPC,op=w,times=1", "EIO"]);
        let write = request(Op::Write, 0, 8);
        let errno = || injector.strike(&write).and_then(|strike| strike.errno);
        assert_eq!([errno(), errno()], [Some(libc::ENOSPC), Some(libc::EIO)]);
    }

    #[test]
    fn what_is_no_rule_is_told_with_what_is() {
        let delay = |text: &str| text.parse::<DelayRule>().unwrap_err();
        let error = |text: &str| text.parse::<ErrorRule>().unwrap_err();
        assert_eq!(delay("op=w"), "expected a delay, as in `5ms,op=w`");
        assert_eq!(
            delay("5"),
            "`5`: expected a time up to 3600s with ns, us, ms or s, as in `5ms`"
        );
        assert!(delay("2h").contains("3600s"));
        assert!(delay("-1ms").contains("expected a time"));
        assert!(delay("3601s").contains("expected a time"));
        assert!(delay("5ms,op=x").contains("letters of r, w, f, d and z"));
        assert!(delay("5ms,rate=2").contains("at most all"));
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
