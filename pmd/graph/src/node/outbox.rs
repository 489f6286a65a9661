//! Messages on their way out of one connection.

use pmd_verbs::endpoint::{LocalKey, Op, Token};

use crate::edge::Line;
use crate::extent::Extent;
use crate::failure::Failure;

/// Sends messages inline where the device can, else from buffers of registered memory, one for each message that can be
/// under way. Keeps the one message that the device had no room for.
#[derive(Debug)]
pub(crate) struct Outbox {
    buffers: Extent,
    key: LocalKey,
    /// Bytes from one buffer to the next.
    stride: u32,
    /// Longest message that the device takes inline.
    inline: u32,
    left_behind: Option<(u32, u32, Token)>,
}

impl Outbox {
    /// Sends from `buffers`, registered as `key`, of `stride` bytes each.
    pub(crate) fn new(buffers: Extent, key: LocalKey, stride: u32, line: &Line) -> Self {
        Self { buffers, key, stride, inline: line.caps().inline, left_behind: None }
    }

    /// Forgets what was left behind: the connection is as new.
    pub(crate) fn reset(&mut self) {
        self.left_behind = None;
    }

    /// Whether it takes another message.
    pub(crate) fn is_clear(&self) -> bool {
        self.left_behind.is_none()
    }

    /// Sends what was left behind, if the device has room now. Returns whether it takes another message.
    pub(crate) fn clear(&mut self, now: u64, line: &mut Line) -> Result<bool, Failure> {
        if let Some((number, len, token)) = self.left_behind {
            let from = self.place(number, len);
            if !line.submit(now, Op::Send { from, imm: None }, token)? {
                return Ok(false);
            }
            self.left_behind = None;
        }
        Ok(true)
    }

    /// Sends a message; `number` is a buffer that nothing else uses until `token` settles. It must be clear.
    pub(crate) fn send(
        &mut self,
        now: u64,
        line: &mut Line,
        number: u32,
        bytes: &[u8],
        token: Token,
    ) -> Result<(), Failure> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if len <= self.inline && line.submit(now, Op::SendInline { bytes, imm: None }, token)? {
            return Ok(());
        }
        self.buffers.write_at(u64::from(number) * u64::from(self.stride), bytes)?;
        self.left_behind = Some((number, len, token));
        self.clear(now, line).map(|_| ())
    }

    fn place(&self, number: u32, len: u32) -> pmd_verbs::endpoint::Local {
        self.buffers.local(self.key, u64::from(number) * u64::from(self.stride), len)
    }
}
