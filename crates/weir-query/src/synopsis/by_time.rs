//! Merges two inputs by timestamp.

/// The rows of `left` (0, 1, ..) and of `right` (numbered on from there) in timestamp order, the
/// left's first in an instant.
pub(crate) fn merge(left: &[i64], right: &[i64]) -> Vec<u32> {
    let mut order = Vec::with_capacity(left.len() + right.len());
    let (mut l, mut r) = (0, 0);
    while l < left.len() && r < right.len() {
        if left[l] <= right[r] {
            order.push(l as u32);
            l += 1;
        } else {
            order.push((left.len() + r) as u32);
            r += 1;
        }
    }
    order.extend(l as u32..left.len() as u32);
    order.extend((left.len() + r) as u32..(left.len() + right.len()) as u32);
    order
}
