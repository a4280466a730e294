//! The recommended cache size, from the miss-ratio curve.
//!
//! The curve gives the hits of an LRU cache in front of the storage, below any cache in the VM,
//! whose hits are not observed. The recommended size is the smallest that gets nearly all hits any
//! cache could have had in the observed time; there is none if the hits grow evenly up to the whole
//! working set.

use super::Conclusion;
use crate::analysis::reuse::{CacheSize, Reuse};
use crate::evidence::{Confidence, Evidence, REQUESTS_LOW};
use crate::profile::Profile;

/// The share of the possible hits at which a cache is large enough.
const OF_ATTAINABLE: f64 = 0.9;

/// The smallest useful share of hits.
const HITS_MIN: f64 = 0.1;

/// A cache of this share of the working set holds the working set.
const OF_WORKING_SET: f64 = 0.5;

/// The largest error of a miss ratio for any conclusion, and for a confident one.
const ERRORS: [f64; 2] = [0.1, 0.02];

/// Evaluates the curve: of reads if there are enough of them, else of writes, which a cache may
/// delay.
pub fn statement(profile: &Profile) -> Conclusion {
    let Some(reuse) = &profile.reuse else {
        return Conclusion::Unknown("there are no reads or writes".into());
    };
    let of_reads = reuse.read_touches >= REQUESTS_LOW;
    let point = |size: &CacheSize| match (size.read_miss_ratio, size.read_miss_ratio_error) {
        (Some(ratio), Some(error)) if of_reads => (1.0 - ratio, error),
        _ => (1.0 - size.miss_ratio, size.miss_ratio_error),
    };
    let Some(largest) = reuse.curve.last() else {
        return Conclusion::Unknown("no block was accessed".into());
    };
    let (most, _) = point(largest);
    let enough = reuse
        .curve
        .iter()
        .find(|size| point(size).0 >= OF_ATTAINABLE * most);
    let enough = enough.unwrap_or(largest);
    let (hits, error) = point(enough);
    if error > ERRORS[0] {
        return Conclusion::Unknown(format!(
            "the error of the miss ratio is {error:.2}; increase --memory or the observation time"
        ));
    }
    let what = if of_reads {
        "reads"
    } else {
        "reads and writes"
    };
    let touches = if of_reads {
        reuse.read_touches
    } else {
        reuse.touches
    };
    let mut evidence = evidence(reuse, enough, [hits, error, most], touches);
    let confidence = confidence(touches, error);
    let size = shown(enough.cache_bytes as f64);
    if most < HITS_MIN {
        // There is no size to report if no cache is useful.
        evidence.retain(|e| !["cache_bytes", "hit_ratio"].contains(&e.name));
        let text = format!(
            "a cache has no benefit: {:.0} % of the blocks of {what} had been accessed before in \
             the observed time",
            100.0 * most
        );
        // A longer observation might show reuse that this one misses.
        return Conclusion::Do(text, confidence.min(Confidence::Moderate), evidence);
    }
    let whole = reuse.working_set.bytes;
    if enough.cache_bytes as f64 >= OF_WORKING_SET * whole {
        let text = format!(
            "the benefit of a cache grows with its size up to the working set of {}: {size} are \
             needed to hit {:.0} % of {what}",
            shown(whole),
            100.0 * hits
        );
        return Conclusion::Do(text, confidence, evidence);
    }
    let text = format!(
        "a cache of {size} hits {:.0} % of {what}; the maximum for any size is {:.0} %; the \
         working set is {}",
        100.0 * hits,
        100.0 * most,
        shown(whole)
    );
    Conclusion::Do(text, confidence, evidence)
}

fn confidence(touches: u64, error: f64) -> Confidence {
    let of_touches = Confidence::of_requests(touches).unwrap_or(Confidence::Low);
    match error <= ERRORS[1] {
        true => of_touches,
        false => of_touches.min(Confidence::Moderate),
    }
}

fn evidence(
    reuse: &Reuse,
    enough: &CacheSize,
    [hits, error, most]: [f64; 3],
    touches: u64,
) -> Vec<Evidence> {
    vec![
        Evidence::new("cache_bytes", enough.cache_bytes as f64),
        Evidence::new("hit_ratio", hits),
        Evidence::new("hit_ratio_error", error),
        Evidence::new("hit_ratio_max", most),
        Evidence::new("working_set_bytes", reuse.working_set.bytes),
        Evidence::new("touches", touches as f64),
        Evidence::new("sampling_rate", reuse.sampling_rate),
    ]
}

/// A size with three digits.
fn shown(bytes: f64) -> String {
    let power = (bytes.max(1.0).log2() / 10.0).floor().clamp(0.0, 5.0);
    let unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power as usize];
    let scaled = bytes / 1024f64.powf(power);
    match scaled {
        x if x >= 100.0 || x.fract() == 0.0 => format!("{x:.0} {unit}"),
        x => format!("{x:.1} {unit}"),
    }
}
