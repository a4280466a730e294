//! Suggests the known name that is nearest to an unknown one.

/// The candidate nearest to `word` in edit distance, if at most a third of its letters differ. Case
/// is ignored. Of equally near ones the first.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A longer word is not a misspelt name; comparing it would only cost time.
    const LENGTH_MAX: usize = 64;
    let word: Vec<char> = word.to_lowercase().chars().collect();
    if word.len() > LENGTH_MAX {
        return None;
    }
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let letters: Vec<char> = candidate.to_lowercase().chars().collect();
        if letters.len() > LENGTH_MAX {
            continue;
        }
        let longer = word.len().max(letters.len());
        let allowed = (longer / 3).max(1).min(word.len().saturating_sub(1));
        let distance = distance(&word, &letters);
        if distance <= allowed && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// The number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`
/// (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let one_off = rows[i - 1][j].min(rows[i][j - 1]) + 1;
                    let swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    let swapped = if swap {
                        rows[i - 2][j - 2] + 1
                    } else {
                        usize::MAX
                    };
                    replaced.min(one_off).min(swapped)
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_matched_and_unrelated_words_are_not() {
        let names = ["avg", "count", "latency", "op"];
        assert_eq!(nearest("avrg", names), Some("avg"));
        assert_eq!(nearest("LATNECY", names), Some("latency"));
        assert_eq!(nearest("cuont", names), Some("count"));
        assert_eq!(nearest("device", names), None);
        assert_eq!(nearest("x", names), None);
    }
}
