//! The page ladder: which kinds of pages are tried for a region, in which order.

use core::fmt;
use std::fs;

use crate::limits::{ROUNDING_WASTE_DIVISOR, THP_BYTES};
use crate::{Size, page_size};

/// Which pages a region asks for (`memory.hugepages` in a pipeline).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// The best that is free, down to base pages. A rung whose rounding would waste more than a quarter is passed over.
    #[default]
    Auto,
    /// 1 GiB hugepages or an error.
    Size1G,
    /// 2 MiB hugepages or an error.
    Size2M,
    /// Base pages, and no transparent hugepages either.
    None,
    /// Reserved hugepages of any size, or an error.
    Require,
}

impl fmt::Display for Hugepages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Size1G => "1GiB",
            Self::Size2M => "2MiB",
            Self::None => "none",
            Self::Require => "require",
        })
    }
}

/// A kind of page, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// Reserved 1 GiB hugepages.
    Huge1G,
    /// Reserved 2 MiB hugepages.
    Huge2M,
    /// Base pages, with the kernel advised to join them into transparent hugepages.
    Thp,
    /// Base pages.
    Base,
}

impl Rung {
    /// Bytes that the length of a region is rounded up to.
    pub fn page_bytes(self) -> u64 {
        match self {
            Self::Huge1G => 1 << 30,
            Self::Huge2M => 2 << 20,
            Self::Thp | Self::Base => page_size(),
        }
    }

    /// Whether the pages come from the reserved pools (hugetlb).
    pub const fn is_reserved(self) -> bool {
        matches!(self, Self::Huge1G | Self::Huge2M)
    }

    /// `len` rounded up to whole pages; None beyond 2^64.
    pub fn round_up(self, len: u64) -> Option<u64> {
        len.checked_next_multiple_of(self.page_bytes())
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Huge1G => f.write_str("1 GiB hugepages"),
            Self::Huge2M => f.write_str("2 MiB hugepages"),
            Self::Thp => f.write_str("transparent hugepages"),
            Self::Base => write!(f, "{} pages", Size(page_size())),
        }
    }
}

/// The rungs to try for `len` bytes, best first. `thp`: whether the kernel gives transparent hugepages to shared memory.
pub fn rungs(hugepages: Hugepages, len: u64, thp: bool) -> Vec<Rung> {
    let fits = |rung: &Rung| match rung {
        Rung::Huge1G | Rung::Huge2M => {
            hugepages == Hugepages::Require
                || rung
                    .round_up(len)
                    .is_some_and(|rounded| rounded - len <= len / ROUNDING_WASTE_DIVISOR)
        }
        Rung::Thp => thp && len >= THP_BYTES,
        Rung::Base => true,
    };
    match hugepages {
        Hugepages::Auto => {
            [Rung::Huge1G, Rung::Huge2M, Rung::Thp, Rung::Base].into_iter().filter(fits).collect()
        }
        Hugepages::Size1G => vec![Rung::Huge1G],
        Hugepages::Size2M => vec![Rung::Huge2M],
        Hugepages::None => vec![Rung::Base],
        // Whatever is reserved will do, but a small region should not eat a whole gigabyte while 2 MiB pages are there.
        Hugepages::Require if len >= Rung::Huge1G.page_bytes() => vec![Rung::Huge1G, Rung::Huge2M],
        Hugepages::Require => vec![Rung::Huge2M, Rung::Huge1G],
    }
}

/// Whether the kernel joins advised pages of a memfd, from `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
pub fn thp_offered() -> bool {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .is_ok_and(|setting| thp_setting_offers(&setting))
}

/// `setting` is the file's content, with the choice in brackets: `always within_size [advise] never deny force`.
pub(crate) fn thp_setting_offers(setting: &str) -> bool {
    ["[always]", "[within_size]", "[advise]", "[force]"]
        .iter()
        .any(|choice| setting.contains(choice))
}

/// The command that reserves `pages` more pages of a rung, on a node or anywhere; None for rungs that need no reservation.
pub fn reserve_command(rung: Rung, node: Option<u32>, pages: u64) -> Option<String> {
    if !rung.is_reserved() {
        return None;
    }
    let kib = rung.page_bytes() >> 10;
    let pools = node.map_or_else(
        || "/sys/kernel/mm".into(),
        |node| format!("/sys/devices/system/node/node{node}"),
    );
    Some(format!(
        "f={pools}/hugepages/hugepages-{kib}kB/nr_hugepages; echo $(($(cat $f) + {pages})) | sudo tee $f"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn auto_goes_down_the_whole_ladder() {
        use Rung::{Base, Huge1G, Huge2M, Thp};
        assert_eq!(rungs(Hugepages::Auto, 4 * GIB, true), [Huge1G, Huge2M, Thp, Base]);
        assert_eq!(rungs(Hugepages::Auto, 256 * MIB, true), [Huge2M, Thp, Base]);
        assert_eq!(rungs(Hugepages::Auto, 256 * MIB, false), [Huge2M, Base]);
        // 1.1 GiB would take two gigabyte pages.
        assert_eq!(rungs(Hugepages::Auto, GIB + 100 * MIB, true), [Huge2M, Thp, Base]);
        assert_eq!(rungs(Hugepages::Auto, 4096, true), [Base]);
    }

    #[test]
    fn explicit_choices_do_not_fall() {
        assert_eq!(rungs(Hugepages::Size1G, MIB, true), [Rung::Huge1G]);
        assert_eq!(rungs(Hugepages::Size2M, 4 * GIB, true), [Rung::Huge2M]);
        assert_eq!(rungs(Hugepages::None, 4 * GIB, true), [Rung::Base]);
        assert_eq!(rungs(Hugepages::Require, 4 * GIB, true), [Rung::Huge1G, Rung::Huge2M]);
        assert_eq!(rungs(Hugepages::Require, 4096, true), [Rung::Huge2M, Rung::Huge1G]);
    }

    #[test]
    fn thp_needs_a_kernel_that_offers_it() {
        assert!(thp_setting_offers("always within_size [advise] never deny force\n"));
        assert!(thp_setting_offers("[always] within_size advise never deny force\n"));
        assert!(!thp_setting_offers("always within_size advise [never] deny force\n"));
        assert!(!thp_setting_offers("always within_size advise never [deny] force\n"));
    }

    #[test]
    fn rounding_does_not_overflow() {
        assert_eq!(Rung::Huge2M.round_up(2 * MIB + 1), Some(4 * MIB));
        assert_eq!(Rung::Huge1G.round_up(u64::MAX), None);
        assert_eq!(rungs(Hugepages::Auto, u64::MAX, false), [Rung::Base]);
    }
}
