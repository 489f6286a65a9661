//! Faults that a run is given, as the command line writes them.
//!
//! `flip NODE OFFSET` changes one stored byte of a `block-target` or `kv-server`, `hang NODE [after N]` has the store of a
//! `block-target` answer nothing any more. Everything else disturbs frames, and is read by the device library: `drop|delay T|dup|corrupt [acks|OPCODE|all] [to NODE|from NODE] [after N] [every N] [count N] [for T] [psn N]`.

use std::str::FromStr;

use pmd_verbs::{FaultText, PlacedFault};
use thiserror::Error;

use crate::config::Peer;
use crate::config::suggest;
use crate::plan::Plan;

/// The kinds of node whose stored bytes can be flipped.
const STORES: [&str; 2] = ["block-target", "kv-server"];

/// A fault.
#[derive(Clone, Debug)]
pub enum Fault {
    /// One stored byte changes.
    Flip(Flip),
    /// A store answers nothing any more.
    Hang(Hang),
    /// Frames are disturbed.
    Packet(FaultText),
}

/// One stored byte of a node changes, after it was committed and before it can be read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    /// The node.
    pub node: String,
    /// The byte: its place in the block-target, or how many bytes of values the kv-server has kept before it.
    pub offset: u64,
}

/// The store of a node takes requests and answers none, as a disk does that hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hang {
    /// The block-target.
    pub node: String,
    /// Requests that it answers before.
    pub after: u64,
}

/// Why a fault is not taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FaultError {
    /// The text is no fault.
    #[error("`{text}` is no fault: {reason}")]
    Syntax {
        /// The text.
        text: String,
        /// What is wrong.
        reason: String,
    },
    /// No node has this name.
    #[error("no node is called `{name}`{}", did_you_mean(suggestion.as_deref()))]
    NoSuchNode {
        /// The name.
        name: String,
        /// A name that may have been meant.
        suggestion: Option<String>,
    },
    /// The node stores nothing.
    #[error("`{name}` stores nothing that could be flipped: name a block-target or kv-server")]
    StoresNothing {
        /// The node.
        name: String,
    },
    /// The node has no store.
    #[error("`{name}` has no store that could hang: name a block-target")]
    HasNoStore {
        /// The node.
        name: String,
    },
}

fn did_you_mean(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(": did you mean `{name}`?"))
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let syntax = |reason: String| FaultError::Syntax { text: text.to_owned(), reason };
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["flip", node, offset] => {
                let offset = offset.parse();
                let offset =
                    offset.map_err(|_| syntax("the offset is a number of bytes".to_owned()))?;
                Ok(Self::Flip(Flip { node: node.to_owned(), offset }))
            }
            ["flip", ..] => Err(syntax("write `flip NODE OFFSET`".to_owned())),
            ["hang", node] => Ok(Self::Hang(Hang { node: node.to_owned(), after: 0 })),
            ["hang", node, "after", after] => {
                let after = after.parse();
                let after = after.map_err(|_| syntax("N is a number of requests".to_owned()))?;
                Ok(Self::Hang(Hang { node: node.to_owned(), after }))
            }
            ["hang", ..] => Err(syntax("write `hang NODE` or `hang NODE after N`".to_owned())),
            _ => {
                let packet = FaultText::parse(text).map_err(|error| syntax(error.to_string()))?;
                Ok(Self::Packet(packet))
            }
        }
    }
}

impl Fault {
    /// Whether the pipeline has what it names.
    ///
    /// # Errors
    /// [`FaultError`], if not.
    pub fn check(&self, plan: &Plan) -> Result<(), FaultError> {
        match self {
            Self::Flip(flip) => {
                let node = plan.nodes.iter().find(|node| node.name == flip.node);
                let node = node.ok_or_else(|| unknown(&flip.node, plan))?;
                if STORES.contains(&node.kind) {
                    Ok(())
                } else {
                    Err(FaultError::StoresNothing { name: flip.node.clone() })
                }
            }
            Self::Hang(hang) => {
                let node = plan.nodes.iter().find(|node| node.name == hang.node);
                match node.ok_or_else(|| unknown(&hang.node, plan))?.kind {
                    "block-target" => Ok(()),
                    _ => Err(FaultError::HasNoStore { name: hang.node.clone() }),
                }
            }
            Self::Packet(fault) => {
                // A node of another process has a name that this one does not know.
                let elsewhere = plan.nodes.iter().any(|node| {
                    node.listen.is_some() || matches!(node.peer, Some(Peer::Remote(_)))
                });
                let names = [&fault.to, &fault.from].into_iter().flatten();
                let mut strange =
                    names.filter(|name| !plan.nodes.iter().any(|node| node.name == **name));
                match strange.next() {
                    Some(name) if !elsewhere => Err(unknown(name, plan)),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// The faults that concern one device, in place: `lcores` are the lcores that use it, in the order of its own numbers.
pub(crate) fn at_device(
    faults: &[FaultText],
    plan: &Plan,
    device: usize,
    lcores: &[usize],
) -> Vec<PlacedFault> {
    let node = |name: &Option<String>| {
        let name = name.as_deref()?;
        plan.nodes.iter().find(|node| node.name == name)
    };
    let number = |name: &Option<String>| {
        let node = node(name)?;
        let number = lcores.iter().position(|lcore| *lcore == node.lcore)?;
        u32::try_from(number).ok()
    };
    let concerns = |fault: &&FaultText| {
        let named = [node(&fault.to), node(&fault.from)];
        named.into_iter().flatten().all(|node| node.device == Some(device))
    };
    let place = |fault: &FaultText| fault.place(number(&fault.to), number(&fault.from));
    faults.iter().filter(concerns).map(place).collect()
}

fn unknown(name: &str, plan: &Plan) -> FaultError {
    let names = plan.nodes.iter().map(|node| node.name.as_str());
    let suggestion = suggest::nearest(name, names).map(str::to_owned);
    FaultError::NoSuchNode { name: name.to_owned(), suggestion }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flip_names_node_and_offset() {
        let Ok(Fault::Flip(flip)) = "flip target 12345".parse() else { panic!("no flip") };
        assert_eq!(flip, Flip { node: "target".to_owned(), offset: 12345 });
        for (text, reason) in [
            ("flip target", "write `flip NODE OFFSET`"),
            ("flip target 1 2", "write `flip NODE OFFSET`"),
            ("flip target -1", "the offset is a number of bytes"),
        ] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert_eq!(error, format!("`{text}` is no fault: {reason}"));
        }
    }

    #[test]
    fn a_hang_names_a_node_and_may_come_later() {
        for (text, after) in [("hang target", 0), ("hang target after 7", 7)] {
            let Ok(Fault::Hang(hang)) = text.parse() else { panic!("no hang") };
            assert_eq!(hang, Hang { node: "target".to_owned(), after });
        }
        for (text, reason) in [
            ("hang", "write `hang NODE` or `hang NODE after N`"),
            ("hang target 7", "write `hang NODE` or `hang NODE after N`"),
            ("hang target after x", "N is a number of requests"),
        ] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert_eq!(error, format!("`{text}` is no fault: {reason}"));
        }
    }

    #[test]
    fn everything_else_is_for_frames() {
        let Ok(Fault::Packet(fault)) = "drop acks to client".parse() else { panic!("no fault") };
        assert_eq!((fault.to.as_deref(), fault.from), (Some("client"), None));
        let error = "explode all".parse::<Fault>().unwrap_err().to_string();
        assert!(error.starts_with("`explode all` is no fault: "), "{error}");
    }
}
