//! The types of `infiniband/verbs.h` that are used here, by their own names. What only the library makes is known up to the
//! last field that is read.
//!
//! Sizes and offsets are asserted below. `ci/abi` compares the same lines with the headers of this machine.

use ::core::ffi::{c_int, c_uint, c_void};

/// `struct ibv_device`: only pointers to it are passed on.
#[repr(C)]
pub(super) struct ibv_device {
    opaque: [u8; 0],
}

/// `struct ibv_pd`, likewise.
#[repr(C)]
pub(super) struct ibv_pd {
    opaque: [u8; 0],
}

/// `struct ibv_ah`, likewise.
#[repr(C)]
pub(super) struct ibv_ah {
    opaque: [u8; 0],
}

/// `struct ibv_srq`, up to what is read.
#[repr(C)]
pub(super) struct ibv_srq {
    pub(super) context: *mut ibv_context,
}

type AllocMw = unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw;
type DeallocMw = unsafe extern "C" fn(*mut ibv_mw) -> c_int;
pub(super) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(super) type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
pub(super) type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub(super) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub(super) type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// `struct ibv_context_ops`: what the headers call directly.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ibv_context_ops {
    _compat: [*const c_void; 7],
    pub(super) alloc_mw: Option<AllocMw>,
    bind_mw: *const c_void,
    pub(super) dealloc_mw: Option<DeallocMw>,
    _compat_create_cq: *const c_void,
    pub(super) poll_cq: PollCq,
    pub(super) req_notify_cq: ReqNotifyCq,
    _compat_cq_event: [*const c_void; 7],
    pub(super) post_srq_recv: PostSrqRecv,
    _compat_create_qp: [*const c_void; 4],
    pub(super) post_send: PostSend,
    pub(super) post_recv: PostRecv,
    _compat_create_ah: [*const c_void; 5],
}

/// `struct ibv_context`, up to its lock.
#[repr(C)]
pub(super) struct ibv_context {
    device: *mut ibv_device,
    pub(super) ops: ibv_context_ops,
    cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct ibv_comp_channel {
    context: *mut ibv_context,
    pub(super) fd: c_int,
    refcnt: c_int,
}

/// `struct ibv_cq`, up to its lock.
#[repr(C)]
pub(super) struct ibv_cq {
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    pub(super) cq_context: *mut c_void,
    handle: u32,
    pub(super) cqe: c_int,
}

/// `struct ibv_qp`, up to its lock.
#[repr(C)]
pub(super) struct ibv_qp {
    context: *mut ibv_context,
    qp_context: *mut c_void,
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct ibv_mr {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub(super) struct ibv_mw {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    pub(super) rkey: u32,
    handle: u32,
    kind: c_int,
}

/// `struct ibv_device_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ibv_device_attr {
    pub(super) fw_ver: [u8; 64],
    pub(super) node_guid: u64,
    sys_image_guid: u64,
    max_mr_size: u64,
    page_size_cap: u64,
    pub(super) vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub(super) max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    atomic_cap: c_int,
    max_ee: c_int,
    max_rdd: c_int,
    max_mw: c_int,
    max_raw_ipv6_qp: c_int,
    max_raw_ethy_qp: c_int,
    max_mcast_grp: c_int,
    max_mcast_qp_attach: c_int,
    max_total_mcast_qp_attach: c_int,
    pub(super) max_ah: c_int,
    max_fmr: c_int,
    max_map_per_fmr: c_int,
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    max_srq_sge: c_int,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct ibv_port_attr {
    pub(super) state: c_int,
    max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pkey_tbl_len: u16,
    lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    pub(super) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
    // Room for what a library of another age may write behind.
    later: u32,
}

/// `struct ibv_gid_entry`.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct ibv_gid_entry {
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `struct ibv_global_route`.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct ibv_global_route {
    pub(super) dgid: [u8; 16],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct ibv_ah_attr {
    pub(super) grh: ibv_global_route,
    dlid: u16,
    pub(super) sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

impl ibv_ah_attr {
    /// With nothing in it.
    pub(super) const fn zero() -> Self {
        Self {
            grh: ibv_global_route {
                dgid: [0; 16],
                flow_label: 0,
                sgid_index: 0,
                hop_limit: 0,
                traffic_class: 0,
            },
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 0,
            port_num: 0,
        }
    }
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct ibv_qp_cap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct ibv_qp_init_attr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) cap: ibv_qp_cap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct ibv_qp_attr {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: ibv_qp_cap,
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) alt_ah_attr: ibv_ah_attr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct ibv_srq_attr {
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(super) struct ibv_srq_init_attr {
    pub(super) srq_context: *mut c_void,
    pub(super) attr: ibv_srq_attr,
}

/// `struct ibv_async_event`; its element is a pointer, or the number of a port.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ibv_async_event {
    pub(super) element: *mut c_void,
    pub(super) event_type: c_int,
}

/// `struct ibv_sge`, laid out as [`Sge`](pmd_roce::work::Sge).
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ibv_sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct ibv_recv_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
}

/// `wr.rdma` of a send request.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct rdma {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

/// `wr.atomic` of a send request.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct atomic {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

/// `wr.ud` of a send request.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ud {
    pub(super) ah: *mut ibv_ah,
    pub(super) remote_qpn: u32,
    pub(super) remote_qkey: u32,
}

/// `wr` of a send request.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union wr {
    pub(super) rdma: rdma,
    pub(super) atomic: atomic,
    pub(super) ud: ud,
}

/// `struct ibv_mw_bind_info`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ibv_mw_bind_info {
    pub(super) mr: *mut ibv_mr,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) mw_access_flags: c_uint,
}

/// `bind_mw` of a send request.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct bind_mw {
    pub(super) mw: *mut ibv_mw,
    pub(super) rkey: u32,
    pub(super) bind_info: ibv_mw_bind_info,
}

/// `struct ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ibv_send_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    /// Immediate data in the order of the wire, or the key to invalidate.
    pub(super) imm_data: u32,
    pub(super) wr: wr,
    /// `qp_type.xrc`.
    pub(super) remote_srqn: u32,
    pub(super) bind_mw: bind_mw,
}

/// `struct ibv_wc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ibv_wc {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// Immediate data in the order of the wire, or the key that was invalidated.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// A size, as `sizeof` has it.
macro_rules! size {
    ($type:ident, $bytes:literal) => {
        const _: () = assert!(size_of::<$type>() == $bytes);
    };
}

/// An offset, as `offsetof` has it.
macro_rules! offset {
    ($type:ident, $($field:ident).+, $bytes:literal) => {
        const _: () = assert!(::core::mem::offset_of!($type, $($field).+) == $bytes);
    };
}

size!(ibv_context_ops, 256);
size!(ibv_comp_channel, 16);
size!(ibv_mr, 48);
size!(ibv_mw, 32);
size!(ibv_device_attr, 232);
size!(ibv_gid_entry, 32);
size!(ibv_global_route, 24);
size!(ibv_ah_attr, 32);
size!(ibv_qp_cap, 20);
size!(ibv_qp_init_attr, 64);
size!(ibv_qp_attr, 144);
size!(ibv_srq_init_attr, 24);
size!(ibv_async_event, 16);
size!(ibv_sge, 16);
size!(ibv_recv_wr, 32);
size!(ibv_send_wr, 128);
size!(ibv_mw_bind_info, 32);
size!(ibv_wc, 48);
offset!(ibv_srq, context, 0);
offset!(ibv_context_ops, alloc_mw, 56);
offset!(ibv_context_ops, dealloc_mw, 72);
offset!(ibv_context_ops, poll_cq, 88);
offset!(ibv_context_ops, req_notify_cq, 96);
offset!(ibv_context_ops, post_srq_recv, 160);
offset!(ibv_context_ops, post_send, 200);
offset!(ibv_context_ops, post_recv, 208);
offset!(ibv_context, ops, 8);
offset!(ibv_context, async_fd, 268);
offset!(ibv_context, num_comp_vectors, 272);
offset!(ibv_comp_channel, fd, 8);
offset!(ibv_cq, cq_context, 16);
offset!(ibv_cq, cqe, 28);
offset!(ibv_qp, qp_num, 52);
offset!(ibv_mr, lkey, 36);
offset!(ibv_mr, rkey, 40);
offset!(ibv_mw, rkey, 16);
offset!(ibv_device_attr, node_guid, 64);
offset!(ibv_device_attr, vendor_id, 96);
offset!(ibv_device_attr, max_qp, 108);
offset!(ibv_device_attr, device_cap_flags, 116);
offset!(ibv_device_attr, max_cqe, 132);
offset!(ibv_device_attr, max_qp_rd_atom, 144);
offset!(ibv_device_attr, max_qp_init_rd_atom, 156);
offset!(ibv_device_attr, max_ah, 200);
offset!(ibv_device_attr, max_srq_wr, 216);
offset!(ibv_device_attr, phys_port_cnt, 227);
offset!(ibv_port_attr, active_mtu, 8);
offset!(ibv_port_attr, gid_tbl_len, 12);
offset!(ibv_port_attr, max_msg_sz, 20);
offset!(ibv_port_attr, link_layer, 46);
offset!(ibv_gid_entry, gid_index, 16);
offset!(ibv_gid_entry, port_num, 20);
offset!(ibv_gid_entry, gid_type, 24);
offset!(ibv_gid_entry, ndev_ifindex, 28);
offset!(ibv_global_route, flow_label, 16);
offset!(ibv_global_route, sgid_index, 20);
offset!(ibv_global_route, hop_limit, 21);
offset!(ibv_global_route, traffic_class, 22);
offset!(ibv_ah_attr, sl, 26);
offset!(ibv_ah_attr, is_global, 29);
offset!(ibv_ah_attr, port_num, 30);
offset!(ibv_qp_init_attr, send_cq, 8);
offset!(ibv_qp_init_attr, srq, 24);
offset!(ibv_qp_init_attr, cap, 32);
offset!(ibv_qp_init_attr, qp_type, 52);
offset!(ibv_qp_init_attr, sq_sig_all, 56);
offset!(ibv_qp_attr, path_mig_state, 12);
offset!(ibv_qp_attr, dest_qp_num, 28);
offset!(ibv_qp_attr, cap, 36);
offset!(ibv_qp_attr, ah_attr, 56);
offset!(ibv_qp_attr, alt_ah_attr, 88);
offset!(ibv_qp_attr, pkey_index, 120);
offset!(ibv_qp_attr, en_sqd_async_notify, 124);
offset!(ibv_qp_attr, max_rd_atomic, 126);
offset!(ibv_qp_attr, min_rnr_timer, 128);
offset!(ibv_qp_attr, alt_timeout, 134);
offset!(ibv_srq_init_attr, attr, 8);
offset!(ibv_async_event, event_type, 8);
offset!(ibv_sge, length, 8);
offset!(ibv_sge, lkey, 12);
offset!(ibv_recv_wr, next, 8);
offset!(ibv_recv_wr, sg_list, 16);
offset!(ibv_recv_wr, num_sge, 24);
offset!(ibv_send_wr, opcode, 28);
offset!(ibv_send_wr, send_flags, 32);
offset!(ibv_send_wr, imm_data, 36);
offset!(ibv_send_wr, wr, 40);
offset!(ibv_send_wr, wr.rdma.rkey, 48);
offset!(ibv_send_wr, wr.atomic.compare_add, 48);
offset!(ibv_send_wr, wr.atomic.swap, 56);
offset!(ibv_send_wr, wr.atomic.rkey, 64);
offset!(ibv_send_wr, wr.ud.remote_qpn, 48);
offset!(ibv_send_wr, wr.ud.remote_qkey, 52);
offset!(ibv_send_wr, bind_mw, 80);
offset!(ibv_send_wr, bind_mw.rkey, 88);
offset!(ibv_send_wr, bind_mw.bind_info, 96);
offset!(ibv_mw_bind_info, mw_access_flags, 24);
offset!(ibv_wc, status, 8);
offset!(ibv_wc, opcode, 12);
offset!(ibv_wc, byte_len, 20);
offset!(ibv_wc, imm_data, 24);
offset!(ibv_wc, qp_num, 28);
offset!(ibv_wc, src_qp, 32);
offset!(ibv_wc, wc_flags, 36);
