//! Everything that crosses the `.so` boundary: plain C records and tables of functions.
//!
//! The rules; `docs/abi.md` explains them with examples:
//!
//! * Records and tables begin with `size` (the note with `desc_len`), and only grow at the end. [`Event`], [`Iov`], [`Rma`],
//!   [`RmaPart`], [`Atomic`], [`Cost`] and [`WatchWord`] have no size: they are frozen, and a changed record comes with a new slot.
//!   Control calls that create or name something take one parameter record.
//! * Flags of a call: a receiver refuses an unknown bit of the lower half with `UNSUPPORTED_PARAM`. A bit of the upper half is a
//!   hint; a receiver ignores an unknown hint. Access rights have no hints. The core ignores unknown capabilities.
//! * A slot never changes its type or meaning. Parameters: a short record is zero-filled, an unknown non-zero tail is
//!   `UNSUPPORTED_PARAM`. Attributes: the callee writes `min(size)`. Tables: extra slots are ignored. The core replaces a missing
//!   optional slot by a stub, which returns `UNSUPPORTED` or does nothing.
//! * No bit-fields, no enums, no `bool`, no struct by value. Text is a pointer and a length, UTF-8,
//!   without a terminating zero; fixed-size names are zero-padded.
//! * Each side frees the memory that it allocated. Pointers in arguments are borrowed for the call, with three exceptions. The
//!   bytes of a pending operation stay until its completion, registered memory stays until `deregister`, and the host's table stays
//!   for the life of the process.
//! * One thread at a time calls the functions of an interface and its endpoints: the thread that opened the interface, unless the
//!   module has `ANY_THREAD`. Several threads may call the functions of a provider or a domain at the same time.

#![allow(unsafe_code)] // the shims below

mod declared;
mod domain;
mod endpoint;
#[doc(hidden)]
pub mod golden;
pub mod host;
mod interface;
pub(crate) mod packer;
pub mod process;
mod records;
mod rights;
pub mod shims;
mod watch;

pub use declared::{Declarations, Declared, Set, played_host};
pub use domain::{
    AllocParams, Cost, DomainAttr, DomainOps, DomainParams, KeyParams, MemoryRegion, ModuleAttr,
    RegisterParams,
};
pub use endpoint::{
    Atomic, ConnectParams, EndpointLimits, EndpointOps, ImportParams, Iov, PackFn, Rma, RmaList,
    RmaPart,
};
pub use interface::{
    ConnectorOps, EndpointParams, Event, InterfaceOps, InterfaceParams, MemoryUse, WatchList,
    WatchWord,
};
pub use records::{fixed, fixed_str};
pub use rights::{effective_uid, is_static_program, raised_rights};
pub use watch::Watch;

#[cfg(test)]
use abi_stable::StableAbi;
use core::ffi::c_void;

/// The major number: part of the note, the directory and the entry symbol. Only a core and a provider with the same major work
/// together.
pub const ABI_MAJOR: u16 = 1;
/// The minor number, which rises when the ABI gets additions: slots, fields, flags, events, statuses.
pub const ABI_MINOR: u16 = 1;
/// The number of progress calls of which the core uses at least one for a poll, even if no watch word has changed.
pub const WATCH_CALLS: u32 = 64;
/// The symbol that a provider exports.
pub const ENTRY_SYMBOL: &str = "tieline_provider_v1";
/// The owner name of the ELF note, with its zero.
pub const NOTE_OWNER: &[u8; 8] = b"tieline\0";
/// The type of the ELF note.
pub const NOTE_TYPE: u32 = 1;
/// The section that holds the ELF note.
pub const NOTE_SECTION: &str = ".note.tieline.provider";
/// The type of a core's ELF note, which states the core's ABI. Package managers compare it with the notes of providers.
pub const CORE_NOTE_TYPE: u32 = 2;
/// The section that holds the core's ELF note.
pub const CORE_NOTE_SECTION: &str = ".note.tieline.core";

/// The content of the ELF note: a provider's identity, read from the file before any of its code runs.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoteDesc {
    /// The size of this record as the provider compiled it.
    pub desc_len: u16,
    /// The revision of the record: 1.
    pub note_rev: u16,
    /// The ABI major that the provider was built for.
    pub abi_major: u16,
    /// The ABI minor that the provider was built for.
    pub abi_minor: u16,
    /// The least minor of the core that the provider can work with.
    pub min_core_minor: u16,
    /// The flags, `TIELINE_NOTE_*`.
    pub flags: u16,
    /// The provider's name, zero-padded: `verbs`.
    pub name: [u8; 32],
    /// The provider's version, zero-padded, semver: `1.2.0`.
    pub version: [u8; 32],
    /// Absolute paths, separated by `:` and zero-padded; empty for none. If none of them exists, the provider has no device. The
    /// core then does not load the file, unless a setting names the provider.
    pub needs: [u8; 64],
    /// The reason that reports state in that case, zero-padded: `there is no /dev/knem`. Never empty with paths.
    pub reason: [u8; 192],
}

/// A provider's state. To the core the state is an address, like each of the handles below; only the provider knows its content. In
/// C each kind of handle is a struct of its own, which the provider may define, so that the compiler distinguishes the kinds.
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

/// The host's services for a provider. The table stays valid for the life of the process, and any thread may call its functions.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
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
    /// Declares the configuration variables that the provider reads: `(context, list, count)`. The first record's size is the
    /// distance between records. The entry function calls it before `config_get`. The records and their texts are borrowed for the
    /// call. `INVALID`: a variable is set to a value that it does not accept. The host keeps the error text, with the place of the
    /// setting, and the entry function returns that status. `PROVIDER_FAILED`: the list is malformed, contradicts itself, or names
    /// a variable of another provider. `UNSUPPORTED_PARAM`: the list has a kind or field that only a newer host knows.
    pub config_declare: Option<
        unsafe extern "C" fn(context: *mut c_void, vars: *const ConfigVar, count: usize) -> i32,
    >,
    /// Writes the value of a declared variable: `(context, name, name length, out)`. `NO_DEVICE`: the variable was not declared, or
    /// its value was refused. `INVALID`: the record is too short for the value. A value does not change. Its texts stay valid until
    /// `quiesce` has returned, or the entry function has failed.
    pub config_get: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            name: *const u8,
            name_len: usize,
            out: *mut ConfigValue,
        ) -> i32,
    >,
    /// Returns the nanoseconds of a clock that never goes backwards.
    pub clock_ns: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// Reports an event that no call waits for, or the reason why the entry function fails. The record and its texts are borrowed
    /// for the call.
    pub async_event: Option<unsafe extern "C" fn(context: *mut c_void, event: *const AsyncEvent)>,
    /// Returns page-aligned zeroed memory for buffers of a provider: `(context, length)`; null if there is none.
    pub pages_alloc: Option<unsafe extern "C" fn(context: *mut c_void, len: usize) -> *mut c_void>,
    /// Frees memory of `pages_alloc`: `(context, pointer, length)`.
    pub pages_free:
        Option<unsafe extern "C" fn(context: *mut c_void, pages: *mut c_void, len: usize)>,
}

/// The provider's table, written by the entry function.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct ProviderOps {
    /// The size of this table. In: the core's size. Out: the size as the provider compiled it.
    pub size: usize,
    /// The minor that the provider was compiled for.
    pub abi_minor: u32,
    /// Zero, reserved.
    pub reserved: u32,
    /// The first argument of this table's functions.
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
    /// Writes the calling thread's last error in words: `(state, buffer, capacity)` returns the length.
    pub last_error: Option<
        unsafe extern "C" fn(state: *mut StateHandle, buffer: *mut u8, capacity: usize) -> i64,
    >,
    /// Stops threads and releases system resources. No other call with this `state` follows. The code stays mapped.
    pub quiesce: Option<unsafe extern "C" fn(state: *mut StateHandle)>,
    /// Not called; `layout_digest` replaces it. A provider in Rust of minor 0 writes the layouts of the ABI's types here.
    pub layouts: Option<unsafe extern "C" fn(state: *mut StateHandle, out: *mut Layouts) -> i32>,
    /// The domain functions.
    pub domain: *const DomainOps,
    /// The interface functions; null if the provider has no data-path module.
    pub interface: *const InterfaceOps,
    /// The endpoint functions; null if the provider has no data-path module.
    pub endpoint: *const EndpointOps,
    /// The connector functions; null if the provider has no connection-only module.
    pub connector: *const ConnectorOps,
    /// The digest of the layouts of the ABI's types as a provider in Rust compiled them; 0 if the provider has none.
    pub layout_digest: u64,
}

/// The abi_stable layouts of a provider in Rust. Nothing reads them; `layout_digest` replaces them.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct Layouts {
    /// The size of this record.
    pub size: usize,
    /// The version of abi_stable, zero-padded text: `0.11`.
    pub abi_stable: [u8; 16],
    /// An array of `count` pointers to `abi_stable::type_layout::TypeLayout`.
    pub layouts: *const *const c_void,
    /// The length of the array.
    pub count: usize,
}

/// One configuration variable of a provider: the rules for its value, and its description in reports.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct ConfigVar {
    /// The size of this record, which is the same in every record of a list.
    pub size: usize,
    /// The variable's name: `TIELINE_SHM_FASTBOX_SIZE`. A provider's own variables are named `TIELINE_<PROVIDER>_...`. If the
    /// provider reads a variable of the core, it declares that variable too, and the core's own declaration applies.
    pub name: *const u8,
    /// The length of `name`, in bytes.
    pub name_len: usize,
    /// The default, as a user would write it: `4k`. A variable whose default is empty may be empty.
    pub default_value: *const u8,
    /// The length of `default_value`, in bytes.
    pub default_value_len: usize,
    /// The variable's effect, in one sentence.
    pub doc: *const u8,
    /// The length of `doc`, in bytes.
    pub doc_len: usize,
    /// The kind of the value, `TIELINE_CONFIG_*`.
    pub kind: u32,
    /// Zero, reserved.
    pub reserved: u32,
    /// The least number of a size, count or duration.
    pub least: u64,
    /// The greatest number of a size, count or duration; 0 for any.
    pub most: u64,
    /// The words, separated by bars (`auto|on|off`). A text must be one of the words; a value of another kind may be a word
    /// instead. If `words` is empty, a text may be any text, and values of other kinds are no words.
    pub words: *const u8,
    /// The length of `words`, in bytes.
    pub words_len: usize,
}

/// The value of a configuration variable.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct ConfigValue {
    /// The size of this record.
    pub size: usize,
    /// The number: bytes, a count, nanoseconds, or 0 and 1 for no and yes; `inf` is the largest number; 0 for texts, lists and
    /// words.
    pub number: u64,
    /// The place among the variable's words, starting at 1; 0 if the value is no word.
    pub word: u32,
    /// 1 if the value is the default: the variable was not set, or is set to an empty text.
    pub is_default: u32,
    /// The text as it was written, without blanks around it. A word has the spelling of its declaration, regardless of the case in
    /// which it was written.
    pub text: *const u8,
    /// The length of `text`, in bytes.
    pub text_len: usize,
    /// The value's origin, in words: `environment`, `/etc/tieline/tieline.toml:3`, `default`.
    pub origin: *const u8,
    /// The length of `origin`, in bytes.
    pub origin_len: usize,
}

/// An asynchronous report of a provider.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct AsyncEvent {
    /// The size of this record.
    pub size: usize,
    /// The kind of report, `TIELINE_ASYNC_*`. The host treats an unknown kind as a message.
    pub kind: u32,
    /// A status, or 0 if the report is no failure.
    pub status: i32,
    /// The affected domain; empty if there is none.
    pub domain: *const u8,
    /// The length of `domain`, in bytes.
    pub domain_len: usize,
    /// The affected module; empty for all modules of the domain.
    pub module: *const u8,
    /// The length of `module`, in bytes.
    pub module_len: usize,
    /// The report, in words.
    pub text: *const u8,
    /// The length of `text`, in bytes.
    pub text_len: usize,
}

/// The type of `tieline_provider_v1`: fills `out`, whose `size` the core has set. Returns 0 or a negative status. Before a failure,
/// the function reports the reason through `host->async_event`. If the host has refused a configuration value, it has the reason
/// already, and no report is needed.
pub type EntryFn = unsafe extern "C" fn(host: *const Host, out: *mut ProviderOps) -> i32;
