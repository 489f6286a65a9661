//! The words behind `do`.

use pmd_graph::config::suggest;
use pmd_graph::config::units::parse_time;
use pmd_sim::Act;

use super::keys::DEEDS;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Something happens to frames.
    Frames(Act),
    /// Nothing passes between two hosts.
    Partition,
    /// A host has no turn.
    Pause,
    /// A host posts no receives.
    StopRecv,
    /// A host takes no completions.
    StopPoll,
    /// A completion queue fails.
    KillCq,
    /// A shared receive queue fails.
    KillSrq,
    /// A device fails.
    KillDevice,
    /// A port goes down, and comes up at the end.
    PortDown,
    /// A port comes up.
    PortUp,
    /// An address moves to the next vacant index of its table.
    MoveGid,
    /// A host dies.
    KillHost,
    /// Send queues are drained.
    Drain,
    /// A bit of one stored byte changes; its place among the bytes of a connection's requests.
    Flip(u64),
}

/// Why a text is no deed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoDeed {
    pub(super) reason: String,
    pub(super) meant: Option<String>,
}

impl Deed {
    /// Reads `drop`, `delay 5ms`, `kill-cq`.
    pub(super) fn parse(text: &str) -> Result<Self, NoDeed> {
        let mut words = text.split_whitespace();
        let word = words.next().unwrap_or_default();
        let deed = match word {
            "drop" => Self::Frames(Act::Drop),
            "delay" => {
                let time = words.next().ok_or_else(|| NoDeed {
                    reason: "a delay says how long".to_owned(),
                    meant: Some("delay 5ms".to_owned()),
                })?;
                let time = parse_time(time).map_err(|error| NoDeed {
                    reason: error.reason,
                    meant: error.meant.map(|meant| format!("delay {meant}")),
                })?;
                Self::Frames(Act::Delay(time))
            }
            "dup" => Self::Frames(Act::Duplicate),
            "reorder" => Self::Frames(Act::Reorder),
            "corrupt" => Self::Frames(Act::Corrupt),
            "partition" => Self::Partition,
            "pause" => Self::Pause,
            "stop-recv" => Self::StopRecv,
            "stop-poll" => Self::StopPoll,
            "kill-cq" => Self::KillCq,
            "kill-srq" => Self::KillSrq,
            "kill-device" => Self::KillDevice,
            "port-down" => Self::PortDown,
            "port-up" => Self::PortUp,
            "move-gid" => Self::MoveGid,
            "kill-host" => Self::KillHost,
            "drain" => Self::Drain,
            "flip" => {
                let place = words.next().and_then(|place| place.parse().ok());
                Self::Flip(place.ok_or_else(|| NoDeed {
                    reason: "a flip says which byte, counted from 0".to_owned(),
                    meant: Some("flip 0".to_owned()),
                })?)
            }
            _ => {
                let meant = suggest::nearest(word, DEEDS).map(str::to_owned);
                return Err(NoDeed {
                    reason: format!("expected one of {}", DEEDS.join(", ")),
                    meant,
                });
            }
        };
        match words.next() {
            None => Ok(deed),
            Some(more) => Err(NoDeed {
                reason: format!("`{more}` is too much"),
                meant: text.strip_suffix(more).map(|text| text.trim_end().to_owned()),
            }),
        }
    }

    /// Whether it happens to frames between hosts.
    pub const fn is_of_frames(self) -> bool {
        matches!(self, Self::Frames(_) | Self::Partition)
    }

    /// Whether it takes time, so that it may end.
    pub const fn lasts(self) -> bool {
        matches!(
            self,
            Self::Frames(_)
                | Self::Partition
                | Self::Pause
                | Self::StopRecv
                | Self::StopPoll
                | Self::PortDown
                | Self::Drain
        )
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn every_word_is_a_deed() {
        for word in DEEDS {
            let text = match word {
                "delay" => "delay 5ms".to_owned(),
                "flip" => "flip 17".to_owned(),
                word => word.to_owned(),
            };
            assert!(Deed::parse(&text).is_ok(), "{text}");
        }
        assert_eq!(
            Deed::parse("delay 5ms"),
            Ok(Deed::Frames(Act::Delay(Duration::from_millis(5))))
        );
        assert_eq!(Deed::parse("dorp").unwrap_err().meant.as_deref(), Some("drop"));
        assert_eq!(Deed::parse("delay 5").unwrap_err().meant, None);
        assert_eq!(Deed::parse("drop all").unwrap_err().meant.as_deref(), Some("drop"));
    }
}
