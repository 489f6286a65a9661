//! The transition journal of a device: its lcores write, a control thread reads.
//!
//! A record is bytes in a slot of a ring of [`pmd_observe::journal`]; this file is the only one that knows which. What can
//! be worked out again from attributes and mask, as the reason of a refused transition, is not kept.

use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use pmd_observe::journal::{self, By, Line, Read, Reader, Record, Refusal, WORDS, Words, Writer};
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{Gid, Instant, PathMtu, Psn, Qpn};
use pmd_roce::qp::attr::{ModifyQpError, PathMigState, QpAttr};
use pmd_roce::qp::state::{self, AttrMask, QpState, TransitionError, Transport};
use pmd_roce::transition::{Cause, Transition};
use pmd_roce::work::{Access, WcStatus};

use crate::transition::{Attempt, attributes};

/// Records that an lcore keeps until they are read: a thousand queue pairs are brought up, by three calls each, and fail.
pub(crate) const JOURNAL_RECORDS: usize = 1 << 12;

const BYTES: usize = WORDS * 8;

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

/// What a record begins with.
struct Header {
    at: Instant,
    qpn: Qpn,
    transport: Transport,
    from: QpState,
    to: QpState,
    cause: u8,
    /// A status or the number of an event.
    detail: u32,
    mask: AttrMask,
    result: u8,
}

/// Results.
const MOVED: u8 = 0;
/// Against the state table: the table says why.
const TABLE: u8 = 1;
/// For another reason, whose words follow the attributes.
const WORDED: u8 = 2;
/// Records lost: `detail` of them.
const LOST: u8 = 3;

/// Causes: those of modify calls are [`By`], in its order.
const CALLS: [By; 4] = [By::Modify, By::Connect, By::Recovery, By::Close];
const SEND_FAILED: u8 = 4;
const RECEIVE_FAILED: u8 = 5;
const EVENT: u8 = 6;

impl Journal {
    /// A call that asks for a move, and what came of it.
    pub(crate) fn attempt(
        &mut self,
        now: Instant,
        attempt: &Attempt<'_>,
        result: &Result<(), ModifyQpError>,
    ) {
        let Attempt { transport, qpn, from, attr, mask, by, .. } = *attempt;
        let cause = CALLS.iter().position(|call| *call == by).unwrap_or_default();
        let mut pen = Pen::new();
        pen.header(&Header {
            at: now,
            qpn,
            transport,
            from,
            to: attempt.to(),
            cause: u8::try_from(cause).unwrap_or_default(),
            detail: 0,
            mask,
            result: match result {
                Ok(()) => MOVED,
                Err(ModifyQpError::Transition(_)) => TABLE,
                Err(_) => WORDED,
            },
        });
        pen.attr(attr);
        if let Err(error) = result
            && !matches!(error, ModifyQpError::Transition(_))
        {
            // What does not fit is cut off.
            write!(pen, "{error}").unwrap_or_default();
        }
        self.writer.push(&pen.words());
    }

    /// A move that a queue pair made by itself.
    pub(crate) fn fell(&mut self, transition: &Transition) {
        let Transition { at, qpn, transport, from, to, cause } = *transition;
        let (cause, detail) = match cause {
            Cause::Send(status) => (SEND_FAILED, status as u32),
            Cause::Receive(status) => (RECEIVE_FAILED, status as u32),
            Cause::Event(event) => (EVENT, event.number()),
        };
        let (mask, result) = (AttrMask::empty(), MOVED);
        let mut pen = Pen::new();
        pen.header(&Header { at, qpn, transport, from, to, cause, detail, mask, result });
        self.writer.push(&pen.words());
    }

    /// Moves that nobody noted in time.
    #[cold]
    pub(crate) fn lost(&mut self, now: Instant, count: u64) {
        let mut pen = Pen::new();
        pen.header(&Header {
            at: now,
            qpn: Qpn::default(),
            transport: Transport::Rc,
            from: QpState::Reset,
            to: QpState::Reset,
            cause: EVENT,
            detail: u32::try_from(count).unwrap_or(u32::MAX),
            mask: AttrMask::empty(),
            result: LOST,
        });
        self.writer.push(&pen.words());
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

fn line(device: &str, epoch: SystemTime, lcore: u32, words: &Words) -> Line {
    let mut eye = Eye::new(words);
    let Some(header) = eye.header() else { return Line::Lost { lost: 1 } };
    let Header { at, qpn, transport, from, to, cause, detail, mask, result } = header;
    if result == LOST {
        return Line::Lost { lost: detail.into() };
    }
    let attr = eye.attr();
    let at = epoch.checked_add(Duration::from_nanos(at.0)).unwrap_or(epoch);
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Line::Record(Box::new(Record {
        at_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        device: device.to_owned(),
        lcore,
        qpn: qpn.value(),
        transport: transport.name().to_owned(),
        from: from.name().to_owned(),
        to: to.name().to_owned(),
        cause: told(cause, detail, qpn),
        mask: mask.bits(),
        attrs: attributes(&attr, mask),
        refused: match result {
            MOVED => None,
            TABLE => state::check(transport, from, to, mask).err().map(|error| against(&error)),
            _ => Some(Refusal {
                errno: "EINVAL".to_owned(),
                reason: eye.text(),
                ..Refusal::default()
            }),
        },
    }))
}

fn told(cause: u8, detail: u32, qpn: Qpn) -> journal::Cause {
    if let Some(by) = CALLS.get(usize::from(cause)) {
        return journal::Cause { by: *by, ..journal::Cause::default() };
    }
    if cause == EVENT {
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

/// Writes a record's bytes, one value behind the other.
struct Pen {
    bytes: [u8; BYTES],
    at: usize,
}

impl Pen {
    const fn new() -> Self {
        Self { bytes: [0; BYTES], at: 0 }
    }

    /// Attributes and header have a known size; only words can be too long.
    fn put(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.bytes.get_mut(self.at..self.at + bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.at += bytes.len();
        true
    }

    fn header(&mut self, header: &Header) {
        let Header { at, qpn, transport, from, to, cause, detail, mask, result } = header;
        self.put(&at.0.to_le_bytes());
        self.put(&qpn.value().to_le_bytes());
        self.put(&[*transport as u8, *from as u8, *to as u8, *cause, *result]);
        self.put(&detail.to_le_bytes());
        self.put(&mask.bits().to_le_bytes());
    }

    fn attr(&mut self, attr: &QpAttr) {
        self.put(&[attr.state as u8, attr.cur_state as u8, attr.sqd_notify.into(), attr.port]);
        self.put(&attr.access.bits().to_le_bytes());
        self.put(&attr.pkey_index.to_le_bytes());
        self.put(&attr.path_mtu.bytes_u32().to_le_bytes());
        self.put(&[attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer]);
        self.put(&attr.sq_psn.value().to_le_bytes());
        self.put(&attr.rq_psn.value().to_le_bytes());
        self.put(&attr.dest_qpn.value().to_le_bytes());
        self.put(&[attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.path_mig_state as u8]);
        let av = &attr.av;
        self.put(&av.dgid.0);
        self.put(&[av.is_global.into(), av.link.is_some().into(), av.sgid_index]);
        self.put(&[av.hop_limit, av.traffic_class]);
        self.put(&attr.alt_av.dgid.0);
    }

    fn words(&self) -> Words {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(self.bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        words
    }
}

impl fmt::Write for Pen {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = BYTES - self.at;
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.put(&text.as_bytes()[..end]);
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Reads what a [`Pen`] has written.
struct Eye {
    bytes: [u8; BYTES],
    at: usize,
}

impl Eye {
    fn new(words: &Words) -> Self {
        let mut bytes = [0; BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Self { bytes, at: 0 }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.bytes[self.at..].first_chunk::<N>();
        self.at += N;
        taken.copied().unwrap_or([0; N])
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn header(&mut self) -> Option<Header> {
        let at = Instant(u64::from_le_bytes(self.take()));
        let qpn = Qpn::new(self.u32());
        let [transport, from, to, cause, result] = self.take();
        Some(Header {
            at,
            qpn,
            transport: Transport::ALL.into_iter().find(|known| *known as u8 == transport)?,
            from: *QpState::ALL.get(usize::from(from))?,
            to: *QpState::ALL.get(usize::from(to))?,
            cause,
            detail: self.u32(),
            mask: AttrMask::from_bits_retain(self.u32()),
            result,
        })
    }

    fn attr(&mut self) -> QpAttr {
        let state = |number: u8| QpState::ALL.get(usize::from(number)).copied().unwrap_or_default();
        let [to, cur_state, sqd_notify, port] = self.take();
        let mut attr = QpAttr::new(state(to));
        (attr.cur_state, attr.sqd_notify, attr.port) = (state(cur_state), sqd_notify != 0, port);
        attr.access = Access::from_bits_retain(self.u32());
        attr.pkey_index = u16::from_le_bytes(self.take());
        attr.path_mtu = self.mtu();
        [attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer] = self.take();
        attr.sq_psn = Psn::new(self.u32());
        attr.rq_psn = Psn::new(self.u32());
        attr.dest_qpn = Qpn::new(self.u32());
        let migration;
        [attr.max_rd_atomic, attr.max_dest_rd_atomic, migration] = self.take();
        attr.path_mig_state = [PathMigState::Migrated, PathMigState::Rearm, PathMigState::Armed]
            .into_iter()
            .find(|known| *known as u8 == migration)
            .unwrap_or_default();
        attr.av.dgid = Gid(self.take());
        let (global, link);
        [global, link, attr.av.sgid_index] = self.take();
        attr.av.is_global = global != 0;
        attr.av.link = (link != 0).then(Default::default);
        [attr.av.hop_limit, attr.av.traffic_class] = self.take();
        attr.alt_av.dgid = Gid(self.take());
        attr
    }

    fn mtu(&mut self) -> PathMtu {
        let bytes = self.u32();
        PathMtu::ALL.into_iter().find(|mtu| mtu.bytes_u32() == bytes).unwrap_or(PathMtu::B256)
    }

    /// The words that follow.
    fn text(&self) -> String {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        String::from_utf8_lossy(&rest[..end]).into_owned()
    }
}
