//! Keys that take one of a few words, as enums.

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $word:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every word that the config takes.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];

            /// The word that the config takes.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// The value of a word; `None` for any other text.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    )*};
}

words! {
    /// Which pages memory is made of.
    Hugepages {
        /// The largest that are free, down to small ones.
        Auto => "auto",
        /// 1 GiB pages and no others.
        OneGib => "1GiB",
        /// 2 MiB pages and no others.
        TwoMib => "2MiB",
        /// Small pages.
        None => "none",
        /// Hugepages of any size; small ones are refused.
        Require => "require",
    }

    /// Where memory may lie.
    Numa {
        /// On the NUMA node of the lcore that uses it, else elsewhere.
        Prefer => "prefer",
        /// On the NUMA node of the lcore that uses it.
        Strict => "strict",
    }

    /// What RLIMIT_MEMLOCK means.
    Memlock {
        /// It is compared and warned about.
        Check => "check",
        /// It is enforced, as the driver of a NIC would.
        Strict => "strict",
    }

    /// What an lcore does when there is no work.
    Idle {
        /// Spins, then pauses, then yields, then sleeps, the longer there is nothing.
        Adaptive => "adaptive",
        /// Polls on.
        Spin => "spin",
        /// Polls with the CPU's pause instruction between.
        Pause => "pause",
        /// Gives the CPU away between polls.
        Yield => "yield",
        /// Sleeps a little between polls.
        Sleep => "sleep",
    }
}
