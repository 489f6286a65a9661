//! What a queue pair may be created with.

use super::attr::{CreateQpError, QpCap, QpInit};
use super::state::Transport;
use crate::device::Device;
use crate::limits::{MAX_INLINE, MAX_QP_WR, MAX_SGE};

/// Checks the wishes and returns them with the caps that are granted.
pub(crate) fn check(init: &QpInit, dev: &Device) -> Result<QpInit, CreateQpError> {
    use Transport::{RawPacket, Rc, Ud, XrcIni, XrcTgt};
    let transport = init.transport;
    if dev.fatal {
        return Err(CreateQpError::DeviceFatal);
    }
    if transport == RawPacket {
        return Err(CreateQpError::Transport(transport));
    }
    if init.xrcd.is_some() != (transport == XrcTgt) {
        return Err(CreateQpError::XrcDomain);
    }
    if let Some(srqn) = init.srq {
        let ordinary = dev.srqs.get(srqn).is_some_and(|srq| srq.xrc().is_none());
        if !ordinary || !matches!(transport, Rc | Ud) {
            return Err(CreateQpError::NoSuchSrq(init.srq));
        }
    }
    let range = |field, asked, max| match asked {
        asked if asked <= max => Ok(()),
        asked => Err(CreateQpError::Range { field, asked, min: 0, max }),
    };
    let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.cap;
    let has_sq = transport != XrcTgt;
    // Fields without a queue behind them are ignored, as ibv_create_qp(3) says.
    let has_rq = init.srq.is_none() && !matches!(transport, XrcIni | XrcTgt);
    let mut cap = QpCap {
        max_send_wr: 0,
        max_recv_wr: 0,
        max_send_sge: 0,
        max_recv_sge: 0,
        max_inline_data: 0,
    };
    if has_sq {
        range("max_send_wr", max_send_wr, MAX_QP_WR)?;
        range("max_send_sge", max_send_sge, MAX_SGE)?;
        range("max_inline_data", max_inline_data, MAX_INLINE)?;
        cap.max_send_wr = ring_size(max_send_wr);
        cap.max_send_sge = max_send_sge;
        cap.max_inline_data = max_inline_data;
    }
    if has_rq {
        range("max_recv_wr", max_recv_wr, MAX_QP_WR)?;
        range("max_recv_sge", max_recv_sge, MAX_SGE)?;
        cap.max_recv_wr = ring_size(max_recv_wr);
        cap.max_recv_sge = max_recv_sge;
    }
    Ok(QpInit { cap, ..*init })
}

/// Rings are powers of two, so that a counter becomes an index by a mask.
const fn ring_size(asked: u32) -> u32 {
    if asked == 0 { 0 } else { asked.next_power_of_two() }
}
