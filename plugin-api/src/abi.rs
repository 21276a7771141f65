//! Everything that crosses the `.so` boundary: plain C records and tables of functions.
//!
//! The rules; `docs/abi.md` explains them with examples:
//!
//! * Every record and table begins with `size`, the size as its writer compiled it, and only grows at
//!   the end. The records of the data path ([`Event`], [`Iov`], [`Rma`], [`Atomic`]) have no size: they
//!   are frozen, and a changed one comes with a new slot. Control calls take one record.
//! * Flags that are passed in: a receiver refuses an unknown bit of the lower half with `UNSUPPORTED_PARAM`. A bit of the upper
//!   half is a hint; a receiver ignores an unknown one. Access rights have no hints. The core ignores unknown capabilities.
//! * A slot never changes its type or meaning. Parameters: a short record is zero-filled, an unknown
//!   non-zero tail is `UNSUPPORTED_PARAM`. Attributes: the callee writes `min(size)`. Tables: extra
//!   slots are ignored, missing ones are replaced by stubs that return `UNSUPPORTED`.
//! * No bit-fields, no enums, no `bool`, no struct by value. Text is a pointer and a length, UTF-8,
//!   without a terminating zero; fixed-size names are zero-padded.
//! * Each side frees what it allocated. Pointers that are passed in are borrowed for the call.
//! * Functions of one interface and its endpoints are called by one thread at a time, the one that opened the interface unless
//!   the module says `ANY_THREAD`. Functions of a provider or a domain may be called by several threads at once.

#![allow(unsafe_code)] // abi_stable's derive implements an unsafe trait

mod declared;
mod domain;
mod endpoint;
#[doc(hidden)]
pub mod golden;
pub mod host;
mod interface;
pub mod layout;
pub(crate) mod packer;
pub mod process;
mod records;
mod rights;
pub mod shims;

pub use declared::{Declarations, Declared, Set, played_host};
pub use domain::{
    AllocParams, Cost, DomainAttr, DomainOps, DomainParams, KeyParams, MemoryRegion, ModuleAttr,
    RegisterParams,
};
pub use endpoint::{
    Atomic, ConnectParams, EndpointLimits, EndpointOps, ImportParams, Iov, PackFn, Rma,
};
pub use interface::{
    ConnectorOps, EndpointParams, Event, InterfaceOps, InterfaceParams, MemoryUse,
};
pub use records::{fixed, fixed_str};
pub use rights::{is_static_program, raised_rights};

use abi_stable::StableAbi;
use core::ffi::c_void;

/// The major number: part of the note, the directory and the entry symbol. Only equal majors work together.
pub const ABI_MAJOR: u16 = 1;
/// The minor number: it counts additions at the ends of records and tables.
pub const ABI_MINOR: u16 = 1;
/// The symbol that a provider exports.
pub const ENTRY_SYMBOL: &str = "tieline_provider_v1";
/// The owner name of the ELF note, with its zero.
pub const NOTE_OWNER: &[u8; 8] = b"tieline\0";
/// The type of the ELF note.
pub const NOTE_TYPE: u32 = 1;
/// The section that holds the ELF note.
pub const NOTE_SECTION: &str = ".note.tieline.provider";
/// The type of a core's ELF note, which states its ABI. Package managers derive their checks from it.
pub const CORE_NOTE_TYPE: u32 = 2;
/// The section that holds it.
pub const CORE_NOTE_SECTION: &str = ".note.tieline.core";

/// The content of the ELF note: a provider's identity, read from the file before any of its code runs.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoteDesc {
    /// The size of this record as the provider compiled it.
    pub desc_len: u16,
    /// Revision of the record: 1.
    pub note_rev: u16,
    /// ABI major that the provider was built for.
    pub abi_major: u16,
    /// ABI minor that the provider was built for.
    pub abi_minor: u16,
    /// The least minor of the core that it can work with.
    pub min_core_minor: u16,
    /// `TIELINE_NOTE_*`.
    pub flags: u16,
    /// Provider name, zero-padded: `verbs`.
    pub name: [u8; 32],
    /// Provider version, zero-padded, semver: `1.2.0`.
    pub version: [u8; 32],
}

/// A provider's state. To the core it is an address, like each of the handles below; only the provider knows its content.
/// In C each kind is a struct of its own, which the provider may define, so that the compiler tells the kinds apart.
pub type StateHandle = c_void;
/// An open domain.
pub type DomainHandle = c_void;
/// A region of a domain.
pub type RegionHandle = c_void;
/// An open data-path module.
pub type InterfaceHandle = c_void;
/// An endpoint.
pub type EndpointHandle = c_void;
/// A remote key that was imported.
pub type KeyHandle = c_void;
/// An open connection-only module.
pub type ConnectorHandle = c_void;

/// The host's services for a provider. The table stays valid for the life of the process.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Host {
    /// The size of this table as the core compiled it.
    pub size: usize,
    /// The core's ABI major.
    pub abi_major: u32,
    /// The core's ABI minor.
    pub abi_minor: u32,
    /// The first argument of every function below.
    pub context: *mut c_void,
    /// Logs one line: `(context, TIELINE_LOG_*, text, length)`.
    pub log: Option<
        unsafe extern "C" fn(context: *mut c_void, level: u32, text: *const u8, text_len: usize),
    >,
    /// Declares the configuration variables that the provider reads: `(context, list, count)`. The first
    /// record's size is the distance between records. The entry function calls it before anything else. The records
    /// and their texts are borrowed for the call. `INVALID`: a variable is set to a value that it does not accept. The host
    /// keeps the error text, with the place of the setting, and the entry function returns that status. `PROVIDER_FAILED`: the
    /// list is malformed or contradicts itself. `UNSUPPORTED_PARAM`: it has something that only a newer host knows.
    pub config_declare: Option<
        unsafe extern "C" fn(context: *mut c_void, vars: *const ConfigVar, count: usize) -> i32,
    >,
    /// The value of a declared variable: `(context, name, name length, out)`. `NO_DEVICE`: it was not declared.
    /// A value does not change. Its texts stay valid until `quiesce` has returned, or the entry function has
    /// failed.
    pub config_get: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            name: *const u8,
            name_len: usize,
            out: *mut ConfigValue,
        ) -> i32,
    >,
    /// Nanoseconds of a clock that never goes backwards.
    pub clock_ns: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// Reports an event that no call waits for. The record and its texts are borrowed for the call.
    pub async_event: Option<unsafe extern "C" fn(context: *mut c_void, event: *const AsyncEvent)>,
    /// Page-aligned zeroed memory, for buffers of a provider that should be accounted to the context:
    /// `(context, length)`; null if there is none.
    pub pages_alloc: Option<unsafe extern "C" fn(context: *mut c_void, len: usize) -> *mut c_void>,
    /// Returns memory of `pages_alloc`: `(context, pointer, length)`.
    pub pages_free:
        Option<unsafe extern "C" fn(context: *mut c_void, pages: *mut c_void, len: usize)>,
}

/// The provider's table, written by the entry function.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ProviderOps {
    /// In: the core's size. Out: the size as the provider compiled it.
    pub size: usize,
    /// The minor that the provider was compiled for.
    pub abi_minor: u32,
    /// Zero.
    pub reserved: u32,
    /// The first argument of the functions below.
    pub state: *mut StateHandle,
    /// Lists domains: `(state, out, capacity, count)`. Writes up to `capacity` records, and the total number
    /// to `count`. The caller sets each record's `size`.
    pub query_domains: Option<
        unsafe extern "C" fn(
            state: *mut StateHandle,
            out: *mut DomainAttr,
            capacity: usize,
            count: *mut usize,
        ) -> i32,
    >,
    /// Opens a domain by name.
    pub open_domain: Option<
        unsafe extern "C" fn(
            state: *mut StateHandle,
            params: *const DomainParams,
            out: *mut *mut DomainHandle,
        ) -> i32,
    >,
    /// The calling thread's last error in words: `(state, buffer, capacity)` returns the length.
    pub last_error: Option<
        unsafe extern "C" fn(state: *mut StateHandle, buffer: *mut u8, capacity: usize) -> i64,
    >,
    /// Stops threads and releases system resources. No other call follows. The code stays mapped.
    pub quiesce: Option<unsafe extern "C" fn(state: *mut StateHandle)>,
    /// Providers built from the Rust traits: the layouts of the ABI's types as the provider compiled them; otherwise null.
    pub layouts: Option<unsafe extern "C" fn(state: *mut StateHandle, out: *mut Layouts) -> i32>,
    /// The domain functions.
    pub domain: *const DomainOps,
    /// The interface functions; null when the provider has no data-path module.
    pub interface: *const InterfaceOps,
    /// The endpoint functions; null when the provider has no data-path module.
    pub endpoint: *const EndpointOps,
    /// The connector functions; null when the provider has no connection-only module.
    pub connector: *const ConnectorOps,
}

/// The abi_stable layouts of a provider in Rust. The core compares them only if `abi_stable` is its own version.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Layouts {
    /// The size of this record.
    pub size: usize,
    /// The version of abi_stable, zero-padded text: `0.11`.
    pub abi_stable: [u8; 16],
    /// Array of `count` pointers to `abi_stable::type_layout::TypeLayout`.
    pub layouts: *const *const c_void,
    /// The length of the array.
    pub count: usize,
}

/// One configuration variable of a provider: the rules for its value, and its description in reports.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ConfigVar {
    /// The size of this record; it is the same in every record of a list.
    pub size: usize,
    /// `TIELINE_SHM_FASTBOX_SIZE`. A provider's own ones are named `TIELINE_<PROVIDER>_...`. If it reads one of the
    /// core's, it declares that too, and the core's own declaration applies.
    pub name: *const u8,
    /// Its length.
    pub name_len: usize,
    /// The default, as a user would write it: `4k`. A variable whose default is empty may be empty.
    pub default_value: *const u8,
    /// Its length.
    pub default_value_len: usize,
    /// Its effect, in one sentence.
    pub doc: *const u8,
    /// Its length.
    pub doc_len: usize,
    /// `TIELINE_CONFIG_*`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Sizes, counts and durations: the least number.
    pub least: u64,
    /// Sizes, counts and durations: the greatest number; 0: any.
    pub most: u64,
    /// Words, separated by bars (`auto|on|off`). A text must be one of them; a value of another kind may be one
    /// instead of a number. Empty: any text, numbers only.
    pub words: *const u8,
    /// Its length.
    pub words_len: usize,
}

/// The value of a configuration variable.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ConfigValue {
    /// The size of this record.
    pub size: usize,
    /// Bytes, a count, nanoseconds, or 0 and 1 for no and yes; `inf` is the largest number; 0 for texts and words.
    pub number: u64,
    /// The place among the variable's words, starting at 1; 0: none of them.
    pub word: u32,
    /// 1: it was not set.
    pub is_default: u32,
    /// The text as it was written, without blanks around it. A word has the spelling of its declaration, in whatever case it
    /// was written.
    pub text: *const u8,
    /// Its length.
    pub text_len: usize,
    /// Its origin, in words: `environment`, `/etc/tieline/tieline.toml:3`, `default`.
    pub origin: *const u8,
    /// Its length.
    pub origin_len: usize,
}

/// An asynchronous report of a provider.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct AsyncEvent {
    /// The size of this record.
    pub size: usize,
    /// `TIELINE_ASYNC_*`. The host treats an unknown kind as a message.
    pub kind: u32,
    /// A status, or 0 if it is no failure.
    pub status: i32,
    /// The affected domain; empty: none.
    pub domain: *const u8,
    /// Its length.
    pub domain_len: usize,
    /// The affected module; empty: all modules of the domain.
    pub module: *const u8,
    /// Its length.
    pub module_len: usize,
    /// The event, in words.
    pub text: *const u8,
    /// Its length.
    pub text_len: usize,
}

/// The type of `tieline_provider_v1`: fills `out`, whose `size` the core has set; 0 or a negative status.
/// On failure the text goes to `host->async_event`.
pub type EntryFn = unsafe extern "C" fn(host: *const Host, out: *mut ProviderOps) -> i32;
