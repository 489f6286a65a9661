//! What the connection manager's REQ and REP say about the connection that a trace shows.

use pmd_roce::ids::{PathMtu, Psn};

use crate::trace::Frame;

/// Where a MAD begins behind BTH and DETH, and a CM message behind the MAD's header.
const MAD: usize = 20;
const MESSAGE: usize = MAD + 24;

const REQ: [u8; 2] = [0, 0x10];
const REP: [u8; 2] = [0, 0x13];

/// A connection as both ends have agreed on it. The client is the active side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handshake {
    /// First PSN of the client's requests, and of the server's.
    pub(crate) psns: [Psn; 2],
    pub(crate) mtu: PathMtu,
    pub(crate) flow_label: u32,
    pub(crate) retry_cnt: u8,
    /// RNR retries of the client's requests, and of the server's: each side takes the other's word.
    pub(crate) rnr_retry: [u8; 2],
    /// READs and atomics that the server serves at a time, and the client.
    pub(crate) served_by_server: u8,
    pub(crate) served_by_client: u8,
    /// REP's private data, which `vt` fills with its region.
    pub(crate) region: Region,
}

/// Memory that the server offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u32,
}

/// Reads both messages; `None` where a trace has none.
pub(crate) fn handshake(frames: &[Frame]) -> Option<Handshake> {
    let req = message(frames, REQ)?;
    let rep = message(frames, REP)?;
    let u24 =
        |bytes: &[u8], at: usize| u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]]);
    let u32_of_host = |at: usize| u32::from_le_bytes(*rep[at..].first_chunk().unwrap());
    Some(Handshake {
        psns: [Psn::new(u24(rep, 20)), Psn::new(u24(req, 44))],
        mtu: PathMtu::from_code(req[50] >> 4).unwrap(),
        flow_label: u24(req, 88) >> 4,
        retry_cnt: req[47] & 7,
        rnr_retry: [rep[27] >> 5, req[50] & 7],
        served_by_server: rep[24],
        served_by_client: rep[25],
        region: Region {
            addr: u64::from_le_bytes(*rep[36..].first_chunk().unwrap()),
            rkey: u32_of_host(44),
            len: u32_of_host(48),
        },
    })
}

fn message(frames: &[Frame], attribute: [u8; 2]) -> Option<&[u8]> {
    let frame = frames.iter().find(|frame| {
        let payload = &frame.payload;
        payload.len() == MAD + 256 + 4 && payload[MAD + 16..][..2] == attribute
    })?;
    Some(&frame.payload[MESSAGE..])
}
