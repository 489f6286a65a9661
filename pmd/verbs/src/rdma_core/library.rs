//! libibverbs, loaded when it is first needed: nothing of this program depends on it before.

use ::core::ffi::{c_char, c_int, c_uint, c_void};
use ::core::ptr::NonNull;
use std::io;
use std::sync::OnceLock;

use super::abi::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};

/// The name under which every distribution has it.
const NAME: &str = "libibverbs.so.1";

/// libibverbs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// It is not there.
    #[error("{NAME} is not installed ({0}): apt install libibverbs1 ibverbs-providers")]
    Missing(String),
    /// It has not all that is needed.
    #[error(
        "{NAME} lacks {symbol}: it is older than rdma-core 32; install a newer libibverbs1 and ibverbs-providers"
    )]
    Symbol {
        /// What it lacks.
        symbol: &'static str,
    },
}

macro_rules! library {
    ($($name:ident: fn($($arg:ty),*) $(-> $out:ty)?;)*) => {
        /// Its functions, by their own names, which the manual pages of section 3 describe.
        #[derive(Debug)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
        }

        impl Library {
            fn load() -> Result<Self, LibraryError> {
                // SAFETY: the library's constructors only set up its own state.
                let library = unsafe { libloading::Library::new(NAME) };
                let library = library.map_err(|error| LibraryError::Missing(error.to_string()))?;
                // It stays for as long as the process: its providers have threads and handlers of their own.
                let library = Box::leak(Box::new(library));
                Ok(Self {$(
                    $name: {
                        let symbol = stringify!($name);
                        // SAFETY: the function of this name has this signature, as verbs.h declares it.
                        let found = unsafe { library.get(symbol.as_bytes()) };
                        *found.map_err(|_| LibraryError::Symbol { symbol })?
                    },
                )*})
            }
        }
    };
}

library! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    _ibv_query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    ibv_query_srq: fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah: fn(*mut ibv_ah) -> c_int;
    ibv_attach_mcast: fn(*mut ibv_qp, *const [u8; 16], u16) -> c_int;
    ibv_detach_mcast: fn(*mut ibv_qp, *const [u8; 16], u16) -> c_int;
    ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: fn(*mut ibv_async_event);
}

impl Library {
    /// The library, loaded by the first who asks.
    ///
    /// # Errors
    /// [`LibraryError`]; it stays the same for as long as the process.
    pub(super) fn get() -> Result<&'static Self, LibraryError> {
        static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }
}

/// An object that the library has made, and that ends with this.
pub(super) struct Owned<T> {
    raw: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T) -> c_int,
}

impl<T> Owned<T> {
    /// Takes over what a call returned, that `destroy` ends.
    ///
    /// # Errors
    /// What the call left as its reason, where it returned nothing.
    ///
    /// # Safety
    /// `raw` is null, or an object that nobody else destroys, and that `destroy` is the right function for.
    pub(super) unsafe fn new(
        raw: *mut T,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> io::Result<Self> {
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { raw, destroy }),
            None => Err(io::Error::last_os_error()),
        }
    }

    /// For calls into the library.
    #[inline]
    pub(super) const fn get(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Its fields.
    #[inline]
    pub(super) const fn fields(&self) -> &T {
        // SAFETY: the library made it, it lives as long as this, and its types are known up to fields that are not changed
        // behind a reader's back.
        unsafe { self.raw.as_ref() }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: whoever made this has promised that it is alive, and that this is how it ends.
        let status = unsafe { (self.destroy)(self.raw.as_ptr()) };
        if status != 0 {
            let what = ::core::any::type_name::<T>().rsplit("::").next().unwrap_or_default();
            let error = io::Error::from_raw_os_error(status.abs());
            tracing::warn!("{what} stays: {error}");
        }
    }
}

impl<T> std::fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.raw.fmt(f)
    }
}
