//! [`nearest`]: the known name that is most similar to an unknown one.

use strsim::osa_distance;

/// Longer words are not compared: they are not typos of names.
const CHARS_MAX: usize = 64;

/// The candidate with the lowest edit distance (optimal string alignment) from `word`, if at most a
/// third of its characters differ. Case is ignored; of candidates with equal distance the first.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let chars = word.chars().count();
    let near = |candidate: &'a str| {
        let name = candidate.to_lowercase();
        let longer = chars.max(name.chars().count());
        let allowed = (longer / 3).max(1).min(chars.saturating_sub(1));
        let distance = (longer <= CHARS_MAX).then(|| osa_distance(&word, &name))?;
        (distance <= allowed).then_some((distance, candidate))
    };
    let near = candidates.into_iter().filter_map(near);
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_find_their_word_and_strangers_none() {
        let names = ["avg", "count", "latency", "op"];
        assert_eq!(nearest("avrg", names), Some("avg"));
        assert_eq!(nearest("LATNECY", names), Some("latency"));
        assert_eq!(nearest("cuont", names), Some("count"));
        assert_eq!(nearest("device", names), None);
        assert_eq!(nearest("x", names), None);
    }
}
