//! The word someone may have meant.

use crate::limits::SUGGEST_DISTANCE_PER_THREE;

/// The candidate nearest to `word`, if one is near enough to be a slip of the fingers.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let limit = (word.chars().count() * SUGGEST_DISTANCE_PER_THREE / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many characters must be added, dropped, changed or swapped with their neighbour to get from `a` to `b`
/// (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let same = a[i - 1] == b[j - 1];
            row[j] = (above[j] + 1).min(row[j - 1] + 1).min(above[j - 1] + usize::from(!same));
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("dpeth", "depth"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn slips_are_suggested_and_strangers_are_not() {
        let keys = ["depth", "device", "lcore", "cq_depth", "to"];
        assert_eq!(nearest("dpeth", keys), Some("depth"));
        assert_eq!(nearest("Depth", keys), Some("depth"));
        assert_eq!(nearest("lcor", keys), Some("lcore"));
        assert_eq!(nearest("cq-depth", keys), Some("cq_depth"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("xy", keys), None);
    }
}
