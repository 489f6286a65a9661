//! Inline data: what is granted is taken, and one byte more is not.

use pmd_verbs::{Data, Qp, Rc, WorkRequest};

use super::finding::{Findings, Question, question};
use super::rig::{Ground, RECEIVES, Rig, Way, ends};

const GRANTED: Question = question("granted", "man ibv_create_qp");
const BEYOND_DEVICE: Question = question("beyond-the-device", "man ibv_create_qp");
const UP_TO_CAP: Question = question("up-to-the-cap", "man ibv_post_send (IBV_SEND_INLINE)");
const BEYOND_CAP: Question = question("beyond-the-cap", "man ibv_post_send (IBV_SEND_INLINE)");
const AFTERWARDS: Question = question("after-a-refusal", "man ibv_post_send");

pub(super) fn run(ground: &Ground<'_>, way: Way, found: &mut Findings) -> anyhow::Result<()> {
    let rig = ground.rig(way)?;
    granted(&rig, ground.device().attr().max_inline_data, found);
    cap(&rig, found)
}

/// Creation grants at least what is asked for, up to the device's limit, and nothing beyond it.
fn granted(rig: &Rig<'_>, max: u32, found: &mut Findings) {
    let ask = |bytes: u32| rig.qp::<Rc>(0, |options| options.cap.max_inline_data = bytes);
    for bytes in [0, 64, max] {
        let seen = match ask(bytes) {
            Ok(qp) => {
                let granted = rig.view(&qp).init.cap.max_inline_data;
                if granted >= bytes {
                    format!("at least {bytes} bytes")
                } else {
                    format!("{granted} bytes")
                }
            }
            Err(error) => format!("refused: {error:#}"),
        };
        found.same(GRANTED, format_args!("at least {bytes} bytes"), seen);
    }
    let beyond = rig.refused(&ask(max.saturating_add(1)));
    found.same(BEYOND_DEVICE, "refused", beyond);
}

/// The cap itself arrives whole; one byte more is refused, leaves nothing in the queue, and hurts nobody.
fn cap(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let [a, b]: [Qp<Rc>; 2] = rig.pair(|_, _| {})?;
    let cap = rig.view(&a).init.cap.max_inline_data;
    let bytes: Vec<u8> = (0..=cap).map(|at| (at * 7 + 3).to_le_bytes()[0]).collect();
    let (fits, too_long) = (&bytes[..cap as usize], &bytes[..]);
    rig.sides[1].receives(&b, RECEIVES, 2, cap + 1)?;
    let post =
        |wr: u64, bytes: &[u8]| a.post_send(&WorkRequest::send(Data::Inline(&[bytes])).id(wr));
    let whole = |at: u64| -> anyhow::Result<&str> {
        let got = rig.sides[1].received(at * u64::from(cap + 1), fits.len())?;
        Ok(if got == fits { "every byte as posted" } else { "other bytes than posted" })
    };
    post(1, fits)?;
    let [sent, received] = rig.complete([1, 1]);
    found.same(
        UP_TO_CAP,
        "1 success (0); 100 success (0), every byte as posted",
        format_args!("{}; {}, {}", ends(&sent), ends(&received), whole(0)?),
    );
    let refused = rig.refused(&post(2, too_long));
    let outstanding = rig.view(&a).send_outstanding;
    found.same(
        BEYOND_CAP,
        "refused, 0 outstanding",
        format_args!("{refused}, {outstanding} outstanding"),
    );
    post(3, fits)?;
    let [sent, received] = rig.complete([1, 1]);
    found.same(
        AFTERWARDS,
        "3 success (0); 101 success (0), every byte as posted",
        format_args!("{}; {}, {}", ends(&sent), ends(&received), whole(1)?),
    );
    Ok(())
}
