//! The provider's tables as the core uses them: full size, and every slot can be called.
//!
//! A table of a provider may be shorter than the core's (an older provider), longer (a newer one) and have null slots. At load,
//! each table is copied into one of the tables below, in which a missing slot holds a stub. A stub returns `UNSUPPORTED`, 0 or
//! nothing. Later calls test neither a size nor a null.
//!
//! [`RawEndpoint`] makes the data calls. Its handle is one that the provider has just returned, or null with stubs. Only the thread
//! of its interface uses it (it is not `Send`). Calls that take memory or a key, or that close an object, have further
//! preconditions and are `unsafe`: `endpoint/abi.rs` and `worker/abi.rs` meet these.

#![allow(unsafe_code)]

pub mod events;
pub(crate) mod grown;
pub(crate) mod guarded;
pub(crate) mod host;
pub(crate) mod layout;
pub mod objects;
mod pack;
mod processor;
mod raw;
mod results;
mod span;
#[cfg(test)]
mod tests;
pub(crate) mod trial;
mod watch;
pub(crate) mod watched;

pub use grown::{Unlisted, listed};
pub use pack::{Pack, PackBuffer};
pub use raw::{OwnedEndpoint, RawEndpoint};
pub use span::Span;
pub use watch::{Look, WatchWords};

use std::ffi::c_void;
use tieline_plugin_api::abi::{
    AllocParams, Atomic, ConnectParams, ConnectorOps, DomainAttr, DomainOps, DomainParams,
    EndpointLimits, EndpointOps, EndpointParams, Event, ImportParams, InterfaceOps,
    InterfaceParams, Iov, KeyParams, MemoryRegion, MemoryUse, ModuleAttr, PackFn, ProviderOps,
    RegisterParams, Rma, RmaList, WatchList,
};
use tieline_plugin_api::process::Kept;
use tieline_plugin_api::{Status, caps, connects, memory_caps, role};

/// The result of a call after the provider was taken out of use.
trait Failed {
    const FAILED: Self;
}
impl Failed for i32 {
    const FAILED: i32 = Status::ProviderFailed as i32;
}
impl Failed for i64 {
    const FAILED: i64 = Status::ProviderFailed as i64;
}
impl<T> Failed for *const T {
    const FAILED: *const T = std::ptr::null();
}
impl Failed for () {
    const FAILED: () = ();
}

const NO: i32 = Status::Unsupported as i32;
const NO64: i64 = Status::Unsupported as i64;

/// Declares a full-size table, the result of each missing slot, and the conversion from the provider's table.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident from $ops:ident {
        $( $slot:ident( $($arg:ty),* ) -> $ret:ty = $missing:expr; )*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $(
                #[doc = concat!("The slot `", stringify!($slot), "`, or its stub.")]
                pub $slot: unsafe extern "C" fn(*mut c_void $(, $arg)*) -> $ret,
            )*
            /// The slots of the provider that are not null: bit n for slot n.
            present: u32,
        }

        impl $table {
            const SLOTS: &'static [&'static str] = &[ $( stringify!($slot), )* ];

            /// An empty table: every slot holds its stub.
            pub(crate) const MISSING: $table = {
                $( unsafe extern "C" fn $slot(_: *mut c_void $(, _: $arg)*) -> $ret { $missing } )*
                $table { $( $slot, )* present: 0 }
            };

            /// A table for a failed provider: every status is `PROVIDER_FAILED`.
            #[allow(dead_code)] // some tables have no use for it
            pub(crate) const FAILED: $table = {
                $( unsafe extern "C" fn $slot(_: *mut c_void $(, _: $arg)*) -> $ret {
                    <$ret as Failed>::FAILED
                } )*
                $table { $( $slot, )* present: 0 }
            };

            /// Copies the slots that the provider has, and fills the others with stubs.
            fn complete(ops: &$ops) -> $table {
                let mut table = $table::MISSING;
                let mut bit = 1;
                $(
                    if let Some(function) = ops.$slot {
                        table.$slot = function;
                        table.present |= bit;
                    }
                    bit <<= 1;
                )*
                let _ = bit;
                table
            }

            /// Checks whether the provider has a slot.
            #[must_use]
            pub fn has(&self, slot: &'static str) -> bool {
                self.lacks(&[slot]).is_none()
            }

            /// Returns the first of `slots` that the provider lacks.
            fn lacks(&self, slots: &[&'static str]) -> Option<&'static str> {
                slots.iter().copied().find(|slot| {
                    let at = $table::SLOTS.iter().position(|name| name == slot);
                    at.is_none_or(|at| self.present & (1 << at) == 0)
                })
            }
        }
    };
}

table! {
    /// A provider's own functions.
    ProviderTable from ProviderOps {
        query_domains(*mut DomainAttr, usize, *mut usize) -> i32 = NO;
        open_domain(*const DomainParams, *mut *mut c_void) -> i32 = NO;
        last_error(*mut u8, usize) -> i64 = 0;
        quiesce() -> () = ();
    }
}

table! {
    /// The functions of a domain.
    DomainTable from DomainOps {
        close() -> () = ();
        query_modules(*mut ModuleAttr, usize, *mut usize) -> i32 = NO;
        open_interface(*const InterfaceParams, *mut *mut c_void) -> i32 = NO;
        open_connector(*const InterfaceParams, *mut *mut c_void) -> i32 = NO;
        alloc(*const AllocParams, *mut MemoryRegion) -> i32 = NO;
        register(*const RegisterParams, *mut MemoryRegion) -> i32 = NO;
        deregister(*mut c_void) -> i32 = NO;
        pack_key(*const KeyParams, *mut u8, usize) -> i64 = NO64;
        revoke(*mut c_void) -> i32 = NO;
    }
}

table! {
    /// The functions of an interface.
    InterfaceTable from InterfaceOps {
        poll(*mut Event, u32) -> i64 = 0;
        close() -> () = ();
        address(*mut u8, usize) -> i64 = NO64;
        reachable(*const u8, usize) -> i32 = NO;
        connect(*const EndpointParams, *mut *mut c_void) -> i32 = NO;
        arm() -> i32 = NO;
        event_fd() -> i32 = NO;
        release(u64) -> () = ();
        memory(*mut MemoryUse) -> i32 = NO;
        hang_up(u64) -> i32 = NO;
        import_key(*const ImportParams, *mut *mut c_void) -> i32 = NO;
        drop_key(*mut c_void) -> () = ();
        flush(u64) -> i32 = NO;
        leave() -> () = ();
        watch() -> *const WatchList = std::ptr::null();
    }
}

table! {
    /// The functions of an endpoint.
    EndpointTable from EndpointOps {
        am_short(u32, u64, *const u8, usize) -> i32 = NO;
        am_packed(u32, u64, PackFn, *mut c_void, usize) -> i64 = NO64;
        am_zcopy(u32, u64, *const Iov, usize, u64) -> i32 = NO;
        put(*const Rma) -> i32 = NO;
        get(*const Rma) -> i32 = NO;
        atomic(*const Atomic) -> i32 = NO;
        flush(u64) -> i32 = NO;
        fence() -> i32 = NO;
        close() -> () = ();
        import_key(*const ImportParams, *mut *mut c_void) -> i32 = NO;
        drop_key(*mut c_void) -> () = ();
        address(*mut u8, usize) -> i64 = NO64;
        connect(*const ConnectParams) -> i32 = NO;
        put_notify(*const Rma, u32) -> i32 = NO;
        key_pointer(*mut c_void, u64, u64, *mut *mut u8) -> i32 = NO;
        cancel(u64) -> i32 = NO;
        limits(*mut EndpointLimits) -> i32 = NO;
        rma_list(*const RmaList, *mut usize) -> i32 = NO;
    }
}

table! {
    /// The functions of a connector.
    ConnectorTable from ConnectorOps {
        poll(*mut Event, u32) -> i64 = 0;
        close() -> () = ();
        address(*mut u8, usize) -> i64 = NO64;
        reachable(*const u8, usize) -> i32 = NO;
        send(*const u8, usize, *const u8, usize) -> i32 = NO;
        arm() -> i32 = NO;
        event_fd() -> i32 = NO;
    }
}

/// The table of a failed provider's endpoints, which replaces their own table, so that no flag is tested per message.
pub(crate) static FAILED_ENDPOINT: EndpointTable = EndpointTable::FAILED;

/// All tables of one provider.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    /// The provider's own functions.
    pub provider: ProviderTable,
    /// The functions of its domains.
    pub domain: DomainTable,
    /// The functions of its interfaces.
    pub interface: InterfaceTable,
    /// The functions of its endpoints.
    pub endpoint: EndpointTable,
    /// The functions of its connectors.
    pub connector: ConnectorTable,
}

/// The limit of a table's stated size, above that of any real table; a greater size is invalid.
const MOST_TABLE_BYTES: usize = 1 << 16;

/// Copies the part of a table that exists into the empty table `full`, whole words only; `None` if `table` is null.
///
/// # Safety
/// `table` is null or points to a table of the length that its first field states. `T` is one of the ABI's tables: plain C, for
/// which zero is a valid value and every slot may hold any bits.
unsafe fn copy_table<T: Copy>(
    what: &str,
    table: *const T,
    mut full: T,
) -> Result<Option<T>, String> {
    if table.is_null() {
        return Ok(None);
    }
    if !table.is_aligned() {
        return Err(format!("the {what} table lies at an odd address"));
    }
    // SAFETY: the pointer is aligned and not null; the first field of every table is `size: usize`.
    let size = unsafe { *table.cast::<usize>() };
    if !(size_of::<usize>()..=MOST_TABLE_BYTES).contains(&size) {
        return Err(format!("the {what} table says that it is {size} bytes long"));
    }
    let whole = size.min(size_of::<T>()) / size_of::<usize>() * size_of::<usize>();
    // SAFETY: `whole` does not exceed the length of either table; the caller guarantees the provider's length.
    unsafe {
        std::ptr::copy_nonoverlapping(
            table.cast::<u8>(),
            std::ptr::from_mut(&mut full).cast::<u8>(),
            whole,
        );
    }
    Ok(Some(full))
}

impl Tables {
    /// Makes full tables from the record that the entry function wrote.
    ///
    /// # Errors
    /// The missing mandatory part, or the malformed table.
    ///
    /// # Safety
    /// `ops` is the record that a provider's entry function wrote: its pointers are null or point to a table of the length that its first
    /// field states.
    pub unsafe fn complete(ops: &ProviderOps) -> Result<Tables, String> {
        // SAFETY: the record is the core's own; only the part that the provider claims is used.
        let known = unsafe { copy_table("provider", ops, ProviderOps::empty())? };
        let ops = known.as_ref().unwrap_or(ops);
        // SAFETY: the caller's guarantee covers each of the four tables.
        let (domain, interface, endpoint, connector) = unsafe {
            (
                copy_table("domain", ops.domain, DomainOps::empty())?,
                copy_table("interface", ops.interface, InterfaceOps::empty())?,
                copy_table("endpoint", ops.endpoint, EndpointOps::empty())?,
                copy_table("connector", ops.connector, ConnectorOps::empty())?,
            )
        };
        let domain = domain.ok_or("the domain table is missing")?;
        if interface.is_some() != endpoint.is_some() {
            return Err(
                "one of the interface and endpoint tables is there without the other".into()
            );
        }
        let tables = Tables {
            provider: ProviderTable::complete(ops),
            domain: DomainTable::complete(&domain),
            interface: interface.as_ref().map_or(InterfaceTable::MISSING, InterfaceTable::complete),
            endpoint: endpoint.as_ref().map_or(EndpointTable::MISSING, EndpointTable::complete),
            connector: connector.as_ref().map_or(ConnectorTable::MISSING, ConnectorTable::complete),
        };
        let missing = tables
            .provider
            .lacks(&["query_domains", "open_domain"])
            .or_else(|| tables.domain.lacks(&["close", "query_modules"]));
        match missing {
            Some(slot) => Err(format!("the slot {slot} is missing")),
            None => Ok(tables),
        }
    }

    /// Returns the first claim of a module's attributes that the tables cannot keep: `(promise, missing slot)`.
    pub fn broken_promise(&self, module: &ModuleAttr) -> Option<(&'static str, &'static str)> {
        if module.role == role::CONNECTION_ONLY {
            let missing = self.domain.lacks(&["open_connector"]).or_else(|| {
                self.connector.lacks(&["poll", "close", "address", "reachable", "send"])
            });
            return missing.map(|slot| ("the role CONNECTION_ONLY", slot));
        }
        let missing = self
            .domain
            .lacks(&["open_interface"])
            .or_else(|| self.interface.lacks(&["poll", "close", "address", "reachable", "connect"]))
            .or_else(|| self.endpoint.lacks(&["close"]));
        if let Some(slot) = missing {
            return Some(("the role DATA", slot));
        }
        let moves = caps::PUT | caps::GET | caps::ATOMICS;
        if module.caps & moves != 0 {
            let missing =
                self.domain.lacks(&["pack_key"]).or_else(|| self.endpoint.lacks(&["flush"]));
            if let Some(slot) = missing {
                return Some(("CAP_PUT, GET or ATOMICS", slot));
            }
        }
        let promises: [(u64, &'static str, &[&'static str]); 10] = [
            (caps::AM_SHORT, "CAP_AM_SHORT", &["am_short"]),
            (caps::AM_PACKED, "CAP_AM_PACKED", &["am_packed"]),
            (caps::AM_ZCOPY, "CAP_AM_ZCOPY", &["am_zcopy"]),
            (caps::PUT, "CAP_PUT", &["put", "import_key", "drop_key"]),
            (caps::GET, "CAP_GET", &["get", "import_key", "drop_key"]),
            (caps::ATOMICS, "CAP_ATOMICS", &["atomic", "import_key", "drop_key"]),
            (caps::PUT_NOTIFY, "CAP_PUT_NOTIFY", &["put_notify", "import_key", "drop_key"]),
            (caps::KEY_POINTER, "CAP_KEY_POINTER", &["key_pointer", "import_key", "drop_key"]),
            (caps::CANCEL, "CAP_CANCEL", &["cancel"]),
            (caps::RMA_LIST, "CAP_RMA_LIST", &["rma_list", "import_key", "drop_key"]),
        ];
        for (bit, name, slots) in promises {
            if module.caps & bit != 0 {
                if let Some(slot) = self.endpoint.lacks(slots) {
                    return Some((name, slot));
                }
            }
        }
        if module.connects & connects::TO_ENDPOINT != 0 {
            if let Some(slot) = self.endpoint.lacks(&["address", "connect"]) {
                return Some(("CONNECTS_TO_ENDPOINT", slot));
            }
        }
        let promises: [(u64, &'static str, &[&'static str]); 4] = [
            (caps::EVENT_FD, "CAP_EVENT_FD", &["event_fd", "arm"]),
            (caps::LENDS_BUFFERS, "CAP_LENDS_BUFFERS", &["release"]),
            (caps::INTERFACE_KEYS, "CAP_INTERFACE_KEYS", &["import_key", "drop_key"]),
            (caps::FLUSH_ALL, "CAP_FLUSH_ALL", &["flush"]),
        ];
        for (bit, name, slots) in promises {
            if module.caps & bit != 0 {
                if let Some(slot) = self.interface.lacks(slots) {
                    return Some((name, slot));
                }
            }
        }
        None
    }

    /// Returns the first claim of a domain's attributes that the tables cannot keep: `(promise, missing slot)`.
    pub fn broken_domain_promise(
        &self,
        domain: &DomainAttr,
    ) -> Option<(&'static str, &'static str)> {
        for (bit, name, slots) in [
            (memory_caps::ALLOC, "MEMORY_CAP_ALLOC", &["alloc", "deregister", "pack_key"]),
            (memory_caps::REGISTER, "MEMORY_CAP_REGISTER", &["register", "deregister", "pack_key"]),
            (
                memory_caps::REGISTER_PARTS,
                "MEMORY_CAP_REGISTER_PARTS",
                &["register", "deregister", "pack_key"],
            ),
        ] {
            if domain.caps & bit != 0 {
                if let Some(slot) = self.domain.lacks(slots) {
                    return Some((name, slot));
                }
            }
        }
        None
    }

    /// Returns this endpoint table at an address that stays valid for the life of the process, as endpoints require. Equal tables
    /// share one address, so that repeated opening of a provider takes no more memory.
    pub(crate) fn endpoint_forever(&self) -> &'static EndpointTable {
        static PLACES: Kept<EndpointTable> = Kept::new();
        let known = PLACES.iter().find(|place| place.addresses() == self.endpoint.addresses());
        known.unwrap_or_else(|| PLACES.add(self.endpoint))
    }
}

impl EndpointTable {
    /// Returns the addresses by which two tables are compared.
    fn addresses(&self) -> [usize; 18] {
        [
            self.am_short as usize,
            self.am_packed as usize,
            self.am_zcopy as usize,
            self.put as usize,
            self.get as usize,
            self.atomic as usize,
            self.flush as usize,
            self.fence as usize,
            self.close as usize,
            self.import_key as usize,
            self.drop_key as usize,
            self.address as usize,
            self.connect as usize,
            self.put_notify as usize,
            self.key_pointer as usize,
            self.cancel as usize,
            self.limits as usize,
            self.rma_list as usize,
        ]
    }
}
