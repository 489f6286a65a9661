//! Keys that take one of a few words, with what each word means.

use pmd_lcore::Idle;
use pmd_mem::{Hugepages, Memlock, NumaPolicy};

/// Words and their meanings.
pub(crate) type Words<T> = [(&'static str, T)];

/// `memory.hugepages`.
pub(crate) const HUGEPAGES: &Words<Hugepages> = &[
    ("auto", Hugepages::Auto),
    ("1GiB", Hugepages::Size1G),
    ("2MiB", Hugepages::Size2M),
    ("none", Hugepages::None),
    ("require", Hugepages::Require),
];

/// `memory.numa`.
pub(crate) const NUMA: &Words<NumaPolicy> =
    &[("prefer", NumaPolicy::Prefer), ("strict", NumaPolicy::Strict)];

/// `memory.memlock`.
pub(crate) const MEMLOCK: &Words<Memlock> =
    &[("check", Memlock::Check), ("strict", Memlock::Strict)];

/// `idle` of an lcore.
pub(crate) const IDLE: &Words<Idle> = &[
    ("adaptive", Idle::Adaptive),
    ("spin", Idle::Spin),
    ("pause", Idle::Pause),
    ("yield", Idle::Yield),
    ("sleep", Idle::Sleep),
];

/// The words alone.
pub(crate) fn all<T>(words: &Words<T>) -> Vec<&'static str> {
    words.iter().map(|(word, _)| *word).collect()
}

/// What a word means.
pub(crate) fn meaning<T: Copy>(words: &Words<T>, word: &str) -> Option<T> {
    words.iter().find(|(known, _)| *known == word).map(|(_, meaning)| *meaning)
}

/// The word for a meaning.
pub(crate) fn word<T: PartialEq>(words: &Words<T>, meaning: &T) -> &'static str {
    words.iter().find(|(_, known)| known == meaning).map_or("", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_crates_below() {
        assert!(IDLE.iter().all(|(word, idle)| idle.as_str() == *word));
        assert_eq!(IDLE.len(), Idle::ALL.len());
        assert!(HUGEPAGES.iter().all(|(word, hugepages)| hugepages.to_string() == *word));
    }
}
