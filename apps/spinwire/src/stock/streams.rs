//! Messages in both directions over several queue pairs, which `ucmatose` and `udaddy` have in common.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pmd_graph::app::print;
use pmd_observe::Code;
use pmd_verbs::{Completion, Cq, Data, Qp, Rc, RemoteAddr, WcStatus, WorkRequest};

use super::args::Exchange;
use super::failure::Failure;
use super::host::{Host, address, resolve};
use super::patience::Patience;

/// How long a peer that lives may take to acknowledge.
const ACKNOWLEDGES: Duration = Duration::from_secs(1);
/// The number of the request that asks for it; those of the programs are 0.
const PROBE: u64 = 1;

/// So many of them, with their plural.
pub(super) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// This end, and the server that it is a client of.
pub(super) fn open(exchange: &Exchange, port: u16) -> Result<(Option<SocketAddr>, Host), Failure> {
    let Exchange { format, gid_index, timeout: limit, .. } = *exchange;
    let bind = address(exchange.bind.as_deref(), format)?;
    Ok(match &exchange.server {
        Some(server) => {
            let server = resolve(server, port, format)?;
            (Some(server), Host::toward(server, bind, gid_index, "-b", limit)?)
        }
        None => (None, Host::serving(bind, gid_index, "-b", limit)?),
    })
}

/// Says what was done, and ends as librdmacm's programs do.
pub(super) fn complete(exchange: &Exchange, way: &str, message: &str) -> Result<(), Failure> {
    let total = u64::from(exchange.connections) * u64::from(exchange.count);
    let (ways, messages) = (counted(exchange.connections.into(), way), counted(total, message));
    let size = counted(exchange.size.into(), "byte");
    Ok(print(&format!(
        "{ways}, {messages} of {size} in each direction\ntest complete\nreturn status 0\n"
    ))?)
}

/// The failure that a peer's silence is: a slow program's device still acknowledges, which a WRITE of no bytes shows, and a
/// dead one's does not.
pub(super) fn silence(qp: &Qp<Rc>, sent: &Cq, text: &str) -> Failure {
    let probe = WorkRequest::write(Data::Sges(&[]), RemoteAddr::default()).id(PROBE);
    // Where the queue takes no more, nothing of all that was sent is acknowledged.
    let mut lives = None;
    if qp.post_send(&probe).is_ok() {
        let start = Instant::now();
        while lives.is_none() && start.elapsed() < ACKNOWLEDGES {
            sent.poll(16, |completion| {
                let unheard = matches!(completion.status, WcStatus::RetryExc | WcStatus::WrFlush);
                if unheard || completion.wr_id.0 == PROBE {
                    lives.get_or_insert(!unheard);
                }
            });
            std::thread::yield_now();
        }
    }
    if lives == Some(true) {
        let text = format!("{text}, although its queue pair acknowledges");
        return Failure::remote(Code::ResponderSlow, text);
    }
    let text =
        format!("{text}, and its queue pair does not acknowledge: it was killed, or stopped");
    Failure::remote(Code::PeerDead, text)
}

/// Takes so many completions out of a queue; `silent` says what it is when they stop.
pub(super) fn take(
    host: &Host,
    cq: &Cq,
    count: u64,
    what: &str,
    mut each: impl FnMut(&Completion) -> Result<(), Failure>,
    silent: impl FnOnce(&str) -> Failure,
) -> Result<(), Failure> {
    let (mut done, mut failed, mut patience) = (0, None, Patience::new(host.limit));
    while done < count {
        let taken = cq.poll(64, |completion| {
            done += 1;
            let good = match completion.status {
                WcStatus::Success => each(&completion),
                _ => Err(Failure::completion(&completion)),
            };
            if let Err(failure) = good {
                failed.get_or_insert(failure);
            }
        });
        let is_over = patience.is_over();
        if let Some(failure) = failed {
            return Err(patience.judge(failure));
        }
        if taken > 0 {
            patience = Patience::new(host.limit);
        } else if is_over {
            let text = format!("{done} of {count} {what} in {:?}, then nothing", host.limit);
            return Err(silent(&text));
        } else {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// What a message must have: the length that both ends were told.
pub(super) fn of_length(completion: &Completion, wanted: u32) -> Result<(), Failure> {
    if completion.byte_len == wanted {
        return Ok(());
    }
    let text = format!(
        "a message of {} bytes, and not of {wanted}: give both ends one -S",
        completion.byte_len
    );
    Err(Failure::remote(Code::Length, text))
}
