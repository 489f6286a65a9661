//! The transition journal of a device: its lcores write, a control thread reads.
//!
//! A record is words in a slot of a ring of [`pmd_observe::journal`]; this file is the only one that knows which. What can
//! be worked out again from attributes and mask, as the reason of a refused transition, is not kept, so that a move that
//! succeeds costs one cache line: connections are made anew by the thousand.

use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use pmd_observe::journal::{self, By, Line, Read, Reader, Record, Refusal, WORDS, Words, Writer};
use pmd_observe::limits::HISTORY_LINES;
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{Gid, Instant, PathMtu, Psn, Qpn};
use pmd_roce::qp::attr::{ModifyQpError, PathMigState, QpAttr};
use pmd_roce::qp::state::{self, AttrMask, QpState, TransitionError, Transport};
use pmd_roce::transition::{Cause, Transition};
use pmd_roce::work::{Access, WcStatus};

use crate::transition::{Attempt, attributes};

/// Records that an lcore keeps until they are read: a thousand queue pairs are brought up, by three calls each, and fail.
pub(crate) const JOURNAL_RECORDS: usize = 1 << 12;

/// Records that an lcore looks through for what became of one queue pair.
const JOURNAL_SHOWN: u64 = 512;

/// An lcore's part, written by its thread.
#[derive(Debug)]
pub(crate) struct Journal {
    writer: Writer,
}

/// A ring for an lcore.
pub(crate) fn journal() -> (Journal, Reader) {
    let (writer, reader) = journal::ring(JOURNAL_RECORDS);
    (Journal { writer }, reader)
}

/// What is in a record beside the time and the attributes.
#[derive(Clone, Copy)]
struct Header {
    qpn: Qpn,
    transport: Transport,
    from: QpState,
    to: QpState,
    cause: u8,
    mask: AttrMask,
    result: u8,
}

/// Results: it moved.
const MOVED: u8 = 0;
/// It is against the state table: the table says why.
const TABLE: u8 = 1;
/// It was refused for another reason, whose words follow.
const WORDED: u8 = 2;
/// No record: so many were lost.
const LOST: u8 = 3;

/// Causes: those of modify calls are [`By`], in this order.
const CALLS: [By; 4] = [By::Modify, By::Connect, By::Recovery, By::Close];
const SEND_FAILED: u8 = 4;
const RECEIVE_FAILED: u8 = 5;
const EVENT: u8 = 6;

/// Words that every record has: time, header and attributes. A fall has its detail in place of the attributes.
const SHORT: usize = 7;
/// With what migration needs.
const WITH_ALTERNATE: usize = 10;
/// Attributes of migration.
const ALTERNATE: AttrMask = AttrMask::ALT_PATH.union(AttrMask::PATH_MIG_STATE);

impl Journal {
    /// A call that asks for a move, and what came of it.
    #[inline]
    pub(crate) fn attempt(
        &mut self,
        now: Instant,
        attempt: &Attempt<'_>,
        result: &Result<(), ModifyQpError>,
    ) {
        let Attempt { transport, qpn, from, attr, mask, by, .. } = *attempt;
        let cause = match by {
            By::Connect => 1,
            By::Recovery => 2,
            By::Close => 3,
            _ => 0,
        };
        let to = attempt.to();
        if result.is_ok() && mask == AttrMask::STATE {
            // No attribute is named: what an older record left in their place is not looked at.
            let header = Header { qpn, transport, from, to, cause, mask, result: MOVED };
            self.writer.push(&[now.0, header.word()]);
        } else if result.is_ok() && !mask.intersects(ALTERNATE) {
            let header = Header { qpn, transport, from, to, cause, mask, result: MOVED };
            let [dgid, dgid_low] = halves(&attr.av.dgid);
            let [numbers, limits, path] = attributes_in_words(attr);
            self.writer.push(&[now.0, header.word(), dgid, dgid_low, numbers, limits, path]);
        } else {
            let header = Header { qpn, transport, from, to, cause, mask, result: code(result) };
            self.long(now, header, attr, result);
        }
    }

    #[cold]
    fn long(
        &mut self,
        now: Instant,
        header: Header,
        attr: &QpAttr,
        result: &Result<(), ModifyQpError>,
    ) {
        let mut words: Words = [0; WORDS];
        let [dgid, dgid_low] = halves(&attr.av.dgid);
        let [numbers, limits, path] = attributes_in_words(attr);
        let [alt, alt_low] = halves(&attr.alt_av.dgid);
        let migration = attr.path_mig_state as u64;
        let fixed =
            [now.0, header.word(), dgid, dgid_low, numbers, limits, path, migration, alt, alt_low];
        words[..WITH_ALTERNATE].copy_from_slice(&fixed);
        if header.result == WORDED
            && let Err(error) = result
        {
            let mut text = Text::default();
            // What does not fit is cut off.
            write!(text, "{error}").unwrap_or_default();
            for (word, bytes) in words[WITH_ALTERNATE..].iter_mut().zip(text.bytes.chunks_exact(8))
            {
                *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            }
        }
        self.writer.push(&words);
    }

    /// A move that a queue pair made by itself.
    #[cold]
    pub(crate) fn fell(&mut self, transition: &Transition) {
        let Transition { at, qpn, transport, from, to, cause } = *transition;
        let (cause, detail) = match cause {
            Cause::Send(status) => (SEND_FAILED, status as u32),
            Cause::Receive(status) => (RECEIVE_FAILED, status as u32),
            Cause::Event(event) => (EVENT, event.number()),
        };
        let (mask, result) = (AttrMask::empty(), MOVED);
        let header = Header { qpn, transport, from, to, cause, mask, result };
        self.writer.push(&[at.0, header.word(), detail.into()]);
    }

    /// Moves that nobody noted in time.
    #[cold]
    pub(crate) fn lost(&mut self, now: Instant, count: u64) {
        let header = Header {
            qpn: Qpn::default(),
            transport: Transport::Rc,
            from: QpState::Reset,
            to: QpState::Reset,
            cause: EVENT,
            mask: AttrMask::empty(),
            result: LOST,
        };
        self.writer.push(&[now.0, header.word(), count]);
    }
}

const fn code(result: &Result<(), ModifyQpError>) -> u8 {
    match result {
        Ok(()) => MOVED,
        Err(ModifyQpError::Transition(_)) => TABLE,
        Err(_) => WORDED,
    }
}

/// Reads the journals of all lcores of a device; each reader reads everything that is left.
#[derive(Clone, Debug)]
pub struct JournalReader {
    device: String,
    /// When the device's clock began.
    epoch: SystemTime,
    lcores: Vec<Reader>,
}

impl JournalReader {
    pub(crate) fn new(device: &str, epoch: SystemTime, lcores: Vec<Reader>) -> Self {
        Self { device: device.to_owned(), epoch, lcores }
    }

    /// Hands over what was written since the last time, lcore by lcore.
    pub fn read(&mut self, mut each: impl FnMut(Line)) {
        let Self { device, epoch, lcores } = self;
        for (lcore, reader) in (0..).zip(lcores) {
            while let Some(read) = reader.read() {
                each(match read {
                    Read::Lost(lost) => Line::Lost { lost },
                    Read::Record(words) => line(device, *epoch, lcore, &words),
                });
            }
        }
    }
}

impl JournalReader {
    /// What is told of one queue pair of an lcore in its last [`JOURNAL_SHOWN`] records: those of trouble, a line each. It
    /// is short enough for the lcore itself, once something has failed.
    pub(crate) fn trouble_of(&self, lcore: u32, qpn: Qpn) -> Vec<String> {
        let Some(mut reader) = self.lcores.get(lcore as usize).cloned() else { return Vec::new() };
        reader.forward(JOURNAL_SHOWN);
        let mut lines = Vec::new();
        while let Some(read) = reader.read() {
            let Read::Record(words) = read else { continue };
            let is_meant = Header::of(words[1]).is_some_and(|header| header.qpn == qpn);
            if is_meant
                && let Line::Record(record) = line(&self.device, self.epoch, lcore, &words)
                && record.is_trouble()
            {
                lines.push(record.to_string());
            }
        }
        let older = lines.len().saturating_sub(HISTORY_LINES);
        lines.split_off(older)
    }
}

fn line(device: &str, epoch: SystemTime, lcore: u32, words: &Words) -> Line {
    let Some(header) = Header::of(words[1]) else { return Line::Lost { lost: 1 } };
    let Header { qpn, transport, from, to, cause, mask, result } = header;
    if result == LOST {
        return Line::Lost { lost: words[2] };
    }
    let attr = attributes_of(words, mask);
    let at = epoch.checked_add(Duration::from_nanos(words[0])).unwrap_or(epoch);
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Line::Record(Box::new(Record {
        at_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        device: device.to_owned(),
        lcore,
        qpn: qpn.value(),
        transport: transport.name().to_owned(),
        from: from.name().to_owned(),
        to: to.name().to_owned(),
        cause: told(cause, words[2], qpn),
        mask: mask.bits(),
        attrs: attributes(&attr, mask),
        refused: match result {
            MOVED => None,
            TABLE => state::check(transport, from, to, mask).err().map(|error| against(&error)),
            _ => Some(Refusal {
                errno: "EINVAL".to_owned(),
                reason: text_of(words),
                ..Refusal::default()
            }),
        },
    }))
}

fn told(cause: u8, detail: u64, qpn: Qpn) -> journal::Cause {
    if let Some(by) = CALLS.get(usize::from(cause)) {
        return journal::Cause { by: *by, ..journal::Cause::default() };
    }
    if cause == EVENT {
        let detail = u32::try_from(detail).unwrap_or(u32::MAX);
        let event = AsyncEvent::from_number(detail, qpn.value());
        let by = match event {
            AsyncEvent::QpReqErr(_) | AsyncEvent::QpAccessErr(_) => By::Peer,
            _ => By::Event,
        };
        return journal::Cause { by, what: Some(event.name().to_owned()), status: None };
    }
    let number = u8::try_from(detail).unwrap_or(u8::MAX);
    let status = STATUSES.iter().find(|status| **status as u8 == number);
    let words = status.map_or_else(|| format!("unknown status ({number})"), ToString::to_string);
    let whose = if cause == RECEIVE_FAILED { "of a receive" } else { "of a send request" };
    journal::Cause {
        by: By::Completion,
        what: Some(format!("{whose}: {words}")),
        status: Some(number),
    }
}

/// Every status.
const STATUSES: [WcStatus; 16] = [
    WcStatus::Success,
    WcStatus::LocLen,
    WcStatus::LocQpOp,
    WcStatus::LocProt,
    WcStatus::WrFlush,
    WcStatus::MwBind,
    WcStatus::BadResp,
    WcStatus::LocAccess,
    WcStatus::RemInvReq,
    WcStatus::RemAccess,
    WcStatus::RemOp,
    WcStatus::RetryExc,
    WcStatus::RnrRetryExc,
    WcStatus::RemAbort,
    WcStatus::Fatal,
    WcStatus::General,
];

/// What the state table has against a call.
fn against(error: &TransitionError) -> Refusal {
    let names = |mask: AttrMask| mask.fields().map(str::to_owned).collect();
    let route = error.skipped.as_ref().map(|route| route.states());
    Refusal {
        errno: "EINVAL".to_owned(),
        reason: error.to_string(),
        missing: names(error.missing),
        illegal: names(error.illegal),
        skipped: route.unwrap_or_default().iter().map(|state| state.name().to_owned()).collect(),
    }
}

/// Packs small values into a word, the first lowest, and takes them out again in the same order.
struct Bits {
    word: u64,
    at: u32,
}

impl Bits {
    const fn of(word: u64) -> Self {
        Self { word, at: 0 }
    }

    /// Appends the low `width` bits.
    #[inline]
    const fn put(self, value: u32, width: u32) -> Self {
        let value = value as u64 & ((1 << width) - 1);
        Self { word: self.word | value << self.at, at: self.at + width }
    }

    #[expect(clippy::cast_possible_truncation, reason = "no value is wider than 32 bits")]
    const fn take(&mut self, width: u32) -> u32 {
        let value = self.word >> self.at & ((1 << width) - 1);
        self.at += width;
        value as u32
    }

    fn take_u8(&mut self, width: u32) -> u8 {
        u8::try_from(self.take(width)).unwrap_or(u8::MAX)
    }

    fn take_state(&mut self) -> Option<QpState> {
        QpState::ALL.get(self.take(3) as usize).copied()
    }
}

impl Header {
    #[inline]
    const fn word(self) -> u64 {
        let bits = Bits::of(0).put(self.qpn.value(), 24).put(self.mask.bits(), 21);
        let bits = bits.put(self.transport as u32, 4).put(self.from as u32, 3);
        let bits = bits.put(self.to as u32, 3).put(self.cause as u32, 4);
        bits.put(self.result as u32, 2).word
    }

    fn of(word: u64) -> Option<Self> {
        let mut bits = Bits::of(word);
        Some(Self {
            qpn: Qpn::new(bits.take(24)),
            mask: AttrMask::from_bits_retain(bits.take(21)),
            transport: {
                let number = bits.take_u8(4);
                Transport::ALL.into_iter().find(|known| *known as u8 == number)?
            },
            from: bits.take_state()?,
            to: bits.take_state()?,
            cause: bits.take_u8(4),
            result: bits.take_u8(2),
        })
    }
}

/// Numbers of the connection, its limits, and its path. A value that is too wide for its field was refused, and the words
/// of the refusal say it.
#[inline]
fn attributes_in_words(attr: &QpAttr) -> [u64; 3] {
    let byte = |value: u8| u32::from(value);
    let numbers = Bits::of(0)
        .put(attr.dest_qpn.value(), 24)
        .put(attr.rq_psn.value(), 24)
        .put(byte(attr.timeout), 8)
        .put(byte(attr.retry_cnt), 8);
    let limits = Bits::of(0)
        .put(attr.sq_psn.value(), 24)
        .put(byte(attr.rnr_retry), 8)
        .put(byte(attr.min_rnr_timer), 8)
        .put(byte(attr.max_rd_atomic), 8)
        .put(byte(attr.max_dest_rd_atomic), 8)
        .put(byte(attr.port), 8);
    let av = &attr.av;
    let path = Bits::of(0)
        .put(attr.access.bits(), 16)
        .put(attr.pkey_index.into(), 16)
        .put(byte(av.sgid_index), 8)
        .put(byte(av.hop_limit), 8)
        .put(byte(av.traffic_class), 8)
        .put(attr.path_mtu as u32, 3)
        .put(av.link.is_some().into(), 1)
        .put(attr.cur_state as u32, 3)
        .put(attr.sqd_notify.into(), 1);
    [numbers.word, limits.word, path.word]
}

/// The other way round. What the mask does not name may be anything.
fn attributes_of(words: &Words, mask: AttrMask) -> QpAttr {
    let header = Header::of(words[1]);
    let mut attr = QpAttr::new(header.map(|header| header.to).unwrap_or_default());
    attr.av.dgid = whole(words[2], words[3]);
    let [mut numbers, mut limits, mut path] = [words[4], words[5], words[6]].map(Bits::of);
    attr.dest_qpn = Qpn::new(numbers.take(24));
    attr.rq_psn = Psn::new(numbers.take(24));
    (attr.timeout, attr.retry_cnt) = (numbers.take_u8(8), numbers.take_u8(8));
    attr.sq_psn = Psn::new(limits.take(24));
    (attr.rnr_retry, attr.min_rnr_timer) = (limits.take_u8(8), limits.take_u8(8));
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (limits.take_u8(8), limits.take_u8(8));
    attr.port = limits.take_u8(8);
    attr.access = Access::from_bits_retain(path.take(16));
    attr.pkey_index = u16::try_from(path.take(16)).unwrap_or(u16::MAX);
    (attr.av.sgid_index, attr.av.hop_limit) = (path.take_u8(8), path.take_u8(8));
    attr.av.traffic_class = path.take_u8(8);
    let mtu = path.take(3);
    let mtu = PathMtu::ALL.into_iter().find(|known| *known as u32 == mtu);
    attr.path_mtu = mtu.unwrap_or(PathMtu::B256);
    attr.av.link = (path.take(1) != 0).then(Default::default);
    attr.cur_state = path.take_state().unwrap_or_default();
    attr.sqd_notify = path.take(1) != 0;
    if mask.intersects(ALTERNATE) {
        let states = [PathMigState::Migrated, PathMigState::Rearm, PathMigState::Armed];
        let state = states.into_iter().find(|known| *known as u64 == words[SHORT]);
        attr.path_mig_state = state.unwrap_or_default();
        attr.alt_av.dgid = whole(words[SHORT + 1], words[SHORT + 2]);
    }
    attr
}

#[inline]
fn halves(gid: &Gid) -> [u64; 2] {
    let number = u128::from_be_bytes(gid.0);
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
    [(number >> 64) as u64, number as u64]
}

fn whole(high: u64, low: u64) -> Gid {
    Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
}

/// Bytes of words that fit a record.
const TEXT_BYTES: usize = (WORDS - WITH_ALTERNATE) * 8;

/// Words of an error, as far as they fit.
struct Text {
    bytes: [u8; TEXT_BYTES],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; TEXT_BYTES], len: 0 }
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let mut end = text.len().min(room.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        room[..end].copy_from_slice(&text.as_bytes()[..end]);
        self.len += end;
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

fn text_of(words: &Words) -> String {
    let bytes = words[WITH_ALTERNATE..].iter().flat_map(|word| word.to_le_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use pmd_roce::ids::LinkId;

    use super::*;

    /// Every attribute comes back, with the largest values that its field has.
    #[test]
    fn a_record_keeps_every_attribute() {
        let mut attr = QpAttr::new(QpState::Rtr);
        attr.cur_state = QpState::Error;
        attr.sqd_notify = true;
        attr.access = Access::from_bits_retain(0xffff);
        (attr.pkey_index, attr.port) = (u16::MAX, u8::MAX);
        attr.av.dgid = Gid(core::array::from_fn(|at| 0xf0 + u8::try_from(at).unwrap()));
        (attr.av.sgid_index, attr.av.hop_limit, attr.av.traffic_class) = (255, 254, 253);
        attr.av.link = Some(LinkId(7));
        attr.path_mtu = PathMtu::B4096;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) = (255, 254, 253, 252);
        (attr.sq_psn, attr.rq_psn) = (Psn::new(0xff_fffe), Psn::new(0xff_fffd));
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (251, 250);
        attr.dest_qpn = Qpn::new(0xff_fffc);
        attr.alt_av.dgid = Gid([0xab; 16]);
        attr.path_mig_state = PathMigState::Armed;
        let all = AttrMask::all() - AttrMask::CAP;
        let short = all - ALTERNATE;
        for (mask, by, result) in [
            (short, By::Recovery, Ok(())),
            (all, By::Connect, Ok(())),
            (all, By::Close, Err(ModifyQpError::DeviceFatal)),
        ] {
            let (mut journal, mut reader) = journal();
            let (device, transport, from) = ("soft0", Transport::XrcTgt, QpState::Sqe);
            let qpn = Qpn::new(0xff_fffb);
            let attempt = Attempt { device, transport, qpn, from, attr: &attr, mask, by };
            journal.attempt(Instant(1_000_000), &attempt, &result);
            let Some(Read::Record(words)) = reader.read() else { panic!("a record") };
            let Line::Record(record) = line(device, SystemTime::UNIX_EPOCH, 3, &words) else {
                panic!("a record")
            };
            assert_eq!(record.attrs, attributes(&attr, mask));
            assert_eq!((record.at_us, record.lcore, record.qpn), (1000, 3, 0xff_fffb));
            assert_eq!((&*record.transport, &*record.from, &*record.to), ("XRC_TGT", "SQE", "RTR"));
            assert_eq!((record.cause.by, record.mask), (by, mask.bits()));
            let reason = result.err().map(|error| error.to_string());
            assert_eq!(record.refused.map(|refusal| refusal.reason), reason);
        }
    }

    #[test]
    fn words_that_do_not_fit_are_cut_between_letters() {
        let mut text = Text::default();
        assert!(write!(text, "{}é", "x".repeat(TEXT_BYTES - 1)).is_err());
        assert_eq!(text.len, TEXT_BYTES - 1);
    }
}
