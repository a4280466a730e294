//! Holm's correction for several comparisons: Holm, A simple sequentially rejective multiple test
//! procedure, Scandinavian Journal of Statistics 6 (1979).

/// The adjusted p-values, in the order of `p_values`: a comparison with an adjusted value of at
/// most the level is significant, and the probability of any false one is at most the level.
pub fn adjusted(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut result = vec![1.0; p_values.len()];
    let mut largest: f64 = 0.0;
    for (position, &index) in order.iter().enumerate() {
        let remaining = (p_values.len() - position) as f64;
        largest = largest.max((remaining * p_values[index]).min(1.0));
        result[index] = largest;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_is_multiplied_most_and_none_is_below_a_smaller_one() {
        let found = adjusted(&[0.04, 0.01, 0.03, 0.9]);
        let expected = [0.09, 0.04, 0.09, 0.9];
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() < 1e-12, "{found:?}");
        }
        assert_eq!(adjusted(&[]), Vec::<f64>::new());
    }
}
