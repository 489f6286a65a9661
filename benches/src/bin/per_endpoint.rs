//! What a message costs by an endpoint, on one core that runs both ends in turn, and what of it is the
//! ledger's bookkeeping.
//!
//! Plain, it prints nanoseconds per message. Under `valgrind --tool=callgrind
//! --toggle-collect='*measured*'` it counts instructions; `ci/instructions` does that.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use benches::{BATCH, Ends, Kind};
use clap::Parser;
use pmd_ledger::{Account, Depths, Identity, Side, Status, Submission};
use pmd_verbs::WireChoice;

/// Counts what messages by an endpoint cost.
#[derive(Debug, Parser)]
struct Args {
    /// What a message is: SEND or WRITE.
    kind: Kind,
    /// Messages to measure.
    #[arg(short = 'n', long, default_value_t = 1 << 20)]
    messages: u64,
    /// Bytes of a message.
    #[arg(short, long, default_value_t = 8)]
    size: u32,
    /// By packets instead of shared memory.
    #[arg(long)]
    udp: bool,
    /// Only what an account does for such a message at both ends.
    #[arg(long)]
    ledger: bool,
}

fn main() -> Result<()> {
    let Args { kind, messages, size, udp, ledger } = Args::parse();
    let batches = messages / BATCH as u64;
    let begin;
    if ledger {
        let mut books = Books::new(kind);
        begin = Instant::now();
        measured_ledger(&mut books, batches)?;
    } else {
        let mut ends = Ends::connect(if udp { WireChoice::Udp } else { WireChoice::Shm }, size)?;
        let op = ends.op(kind).context("an endpoint is measured by SENDs and WRITEs")?;
        (0..64).try_for_each(|_| ends.batch(op))?;
        begin = Instant::now();
        measured(&mut ends, kind, batches)?;
    }
    let ns = begin.elapsed().as_nanos();
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        println!("{kind:?} {size} B: {:.2} ns", ns as f64 / messages as f64);
    }
    Ok(())
}

/// What is counted.
#[inline(never)]
fn measured(ends: &mut Ends, kind: Kind, batches: u64) -> Result<()> {
    let op = ends.op(kind).context("checked before")?;
    (0..batches).try_for_each(|_| ends.batch(op))
}

/// What is counted of the ledger alone.
#[inline(never)]
fn measured_ledger(books: &mut Books, batches: u64) -> Result<()> {
    (0..batches).try_for_each(|_| books.batch())
}

/// The accounts of both ends, and the side of each that a message concerns.
struct Books {
    accounts: Vec<(Account, Side)>,
    tickets: Vec<pmd_ledger::Ticket>,
}

impl Books {
    fn new(kind: Kind) -> Self {
        let identity = Identity { context: 0, qpn: 2, send_cq: 0, recv_cq: 0, srq: None, wq: None };
        let depths = Depths { send: 64, recv: 64 };
        let account = |side| (Account::new(0, identity, depths, None), side);
        let near = account(Side::Send);
        let accounts = match kind {
            Kind::Send => vec![near, account(Side::Recv)],
            _ => vec![near],
        };
        Self { accounts, tickets: Vec::with_capacity(BATCH) }
    }

    /// Admits a batch and settles it, as its completions would.
    fn batch(&mut self) -> Result<()> {
        for (account, side) in &mut self.accounts {
            self.tickets.clear();
            for token in 0..BATCH as u64 {
                self.tickets.push(account.admit(*side, Submission::one(black_box(token)))?);
            }
            let mut settled = 0;
            for ticket in &self.tickets {
                account.settle(black_box(*ticket), Status::SUCCESS, |end| {
                    settled += usize::from(end.wrs == 1);
                    black_box(end.token);
                });
            }
            if settled != BATCH {
                bail!("{settled} of {BATCH} submissions settled");
            }
        }
        Ok(())
    }
}
