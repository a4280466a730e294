//! [`unseen_max`]: how many requests of a load a probe may fail to see.

/// The maximum number of unseen completions of a load of this many requests.
///
/// Kernels of protected machines run some completions in a thread that no program can observe. They
/// occur in bursts as deep as a queue, the more the busier that thread is; on an idle machine they
/// are fewer than one in 5,000. Never more than 2 % of the load.
pub fn unseen_max(requests: u64) -> u64 {
    (128 + requests / 1_000).min(requests / 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_loads_have_a_relative_bound_and_large_ones_an_absolute_one() {
        let bounds = [0, 49, 512, 6_400, 10_000, 1_000_000].map(unseen_max);
        assert_eq!(bounds, [0, 0, 10, 128, 138, 1_128]);
    }
}
