//! The devices that libibverbs knows: which there are, what they can do, and opening one.

use ::core::ffi::{CStr, c_int};
use std::fs;
use std::io;
use std::path::PathBuf;

use pmd_roce::engine::Refusal;
use pmd_roce::ids::{Gid, PathMtu};
use pmd_roce::limits::MAX_SGE;
use pmd_roce::port::PortState;

use super::abi::{
    ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_pd, ibv_port_attr,
    ibv_qp_cap, ibv_qp_init_attr,
};
use super::library::{Library, LibraryError, Owned};
use crate::attr::{DeviceAttr, PortAttr};
use crate::gid::{GidEntry, GidError, GidTable, RoceVersion};

/// Which device of rdma-core to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicChoice {
    /// Its name, as in `mlx5_0`; `None`: the first with an active port.
    pub name: Option<String>,
    /// Its port, from 1; `None`: the first that is active.
    pub port: Option<u8>,
    /// Index into the port's GID table; `None`: the best one.
    pub gid_index: Option<u32>,
}

/// Why a device of rdma-core was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NicError {
    /// libibverbs is not there, or too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// There is no device at all.
    #[error(
        "there is no RDMA device: `rdma link` lists them; load the NIC's driver, or try kernel RoCE: modprobe rdma_rxe && \
         rdma link add rxe0 type rxe netdev eth0"
    )]
    NoDevice,
    /// None of this name.
    #[error("there is no RDMA device {name:?}; there is {}", found.join(", "))]
    NoSuchDevice {
        /// Name asked for.
        name: String,
        /// Names of those that there are.
        found: Vec<String>,
    },
    /// The device has no such port.
    #[error("{device} has ports 1 to {ports}, not {port}")]
    Port {
        /// Name of the device.
        device: String,
        /// Port asked for.
        port: u8,
        /// Ports that it has.
        ports: u8,
    },
    /// InfiniBand and iWARP work in other ways.
    #[error("{device} port {port} is no Ethernet port: RoCE is what works here")]
    LinkLayer {
        /// Name of the device.
        device: String,
        /// Its port.
        port: u8,
    },
    /// No address to use.
    #[error("{device} port {port}: {reason}")]
    Gid {
        /// Name of the device.
        device: String,
        /// Its port.
        port: u8,
        /// Why.
        reason: GidError,
    },
    /// The driver refused.
    #[error("{device}: {reason}")]
    Driver {
        /// Name of the device.
        device: String,
        /// What, and why.
        reason: Refusal,
    },
}

/// A device as libibverbs reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicInfo {
    /// Its name.
    pub name: String,
    /// Its driver, in one word.
    pub driver: String,
    /// Version of its firmware.
    pub firmware: String,
    /// What it can do; for all its lcores together.
    pub attr: DeviceAttr,
    /// Its ports by number.
    pub ports: Vec<(u8, PortAttr)>,
}

/// Lists the devices that libibverbs knows. None is not an error.
///
/// # Errors
/// [`NicError`] where the library is not there, or a driver does not answer.
pub fn nics() -> Result<Vec<NicInfo>, NicError> {
    let each = |name: &String| {
        let open = Open::named(name)?;
        let device = open.query()?;
        let ports = (1..=device.phys_port_cnt).map(|port| Ok((port, open.port(port)?)));
        Ok(NicInfo {
            name: name.clone(),
            driver: driver(name),
            firmware: text(&device.fw_ver),
            attr: open.attr()?,
            ports: ports.collect::<Result<_, NicError>>()?,
        })
    };
    names(Library::get()?).iter().map(each).collect()
}

/// A call that answers with an error number, as most do.
pub(super) fn checked(call: &'static str, status: c_int) -> Result<(), Refusal> {
    match status {
        0 => Ok(()),
        // Some drivers answer -1 and leave the reason in errno, others the number itself, of either sign.
        -1 => Err(refusal(call, &io::Error::last_os_error())),
        errno => Err(Refusal { call, errno: errno.abs() }),
    }
}

pub(super) fn refusal(call: &'static str, error: &io::Error) -> Refusal {
    Refusal { call, errno: error.raw_os_error().unwrap_or(0) }
}

/// The driver of a device, in one word: of a PCI device its kernel module, else what a virtual device calls itself.
pub(super) fn driver(name: &str) -> String {
    let class = PathBuf::from("/sys/class/infiniband").join(name);
    let module = fs::canonicalize(class.join("device/driver"))
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let node = || fs::read_to_string(class.join("node_desc")).unwrap_or_default();
    let word = module.unwrap_or_else(node);
    let word = word.split_whitespace().next().unwrap_or("unknown");
    word.trim_end_matches("_core").trim_end_matches("_ib").to_owned()
}

fn text(bytes: &[u8]) -> String {
    let bytes: Vec<u8> = bytes.iter().copied().take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Walks through the device list, for as long as it is there.
fn each_device<R>(library: &Library, look: impl FnOnce(&[*mut ibv_device]) -> R) -> R {
    let mut count = 0;
    // SAFETY: the list is null, or holds `count` devices.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        // There is no kernel support: there are no devices.
        return look(&[]);
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: as above, until the list is freed.
    let looked = look(unsafe { ::core::slice::from_raw_parts(list, count) });
    // SAFETY: the list was made above; devices that were opened stay.
    unsafe { (library.ibv_free_device_list)(list) };
    looked
}

fn name_of(library: &Library, device: *mut ibv_device) -> String {
    // SAFETY: the device is one of the list that is there.
    let name = unsafe { (library.ibv_get_device_name)(device) };
    // SAFETY: the library returns a string of the device, which ends with a zero.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

fn names(library: &Library) -> Vec<String> {
    each_device(library, |list| list.iter().map(|device| name_of(library, *device)).collect())
}

/// An open device.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) name: String,
    pub(super) context: Owned<ibv_context>,
}

impl Open {
    /// The device that a choice means, and its port.
    pub(super) fn chosen(choice: &NicChoice) -> Result<(Self, u8), NicError> {
        let found = names(Library::get()?);
        if let Some(name) = &choice.name {
            if !found.contains(name) {
                return Err(match found.is_empty() {
                    true => NicError::NoDevice,
                    false => NicError::NoSuchDevice { name: name.clone(), found },
                });
            }
            let open = Self::named(name)?;
            let port = open.port_of(choice)?.0;
            return Ok((open, port));
        }
        let mut first = None;
        for name in &found {
            let open = Self::named(name)?;
            let (port, is_active) = open.port_of(choice)?;
            if is_active {
                return Ok((open, port));
            }
            first.get_or_insert((open, port));
        }
        first.ok_or(NicError::NoDevice)
    }

    /// Opens a device for itself: other openings of it share nothing with this one.
    pub(super) fn named(name: &str) -> Result<Self, NicError> {
        let library = Library::get()?;
        let opened = each_device(library, |list| {
            let device = list.iter().find(|device| name_of(library, **device) == name)?;
            // SAFETY: the device is of the list that is there.
            let raw = unsafe { (library.ibv_open_device)(*device) };
            // SAFETY: it was opened just now, and nobody else has it.
            Some(unsafe { Owned::new(raw, library.ibv_close_device) })
        });
        let device = name.to_owned();
        match opened {
            None => Err(NicError::NoSuchDevice { name: device, found: names(library) }),
            Some(Ok(context)) => Ok(Self { name: device, context }),
            Some(Err(error)) => {
                Err(NicError::Driver { device, reason: refusal("ibv_open_device", &error) })
            }
        }
    }

    pub(super) fn failed(&self, reason: Refusal) -> NicError {
        NicError::Driver { device: self.name.clone(), reason }
    }

    /// The port that a choice means, and whether it is active.
    fn port_of(&self, choice: &NicChoice) -> Result<(u8, bool), NicError> {
        let ports = self.query()?.phys_port_cnt;
        let is_active = |port| Ok::<_, NicError>(self.port_attr(port)?.state == ACTIVE);
        if let Some(port) = choice.port {
            if port == 0 || port > ports {
                return Err(NicError::Port { device: self.name.clone(), port, ports });
            }
            return Ok((port, is_active(port)?));
        }
        for port in 1..=ports {
            if is_active(port)? {
                return Ok((port, true));
            }
        }
        Ok((1, false))
    }

    pub(super) fn query(&self) -> Result<ibv_device_attr, NicError> {
        let mut attr = ::core::mem::MaybeUninit::<ibv_device_attr>::zeroed();
        let library = Library::get()?;
        // SAFETY: the context is open, and there is room for what is written.
        let status = unsafe { (library.ibv_query_device)(self.context.get(), attr.as_mut_ptr()) };
        checked("ibv_query_device", status).map_err(|reason| self.failed(reason))?;
        // SAFETY: all of it is numbers, which were zero before.
        Ok(unsafe { attr.assume_init() })
    }

    fn port_attr(&self, port: u8) -> Result<ibv_port_attr, NicError> {
        let mut attr = ibv_port_attr::default();
        let library = Library::get()?;
        // SAFETY: the context is open, and there is room for what is written.
        let status = unsafe { (library.ibv_query_port)(self.context.get(), port, &raw mut attr) };
        checked("ibv_query_port", status).map_err(|reason| self.failed(reason))?;
        Ok(attr)
    }

    /// A port with its GID table.
    pub(super) fn port(&self, port: u8) -> Result<PortAttr, NicError> {
        let attr = self.port_attr(port)?;
        let mtu = u8::try_from(attr.active_mtu).ok().and_then(PathMtu::from_code);
        Ok(PortAttr {
            state: if attr.state == ACTIVE { PortState::Active } else { PortState::Down },
            active_mtu: mtu.unwrap_or(PathMtu::B256),
            gids: self.gids(port, u32::try_from(attr.gid_tbl_len).unwrap_or(0))?,
        })
    }

    /// Whether a port is one of Ethernet.
    pub(super) fn is_ethernet(&self, port: u8) -> Result<bool, NicError> {
        Ok(self.port_attr(port)?.link_layer == ETHERNET)
    }

    /// Bytes of the largest message of a port.
    pub(super) fn max_message(&self, port: u8) -> Result<u32, NicError> {
        Ok(self.port_attr(port)?.max_msg_sz)
    }

    /// The GID table of a port, without the entries that are empty.
    pub(super) fn gids(&self, port: u8, len: u32) -> Result<GidTable, NicError> {
        let library = Library::get()?;
        let ports = u32::from(self.query()?.phys_port_cnt.max(1));
        let mut entries = vec![ibv_gid_entry::default(); (len.max(1) * ports) as usize];
        let (room, size) = (entries.len(), size_of::<ibv_gid_entry>());
        // SAFETY: the context is open, and there is room for as many entries as are asked for.
        let found = unsafe {
            (library._ibv_query_gid_table)(self.context.get(), entries.as_mut_ptr(), room, 0, size)
        };
        let found = usize::try_from(found).map_err(|_| {
            let errno = i32::try_from(found.unsigned_abs()).unwrap_or(0);
            self.failed(Refusal { call: "ibv_query_gid_table", errno })
        })?;
        entries.truncate(found);
        let interfaces = interfaces();
        let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(port));
        let entry = |entry: &ibv_gid_entry| GidEntry {
            index: entry.gid_index,
            gid: Gid(entry.gid),
            version: if entry.gid_type == ROCE_V2 { RoceVersion::V2 } else { RoceVersion::V1 },
            netdev: interfaces
                .iter()
                .find(|(index, _)| *index == entry.ndev_ifindex)
                .map(|(_, name)| name.clone()),
        };
        Ok(GidTable { len, entries: of_port.map(entry).collect() })
    }

    /// What it can do, as the rest of this crate asks.
    pub(super) fn attr(&self) -> Result<DeviceAttr, NicError> {
        let attr = self.query()?;
        let count = |count: c_int| u32::try_from(count).unwrap_or(0);
        let byte = |count: c_int| u8::try_from(count).unwrap_or(u8::MAX);
        Ok(DeviceAttr {
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            max_sge: count(attr.max_sge).min(MAX_SGE),
            max_inline_data: self.max_inline()?,
            max_cqe: count(attr.max_cqe),
            max_srq: count(attr.max_srq),
            max_srq_wr: count(attr.max_srq_wr),
            max_ah: count(attr.max_ah),
            max_qp_rd_atom: byte(attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom)),
            auto_path_mig: attr.device_cap_flags & AUTO_PATH_MIG != 0,
        })
    }

    /// The most inline bytes that a queue pair can have. No attribute says so: queue pairs are asked for.
    fn max_inline(&self) -> Result<u32, NicError> {
        let library = Library::get()?;
        // SAFETY: the context is open.
        let pd = unsafe { (library.ibv_alloc_pd)(self.context.get()) };
        // SAFETY: it was made just now.
        let pd: io::Result<Owned<ibv_pd>> = unsafe { Owned::new(pd, library.ibv_dealloc_pd) };
        let pd = pd.map_err(|error| self.failed(refusal("ibv_alloc_pd", &error)))?;
        let none = ::core::ptr::null_mut();
        // SAFETY: the context is open; without a channel the queue tells nobody.
        let cq = unsafe { (library.ibv_create_cq)(self.context.get(), 1, none, none.cast(), 0) };
        // SAFETY: it was made just now.
        let cq: io::Result<Owned<ibv_cq>> = unsafe { Owned::new(cq, library.ibv_destroy_cq) };
        let cq = cq.map_err(|error| self.failed(refusal("ibv_create_cq", &error)))?;
        let takes = |bytes: &u32| {
            let cap = ibv_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: *bytes,
            };
            let mut init = ibv_qp_init_attr {
                qp_context: none,
                send_cq: cq.get(),
                recv_cq: cq.get(),
                srq: ::core::ptr::null_mut(),
                cap,
                qp_type: pmd_roce::qp::state::Transport::Rc as c_int,
                sq_sig_all: 0,
            };
            // SAFETY: domain and queue are alive, and everything that is read is set.
            let qp = unsafe { (library.ibv_create_qp)(pd.get(), &raw mut init) };
            // SAFETY: it was made just now.
            unsafe { Owned::new(qp, library.ibv_destroy_qp) }.is_ok()
        };
        Ok(INLINE_SIZES.into_iter().find(takes).unwrap_or(0))
    }
}

/// Inline bytes that drivers are made for.
const INLINE_SIZES: [u32; 7] = [1024, 512, 256, 220, 128, 64, 32];
/// `IBV_PORT_ACTIVE`.
const ACTIVE: c_int = PortState::Active as c_int;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;
/// `IBV_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;
/// `IBV_DEVICE_AUTO_PATH_MIG`.
const AUTO_PATH_MIG: u32 = 1 << 4;

/// The network interfaces that are up, by index.
fn interfaces() -> Vec<(u32, String)> {
    let Ok(folder) = fs::read_dir("/sys/class/net") else { return Vec::new() };
    let each = folder.filter_map(|entry| {
        let entry = entry.ok()?;
        let index = fs::read_to_string(entry.path().join("ifindex")).ok()?;
        // What has no carrier is no better than what is down; what does not know, as loopback, is up.
        let state = fs::read_to_string(entry.path().join("operstate")).ok()?;
        let is_up = matches!(state.trim(), "up" | "unknown");
        is_up.then_some((index.trim().parse().ok()?, entry.file_name().to_string_lossy().into()))
    });
    each.collect()
}
