//! The queue pair state machine as the specification has it (IBTA 1.4, 10.3.1 and table 95; man
//! ibv_modify_qp; the kernel's table), written down by hand: which edges exist, and which
//! attributes each requires and allows. No device's own table is looked at.

use pmd_verbs::roce::qp::state::QpState::{self, Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use pmd_verbs::roce::qp::state::Transport::{self, Rc, Uc, Ud, XrcIni, XrcTgt};

/// Where it is from.
pub(crate) const SOURCE: &str = "IBTA 1.4, 10.3.1 and table 95; man ibv_modify_qp";

/// A set of bits of `enum ibv_qp_attr_mask`.
pub(crate) type Bits = u32;

/// The transports that devices run.
pub(crate) const TRANSPORTS: [Transport; 5] = [Rc, Uc, Ud, XrcIni, XrcTgt];

/// One bit of `enum ibv_qp_attr_mask`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bit {
    /// Its value.
    pub(crate) value: Bits,
    /// Its name after `IBV_QP_`.
    pub(crate) name: &'static str,
    /// The field of `struct ibv_qp_attr` that it stands for.
    pub(crate) field: &'static str,
}

const fn bit(value: Bits, name: &'static str, field: &'static str) -> Bit {
    Bit { value, name, field }
}

/// The enumeration as `verbs.h` has it; bits 21 to 24 belong to nobody.
pub(crate) const BITS: [Bit; 22] = [
    bit(STATE, "STATE", "qp_state"),
    bit(CUR_STATE, "CUR_STATE", "cur_qp_state"),
    bit(EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY", "en_sqd_async_notify"),
    bit(ACCESS_FLAGS, "ACCESS_FLAGS", "qp_access_flags"),
    bit(PKEY_INDEX, "PKEY_INDEX", "pkey_index"),
    bit(PORT, "PORT", "port_num"),
    bit(QKEY, "QKEY", "qkey"),
    bit(AV, "AV", "ah_attr"),
    bit(PATH_MTU, "PATH_MTU", "path_mtu"),
    bit(TIMEOUT, "TIMEOUT", "timeout"),
    bit(RETRY_CNT, "RETRY_CNT", "retry_cnt"),
    bit(RNR_RETRY, "RNR_RETRY", "rnr_retry"),
    bit(RQ_PSN, "RQ_PSN", "rq_psn"),
    bit(MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC", "max_rd_atomic"),
    bit(ALT_PATH, "ALT_PATH", "alt_ah_attr"),
    bit(MIN_RNR_TIMER, "MIN_RNR_TIMER", "min_rnr_timer"),
    bit(SQ_PSN, "SQ_PSN", "sq_psn"),
    bit(MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC", "max_dest_rd_atomic"),
    bit(PATH_MIG_STATE, "PATH_MIG_STATE", "path_mig_state"),
    bit(CAP, "CAP", "cap"),
    bit(DEST_QPN, "DEST_QPN", "dest_qp_num"),
    // Packet pacing: for RAW_PACKET alone, so that its number is its name elsewhere.
    bit(RATE_LIMIT, "0x2000000", "rate_limit"),
];

pub(crate) const STATE: Bits = 1;
pub(crate) const CUR_STATE: Bits = 1 << 1;
const EN_SQD_ASYNC_NOTIFY: Bits = 1 << 2;
pub(crate) const ACCESS_FLAGS: Bits = 1 << 3;
pub(crate) const PKEY_INDEX: Bits = 1 << 4;
pub(crate) const PORT: Bits = 1 << 5;
pub(crate) const QKEY: Bits = 1 << 6;
pub(crate) const AV: Bits = 1 << 7;
pub(crate) const PATH_MTU: Bits = 1 << 8;
pub(crate) const TIMEOUT: Bits = 1 << 9;
pub(crate) const RETRY_CNT: Bits = 1 << 10;
pub(crate) const RNR_RETRY: Bits = 1 << 11;
pub(crate) const RQ_PSN: Bits = 1 << 12;
pub(crate) const MAX_QP_RD_ATOMIC: Bits = 1 << 13;
const ALT_PATH: Bits = 1 << 14;
pub(crate) const MIN_RNR_TIMER: Bits = 1 << 15;
pub(crate) const SQ_PSN: Bits = 1 << 16;
pub(crate) const MAX_DEST_RD_ATOMIC: Bits = 1 << 17;
const PATH_MIG_STATE: Bits = 1 << 18;
const CAP: Bits = 1 << 19;
pub(crate) const DEST_QPN: Bits = 1 << 20;
const RATE_LIMIT: Bits = 1 << 25;

/// What only a device with automatic path migration takes, where an edge allows it.
const MIGRATION: Bits = ALT_PATH | PATH_MIG_STATE;

/// Where each state leads; all transports have the same edges.
const LEADS: [(QpState, &[QpState]); 7] = [
    (Reset, &[Reset, Init]),
    (Init, &[Reset, Error, Init, Rtr]),
    (Rtr, &[Reset, Error, Rts]),
    (Rts, &[Reset, Error, Rts, Sqd]),
    (Sqd, &[Reset, Error, Rts, Sqd]),
    (Sqe, &[Reset, Error, Rts]),
    (Error, &[Reset, Error]),
];

/// Bits that edges require, as the documents write them: in hex, STATE included. Every edge that is
/// not here requires STATE alone.
const REQUIRED: [(QpState, QpState, &[Transport], Bits); 10] = [
    (Reset, Init, &[Ud], 0x71),
    (Reset, Init, &[Rc, Uc], 0x39),
    (Reset, Init, &[XrcIni, XrcTgt], 0x39),
    (Init, Rtr, &[Ud], 0x1),
    (Init, Rtr, &[Uc, XrcIni], 0x10_1181),
    (Init, Rtr, &[Rc, XrcTgt], 0x12_9181),
    (Rtr, Rts, &[Uc, Ud], 0x1_0001),
    (Rtr, Rts, &[Rc], 0x1_2e01),
    (Rtr, Rts, &[XrcIni], 0x1_2e01),
    (Rtr, Rts, &[XrcTgt], 0x1_0201),
];

/// What may change on a connection that lives.
const LIVE: Bits = CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE;
/// What may change on an RC connection while its send queue is drained.
const DRAINED: Bits = PORT
    | AV
    | TIMEOUT
    | RETRY_CNT
    | RNR_RETRY
    | MAX_QP_RD_ATOMIC
    | MAX_DEST_RD_ATOMIC
    | ALT_PATH
    | ACCESS_FLAGS
    | PKEY_INDEX
    | MIN_RNR_TIMER
    | PATH_MIG_STATE;

/// Bits that edges allow besides. An edge that is not here allows none.
const OPTIONAL: [(&[QpState], QpState, &[Transport], Bits); 15] = [
    (&[Init], Init, &[Rc, Uc, XrcIni, XrcTgt], PKEY_INDEX | PORT | ACCESS_FLAGS),
    (&[Init], Init, &[Ud], PKEY_INDEX | PORT | QKEY),
    (&[Init], Rtr, &[Rc, Uc, XrcIni, XrcTgt], ALT_PATH | ACCESS_FLAGS | PKEY_INDEX),
    (&[Init], Rtr, &[Ud], PKEY_INDEX | QKEY),
    (&[Rtr, Rts, Sqd], Rts, &[Rc, XrcTgt], LIVE | MIN_RNR_TIMER),
    (&[Rtr, Rts, Sqd], Rts, &[Uc, XrcIni], LIVE),
    (&[Rtr, Rts, Sqd], Rts, &[Ud], CUR_STATE | QKEY),
    (&[Sqe], Rts, &[Ud], CUR_STATE | QKEY),
    (&[Sqe], Rts, &[Uc], CUR_STATE | ACCESS_FLAGS),
    (&[Rts], Sqd, &[Rc, Uc, Ud, XrcIni, XrcTgt], EN_SQD_ASYNC_NOTIFY),
    (&[Sqd], Sqd, &[Rc], DRAINED),
    (&[Sqd], Sqd, &[Uc], AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE),
    (&[Sqd], Sqd, &[Ud], PKEY_INDEX | QKEY),
    (&[Sqd], Sqd, &[XrcIni], DRAINED & !(MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER)),
    (&[Sqd], Sqd, &[XrcTgt], DRAINED & !(RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC)),
];

/// What an edge asks of a modify call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// Bits that must be given, STATE included.
    pub(crate) required: Bits,
    /// Bits that may be given besides.
    pub(crate) optional: Bits,
}

/// The edge between two states, where one exists.
pub(crate) fn edge(transport: Transport, from: QpState, to: QpState) -> Option<Edge> {
    if !leads(from, to) {
        return None;
    }
    let required = REQUIRED
        .iter()
        .find(|(f, t, transports, _)| (*f, *t) == (from, to) && transports.contains(&transport));
    let optional = OPTIONAL.iter().find(|(f, t, transports, _)| {
        f.contains(&from) && *t == to && transports.contains(&transport)
    });
    Some(Edge {
        required: required.map_or(STATE, |row| row.3),
        optional: optional.map_or(0, |row| row.3),
    })
}

/// Whether there is an edge, whatever it requires.
pub(crate) fn leads(from: QpState, to: QpState) -> bool {
    LEADS.iter().any(|(state, next)| *state == from && next.contains(&to))
}

/// Whether a modify call can lead there at all: into SQE only a failed send does.
pub(crate) fn is_reached_by_modify(state: QpState) -> bool {
    QpState::ALL.into_iter().any(|from| leads(from, state))
}

/// What can make a transport's queue pairs fall into SQE: the error of a send of theirs, unless it
/// is fatal (reliable transports) or there is no send queue.
pub(crate) fn falls_into(transport: Transport) -> Option<QpState> {
    match transport {
        Uc | Ud => Some(Sqe),
        Rc | XrcIni => Some(Error),
        _ => None,
    }
}

/// What a device must do with a modify call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Do it: the queue pair is in this state then.
    Accept(QpState),
    /// Refuse it and change nothing: no edge leads to this state.
    NoEdge(QpState),
    /// Refuse it, change nothing, and name these bits.
    Bits { missing: Bits, illegal: Bits },
    /// Refuse it and change nothing: `CUR_STATE` names another state than the queue pair is in.
    WrongState(QpState),
    /// Refuse it, change nothing, and name these bits: the device cannot do that.
    Unsupported(Bits),
}

/// A modify call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) transport: Transport,
    pub(crate) from: QpState,
    pub(crate) to: QpState,
    /// Bits given.
    pub(crate) given: Bits,
    /// What `cur_qp_state` says.
    pub(crate) claimed: QpState,
}

/// What must become of a call, on a device with or without automatic path migration.
pub(crate) fn expected(call: &Call, migrates: bool) -> Expect {
    if call.given & CUR_STATE != 0 && call.claimed != call.from {
        return Expect::WrongState(call.claimed);
    }
    // A call that names no state stays where it is.
    let to = if call.given & STATE == 0 { call.from } else { call.to };
    let Some(edge) = edge(call.transport, call.from, to) else { return Expect::NoEdge(to) };
    let missing = edge.required & !call.given & !STATE;
    let illegal = call.given & !(edge.required | edge.optional | STATE);
    if missing | illegal != 0 {
        return Expect::Bits { missing, illegal };
    }
    let migration = call.given & MIGRATION;
    if migration != 0 && !migrates { Expect::Unsupported(migration) } else { Expect::Accept(to) }
}

/// The bits of a set, in order of their values.
pub(crate) fn each(bits: Bits) -> impl Iterator<Item = &'static Bit> {
    BITS.iter().filter(move |bit| bits & bit.value != 0)
}

/// The names of a set.
pub(crate) fn names(bits: Bits) -> String {
    each(bits).map(|bit| bit.name).collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn required(transport: Transport, from: QpState, to: QpState) -> Bits {
        edge(transport, from, to).unwrap().required
    }

    /// S0-02 to S0-08, E-34: the masks by the names of their bits, which the table has in hex.
    #[test]
    fn s0_02_to_08_the_masks_by_name() {
        let connected_init = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
        for transport in [Rc, Uc, XrcIni, XrcTgt] {
            assert_eq!(required(transport, Reset, Init), connected_init);
        }
        assert_eq!(required(Ud, Reset, Init), STATE | PKEY_INDEX | PORT | QKEY);
        let uc = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN;
        assert_eq!(required(Ud, Init, Rtr), STATE);
        assert_eq!(required(Uc, Init, Rtr), uc);
        assert_eq!(required(XrcIni, Init, Rtr), uc);
        for transport in [Rc, XrcTgt] {
            assert_eq!(required(transport, Init, Rtr), uc | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER);
        }
        let rc = STATE | SQ_PSN | MAX_QP_RD_ATOMIC | RETRY_CNT | RNR_RETRY | TIMEOUT;
        assert_eq!(required(Uc, Rtr, Rts), STATE | SQ_PSN);
        assert_eq!(required(Ud, Rtr, Rts), STATE | SQ_PSN);
        assert_eq!(required(Rc, Rtr, Rts), rc);
        assert_eq!(required(XrcIni, Rtr, Rts), rc);
        assert_eq!(required(XrcTgt, Rtr, Rts), STATE | TIMEOUT | SQ_PSN);
    }

    /// The enumeration of `verbs.h`: 21 bits in a row, and packet pacing.
    #[test]
    fn the_bits_are_those_of_verbs_h() {
        assert!(BITS[..21].iter().enumerate().all(|(at, bit)| bit.value == 1 << at));
        assert_eq!(BITS.iter().fold(0, |all, bit| all | bit.value), 0x21f_ffff);
    }

    /// E-12, E-23, E-33: 22 of 49 pairs are edges; RESET does not lead to ERR, SQE leads to RTS, and
    /// nothing but a failed send leads to SQE.
    #[test]
    fn e_33_the_edges() {
        let pairs = || QpState::ALL.into_iter().flat_map(|f| QpState::ALL.map(move |t| (f, t)));
        assert_eq!(pairs().filter(|(from, to)| leads(*from, *to)).count(), 22);
        assert!(!leads(Reset, Error) && leads(Sqe, Rts) && leads(Sqd, Rts) && leads(Rts, Sqd));
        assert!(!is_reached_by_modify(Sqe));
        assert!(pairs().all(|(from, _)| leads(from, Reset)));
        // Attributes belong to edges that exist, and are required or optional, not both.
        for (from, to, transports, bits) in REQUIRED {
            assert!(leads(from, to));
            for transport in transports {
                let optional = edge(*transport, from, to).unwrap().optional;
                assert_eq!(optional & bits, 0, "{transport} {from} -> {to}");
            }
        }
        for (from, to, ..) in OPTIONAL {
            assert!(from.iter().all(|from| leads(*from, to)));
        }
    }

    #[test]
    fn each_kind_of_call_has_its_expectation() {
        let call = |to, given| Call { transport: Rc, from: Init, to, given, claimed: Init };
        let mask = 0x12_9181;
        assert_eq!(expected(&call(Rtr, mask), false), Expect::Accept(Rtr));
        assert_eq!(
            expected(&call(Rtr, (mask | SQ_PSN) & !RQ_PSN), false),
            Expect::Bits { missing: RQ_PSN, illegal: SQ_PSN }
        );
        assert_eq!(expected(&call(Rts, mask), false), Expect::NoEdge(Rts));
        assert_eq!(expected(&call(Rtr, mask | ALT_PATH), false), Expect::Unsupported(ALT_PATH));
        assert_eq!(expected(&call(Rtr, mask | ALT_PATH), true), Expect::Accept(Rtr));
        let wrong = Call { claimed: Rts, ..call(Rtr, mask | CUR_STATE) };
        assert_eq!(expected(&wrong, false), Expect::WrongState(Rts));
        // Without STATE the same attributes are judged by INIT -> INIT.
        let stays = Expect::Bits { missing: 0, illegal: mask & !STATE };
        assert_eq!(expected(&call(Rtr, mask & !STATE), false), stays);
        assert_eq!(expected(&call(Rtr, PORT), false), Expect::Accept(Init));
    }
}
