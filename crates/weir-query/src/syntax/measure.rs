//! The units of numbers in a query: `3 seconds`, `250 ms`, `4 KiB`, `8 sectors`.

use weir_model::{Dimension, NANOS_PER_SECOND, SECTOR_BYTES};

/// A unit as queries write it.
#[derive(Debug, PartialEq, Eq)]
pub struct UnitName {
    /// The name that the printer uses.
    pub name: &'static str,
    /// Synonyms; names are compared without regard to case.
    pub aliases: &'static [&'static str],
    /// What it measures.
    pub dimension: Dimension,
    /// Its size in the dimension's smallest unit (nanosecond, byte).
    pub scale: i64,
}

const fn time(name: &'static str, aliases: &'static [&'static str], scale: i64) -> UnitName {
    let dimension = Dimension::Time;
    UnitName {
        name,
        aliases,
        dimension,
        scale,
    }
}

const fn data(name: &'static str, aliases: &'static [&'static str], scale: i64) -> UnitName {
    let dimension = Dimension::Data;
    UnitName {
        name,
        aliases,
        dimension,
        scale,
    }
}

/// Every unit, small ones first. Units of data follow IEC 80000-13: `KiB` is 1024 bytes, `KB` is
/// 1000.
pub static MEASURES: &[UnitName] = &[
    time("ns", &["nsec", "nanosecond", "nanoseconds"], 1),
    time(
        "us",
        &["µs", "μs", "usec", "microsecond", "microseconds"],
        1_000,
    ),
    time("ms", &["msec", "millisecond", "milliseconds"], 1_000_000),
    time("s", &["sec", "second", "seconds"], NANOS_PER_SECOND),
    time("min", &["m", "minute", "minutes"], 60 * NANOS_PER_SECOND),
    time("h", &["hour", "hours"], 3_600 * NANOS_PER_SECOND),
    time("d", &["day", "days"], 86_400 * NANOS_PER_SECOND),
    data("B", &["byte", "bytes"], 1),
    data("KB", &[], 1_000),
    data("MB", &[], 1_000_000),
    data("GB", &[], 1_000_000_000),
    data("TB", &[], 1_000_000_000_000),
    data("KiB", &[], 1 << 10),
    data("MiB", &[], 1 << 20),
    data("GiB", &[], 1 << 30),
    data("TiB", &[], 1 << 40),
    data("sectors", &["sector"], SECTOR_BYTES),
];

/// The unit called `word`.
pub fn find(word: &str) -> Option<&'static UnitName> {
    let same = |name: &str| name.eq_ignore_ascii_case(word);
    MEASURES
        .iter()
        .find(|m| same(m.name) || m.aliases.iter().any(|a| same(a)))
}
