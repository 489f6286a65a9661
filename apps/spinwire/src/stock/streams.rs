//! Messages in both directions over several queue pairs, which `ucmatose` and `udaddy` have in common.

use std::time::Instant;

use pmd_observe::Code;
use pmd_verbs::{Completion, Cq, WcStatus};

use super::failure::Failure;
use super::host::Host;

/// Takes so many completions out of a queue.
pub(super) fn take(
    host: &Host,
    cq: &Cq,
    count: u64,
    what: &str,
    mut each: impl FnMut(&Completion) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut done, mut failed, mut last) = (0, None, Instant::now());
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
        if let Some(failure) = failed {
            return Err(failure);
        }
        if taken > 0 {
            last = Instant::now();
        } else if last.elapsed() > host.limit {
            let text = format!("{done} of {count} {what} in {:?}, then nothing", host.limit);
            return Err(Failure::remote(Code::ResponderSlow, text));
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
