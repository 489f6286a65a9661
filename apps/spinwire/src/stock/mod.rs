//! The test programs of librdmacm, either end of them: `rping`, `ucmatose` and `udaddy` speak the protocols of their
//! namesakes, so that the other end can be the stock one.

mod args;
mod failure;
mod host;
mod patience;
mod rping;
mod streams;
mod ucmatose;
mod udaddy;

pub(crate) use args::{RpingArgs, UcmatoseArgs, UdaddyArgs};

use pmd_graph::app::{Exit, say};

use failure::Failure;

/// Runs `rping`.
pub(crate) fn rping(args: &RpingArgs) -> Exit {
    ended(rping::run(args))
}

/// Runs `ucmatose`.
pub(crate) fn ucmatose(args: &UcmatoseArgs) -> Exit {
    ended(ucmatose::run(args))
}

/// Runs `udaddy`.
pub(crate) fn udaddy(args: &UdaddyArgs) -> Exit {
    ended(udaddy::run(args))
}

/// Failures go to stderr as a verdict, as those of every command.
fn ended(outcome: Result<(), Failure>) -> Exit {
    match outcome {
        Ok(()) => Exit::Done,
        Err(Failure { exit, verdict }) => {
            say(verdict);
            exit
        }
    }
}
