//! Distinct keys: the estimate is within the error, for one sketch and for merged ones.

use proptest::prelude::*;
use weir_sketch::Distinct;

fn distinct(keys: impl IntoIterator<Item = u64>) -> Distinct {
    let mut distinct = Distinct::default();
    keys.into_iter().for_each(|key| distinct.add(key));
    distinct
}

#[test]
fn distinct_keys_are_counted_within_the_error() {
    assert_eq!(Distinct::default().count(), 0.0);
    let mut squares = 0.0;
    let mut runs = 0.0;
    for power in 0..7 {
        for run in 0..6u64 {
            let keys = 10u64.pow(power);
            let first = run * 1_000_000_007;
            let estimate = distinct((first..first + keys).chain(first..first + keys / 2)).count();
            let off = estimate / keys as f64 - 1.0;
            assert!(off.abs() < 4.0 * Distinct::ERROR, "{estimate} for {keys}");
            squares += off * off;
            runs += 1.0;
        }
    }
    let deviation = f64::sqrt(squares / runs);
    assert!(deviation < 1.3 * Distinct::ERROR, "{deviation}");
}

proptest! {
    #[test]
    fn merged_sets_are_the_union(a in prop::collection::vec(0u64..5_000, 0..500), b in prop::collection::vec(0u64..5_000, 0..500)) {
        let mut both = distinct(a.iter().copied());
        both.merge(&distinct(b.iter().copied()));
        prop_assert_eq!(both, distinct([a, b].concat()));
    }
}
