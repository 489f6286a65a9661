//! The state table as people read it: a listing per transport, and a graph for Graphviz.

use core::fmt;

use super::state::{AttrMask, QpState, Transport, masks};

/// Displays every edge of a transport with its required and optional attributes.
#[derive(Clone, Copy, Debug)]
pub struct Listing(pub Transport);

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0)?;
        for from in QpState::ALL {
            for to in QpState::ALL {
                let Some(edge) = masks(self.0, from, to) else { continue };
                write!(f, "  {from:<5} -> {to:<5}  {:#08x}", edge.required)?;
                write_bits(f, "requires", edge.required)?;
                write_bits(f, "allows", edge.optional)?;
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

fn write_bits(f: &mut fmt::Formatter<'_>, verb: &str, bits: AttrMask) -> fmt::Result {
    if bits.is_empty() {
        return Ok(());
    }
    write!(f, "\n      {verb} {bits}")
}

/// Displays the edges as a Graphviz `digraph`. They are the same for every transport.
#[derive(Clone, Copy, Debug)]
pub struct Graph;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "digraph qp_states {{\n  rankdir = LR;")?;
        for from in QpState::ALL {
            for to in QpState::ALL {
                if masks(Transport::Rc, from, to).is_some() {
                    writeln!(f, "  {from} -> {to};")?;
                }
            }
        }
        writeln!(f, "}}")
    }
}
