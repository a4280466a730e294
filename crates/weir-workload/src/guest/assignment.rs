//! The only assignment of two sets to each other, if there is only one.

/// The only way to give each left one of the `rights` so that each of these is used once; `None` if
/// there is none or several. `edges[i]` are the positions that left `i` may have.
///
/// A bipartite graph with exactly one perfect matching has a node with one edge, and what remains
/// without that pair has again exactly one. So pairs of nodes with one edge are removed until
/// nothing is left.
pub fn only_assignment(edges: &[Vec<usize>], rights: usize) -> Option<Vec<usize>> {
    if edges.len() != rights {
        return None;
    }
    let mut assigned: Vec<Option<usize>> = vec![None; edges.len()];
    let mut used = vec![false; rights];
    for _ in 0..rights {
        let (left, right) = single(edges, &assigned, &used)?;
        assigned[left] = Some(right);
        used[right] = true;
    }
    assigned.into_iter().collect()
}

/// A remaining edge of a left or right node that has no other one; `None` if there is none.
fn single(
    edges: &[Vec<usize>],
    assigned: &[Option<usize>],
    used: &[bool],
) -> Option<(usize, usize)> {
    let mut of_right: Vec<(usize, usize)> = vec![(0, 0); used.len()];
    for (left, rights) in edges.iter().enumerate() {
        if assigned[left].is_some() {
            continue;
        }
        let mut free = rights.iter().copied().filter(|right| !used[*right]);
        let first = free.next()?;
        if free.next().is_none() {
            return Some((left, first));
        }
        for right in rights.iter().filter(|right| !used[**right]) {
            of_right[*right] = (of_right[*right].0 + 1, left);
        }
    }
    let mut of_right = of_right.into_iter().enumerate();
    let found = of_right.find(|(right, (count, _))| !used[*right] && *count == 1);
    found.map(|(right, (_, left))| (left, right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All assignments, by trying each.
    fn all(edges: &[Vec<usize>], used: &mut Vec<bool>, chosen: &mut Vec<usize>) -> Vec<Vec<usize>> {
        let Some(rights) = edges.get(chosen.len()) else {
            return vec![chosen.clone()];
        };
        let mut found = Vec::new();
        for &right in rights {
            if !used[right] {
                used[right] = true;
                chosen.push(right);
                found.extend(all(edges, used, chosen));
                chosen.pop();
                used[right] = false;
            }
        }
        found
    }

    proptest! {
        #[test]
        fn it_is_the_only_one_of_all(
            (rights, bits) in (1..6usize)
                .prop_flat_map(|n| (Just(n), prop::collection::vec(0..64u8, n)))
        ) {
            let edges: Vec<Vec<usize>> = bits
                .iter()
                .map(|bits| (0..rights).filter(|at| bits >> at & 1 == 1).collect())
                .collect();
            let every = all(&edges, &mut vec![false; rights], &mut Vec::new());
            let expected = (every.len() == 1).then(|| every[0].clone());
            prop_assert_eq!(only_assignment(&edges, rights), expected);
        }
    }

    #[test]
    fn numbers_must_be_equal() {
        assert_eq!(only_assignment(&[vec![0], vec![0]], 1), None);
        assert_eq!(only_assignment(&[vec![0, 1]], 2), None);
        assert_eq!(only_assignment(&[], 0), Some(vec![]));
    }
}
