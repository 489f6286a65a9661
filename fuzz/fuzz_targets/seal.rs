//! Any bytes are read as a frame of a control channel or refused, and what was read is written as the same frame. Nobody
//! without the key is answered; a sealed channel opens what its peer sealed, in order and once, whatever comes between.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use pmd_verbs::connect::{Frame, Message, Psk, Seal, SealAsk, answer};

#[derive(Arbitrary, Debug)]
enum Step {
    /// The peer seals a message, which stays on its way.
    Seal { len: u16 },
    /// The oldest message on its way arrives.
    Arrive,
    /// One that arrived or is on its way comes again, or too early, with some bytes changed.
    Disturb { which: u8, at: u16, change: u8, cut: u8 },
    /// Something else comes.
    Raw { bytes: Vec<u8> },
}

fn key() -> Psk {
    Psk::new(std::array::from_fn(|at| u8::try_from(at).unwrap_or_default().wrapping_mul(7)))
}

fn frames(bytes: &[u8]) {
    let Ok(frame) = Frame::parse(bytes) else { return };
    assert_eq!(Frame::wanted(bytes).expect("it is one"), bytes.len());
    let again = frame.encode().expect("it was read");
    match &frame {
        // What crosses as text loses its control characters, and nothing else.
        Frame::Clear(Message::Refused(_)) => {}
        _ => assert_eq!(again, bytes),
    }
    assert_eq!(Frame::parse(&again).expect("it was just written"), frame);
    match frame {
        Frame::Ask { bytes, .. } => assert!(answer(&key(), &bytes).is_err(), "nobody knows the key"),
        Frame::Answer(bytes) => {
            let (waiting, _) = SealAsk::begin(&key()).expect("randomness");
            assert!(waiting.finish(&bytes).is_err(), "nobody answered this ask");
        }
        _ => {}
    }
}

fn channel(unstructured: &mut Unstructured<'_>) {
    let (waiting, ask) = SealAsk::begin(&key()).expect("randomness");
    let (mut there, reply) = answer(&key(), &ask).expect("the same key");
    let Seal { mut sealer, .. } = waiting.finish(&reply).expect("the same exchange");
    let (mut sealed, mut opened): (Vec<Vec<u8>>, usize) = (Vec::new(), 0);
    for _ in 0..32 {
        let Ok(step) = Step::arbitrary(unstructured) else { return };
        match step {
            Step::Seal { len } => {
                let len = usize::from(len % 512);
                let mark = u8::try_from(sealed.len()).expect("few messages");
                sealed.push(sealer.seal(&vec![mark; len]).expect("it fits"));
            }
            Step::Arrive => {
                let Some(next) = sealed.get(opened) else { continue };
                let plain = there.opener.open(next).expect("the next message in order");
                assert!(plain.iter().all(|byte| usize::from(*byte) == opened));
                opened += 1;
            }
            Step::Disturb { which, at, change, cut } => {
                let count = sealed.len().max(1);
                let Some(message) = sealed.get(usize::from(which) % count) else { continue };
                let mut bytes = message.clone();
                let at = usize::from(at) % bytes.len();
                bytes[at] ^= change;
                bytes.truncate(bytes.len() - usize::from(cut) % bytes.len());
                if sealed.get(opened) != Some(&bytes) {
                    assert!(there.opener.open(&bytes).is_err(), "changed, early or played again");
                }
            }
            Step::Raw { bytes } => assert!(there.opener.open(&bytes).is_err(), "nobody sealed it"),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    frames(bytes);
    // A length that fits, so that most inputs reach the codes.
    let len = u32::try_from(bytes.len()).unwrap_or_default();
    frames(&[&len.to_be_bytes()[..], bytes].concat());
    channel(&mut Unstructured::new(bytes));
});
