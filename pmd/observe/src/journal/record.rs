//! A line of the journal: one attempt to move a queue pair, or one move that it made by itself.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the journal's lines; a reader refuses newer ones.
pub const VERSION: u32 = 1;

/// A line of `journal.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// The first one.
    Head {
        /// [`VERSION`].
        journal: u32,
    },
    /// Records that were overwritten before anybody read them, or that the file had no room for.
    Lost {
        /// How many.
        lost: u64,
    },
    /// What happened.
    Record(Box<Record>),
}

/// An attempt to move a queue pair, refused ones included, or a move that it made by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When, in microseconds since 1970 (UTC).
    pub at_us: u64,
    /// The device, by its name.
    pub device: String,
    /// Which lcore of the device.
    pub lcore: u32,
    /// The queue pair's number.
    pub qpn: u32,
    /// `RC`, `UC`, `UD`, `XRC_INI` or `XRC_TGT`.
    pub transport: String,
    /// The state it left, or stays in.
    pub from: String,
    /// The state it was to enter.
    pub to: String,
    /// Who or what moved it.
    pub cause: Cause,
    /// The attribute mask, bits of `enum ibv_qp_attr_mask`; 0 where nobody called.
    #[serde(default)]
    pub mask: u32,
    /// What the mask names, by the names of `struct ibv_qp_attr`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attrs: BTreeMap<String, Attr>,
    /// Why it did not move; none where it did.
    pub refused: Option<Refusal>,
}

/// Who or what moved a queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Who.
    pub by: By,
    /// The status of a completion, or the name of an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// The number of that status, of `enum ibv_wc_status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u8>,
}

/// Who moved a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// A modify call of the program.
    #[default]
    Modify,
    /// A modify call that brings a connection up.
    Connect,
    /// A modify call of recovery.
    Recovery,
    /// A modify call that ends a connection.
    Close,
    /// The device: a request of this queue pair ended in error.
    Completion,
    /// The device: what an asynchronous event tells.
    Event,
    /// The device: the peer sent what this queue pair refuses.
    Peer,
}

impl By {
    /// The name in text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Modify => "modify",
            Self::Connect => "connect",
            Self::Recovery => "recovery",
            Self::Close => "close",
            Self::Completion => "completion",
            Self::Event => "event",
            Self::Peer => "peer",
        }
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Attr {
    /// A number.
    Number(u64),
    /// A name, an address, or that it is not shown.
    Text(String),
}

impl Attr {
    /// The number, if it is one.
    pub const fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }
}

/// Why a queue pair stays where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What verbs return: `EINVAL` for everything that is wrong with a call.
    pub errno: String,
    /// The words of the error.
    pub reason: String,
    /// Attributes that were not given, by the names of `struct ibv_qp_attr`.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Attributes that do not belong there.
    #[serde(default)]
    pub illegal: Vec<String>,
    /// States that were skipped.
    #[serde(default)]
    pub skipped: Vec<String>,
}

impl Record {
    /// Whether it tells of trouble: a refusal, or a fall.
    pub fn is_trouble(&self) -> bool {
        let fell = !matches!(self.cause.by, By::Modify | By::Connect | By::Recovery | By::Close);
        self.refused.is_some() || fell
    }
}

/// One line for people: `08:33:53.123456 soft0/0 RC 0x024001 INIT -> RTR refused (EINVAL), by modify: …`. The time is UTC.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, lcore, qpn, transport, from, to, cause, .. } = self;
        let time = Time(self.at_us);
        write!(f, "{time} {device}/{lcore} {transport} {qpn:#08x} {from} -> {to}")?;
        if let Some(Refusal { errno, .. }) = &self.refused {
            write!(f, " refused ({errno})")?;
        }
        write!(f, ", by {}", cause.by.as_str())?;
        if let Some(what) = &cause.what {
            write!(f, " {what}")?;
        }
        if let Some(refusal) = &self.refused {
            write!(f, ": {}", refusal.reason)?;
            let lists = [("missing", &refusal.missing), ("illegal", &refusal.illegal)];
            for (what, names) in lists {
                if !names.is_empty() {
                    write!(f, "; {what}: {}", names.join(" "))?;
                }
            }
            if !refusal.skipped.is_empty() {
                write!(f, "; skipped: {}", refusal.skipped.join(" "))?;
            }
        }
        let mut separator = if self.refused.is_some() { "; given: " } else { ": " };
        for (name, value) in self.attrs.iter().filter(|(name, _)| *name != "qp_state") {
            write!(f, "{separator}{name}=")?;
            match value {
                Attr::Number(number) if is_24_bits(name) => write!(f, "{number:#08x}")?,
                Attr::Number(number) if *name == "qp_access_flags" => write!(f, "{number:#x}")?,
                Attr::Number(number) => write!(f, "{number}")?,
                Attr::Text(text) => f.write_str(text)?,
            }
            separator = " ";
        }
        Ok(())
    }
}

/// Queue pair and packet numbers, written as everywhere else.
fn is_24_bits(name: &str) -> bool {
    matches!(name, "rq_psn" | "sq_psn" | "dest_qp_num")
}

/// The time of day, UTC.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, us) = (self.0 / 1_000_000 % 86_400, self.0 % 1_000_000);
        write!(f, "{:02}:{:02}:{:02}.{us:06}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Record {
        Record {
            at_us: (8 * 3600 + 33 * 60 + 53) * 1_000_000 + 42,
            device: "soft0".into(),
            lcore: 1,
            qpn: 0x02_4001,
            transport: "RC".into(),
            from: "INIT".into(),
            to: "RTR".into(),
            mask: 1 | 4096,
            attrs: BTreeMap::from([
                ("qp_state".into(), Attr::Text("RTR".into())),
                ("rq_psn".into(), Attr::Number(0x20_0000)),
            ]),
            refused: Some(Refusal {
                errno: "EINVAL".into(),
                reason: "RC INIT -> RTR: missing".into(),
                missing: vec!["ah_attr".into(), "path_mtu".into()],
                ..Refusal::default()
            }),
            ..Record::default()
        }
    }

    /// S2-13: time, queue pair, both states, mask, attributes, result, device and cause, in one line.
    #[test]
    fn s2_13_a_line_says_all_of_it() {
        assert_eq!(
            refused().to_string(),
            "08:33:53.000042 soft0/1 RC 0x024001 INIT -> RTR refused (EINVAL), by modify: RC INIT -> RTR: missing; \
             missing: ah_attr path_mtu; given: rq_psn=0x200000"
        );
        let fell = Record {
            from: "RTS".into(),
            to: "ERR".into(),
            cause: Cause { by: By::Completion, what: Some("12".into()), status: Some(12) },
            attrs: BTreeMap::new(),
            refused: None,
            ..refused()
        };
        assert_eq!(
            fell.to_string(),
            "08:33:53.000042 soft0/1 RC 0x024001 RTS -> ERR, by completion 12"
        );
        assert!(fell.is_trouble() && refused().is_trouble());
    }

    #[test]
    fn lines_are_told_apart_by_their_keys() {
        let back = |line: &Line| {
            let json = serde_json::to_string(line).unwrap();
            assert_eq!(&serde_json::from_str::<Line>(&json).unwrap(), line, "{json}");
            json
        };
        assert_eq!(back(&Line::Head { journal: VERSION }), r#"{"journal":1}"#);
        assert_eq!(back(&Line::Lost { lost: 3 }), r#"{"lost":3}"#);
        let json = back(&Line::Record(Box::new(refused())));
        assert!(json.contains(r#""cause":{"by":"modify"}"#), "{json}");
        assert!(json.contains(r#""attrs":{"qp_state":"RTR","rq_psn":2097152}"#), "{json}");
        let newer: Line = serde_json::from_str(r#"{"journal":2,"more":"keys"}"#).unwrap();
        assert_eq!(newer, Line::Head { journal: 2 });
    }
}
