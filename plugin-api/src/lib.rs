//! The provider ABI of Tieline.
//!
//! A provider is a shared object that the core finds at run time, or is linked into the program. The boundary is plain C ([`abi`],
//! and `include/tieline_provider.h`, which is generated from it). Authors in Rust implement the traits of [`provider`] and write
//! one line:
//!
//! ```
//! use tieline_plugin_api::*;
//!
//! struct Nothing;
//! impl Provider for Nothing {
//!     type Domain = NoDomain;
//!     fn open(_host: HostHandle) -> Result<Self, Failure> {
//!         Err(Failure::new(Status::NoDevice, "this provider never has a device"))
//!     }
//!     fn domains(&self) -> Result<Vec<DomainInfo>, Failure> { Ok(vec![]) }
//!     fn open_domain(&self, _: &str, _: [u8; 16]) -> Result<NoDomain, Failure> {
//!         Err(Status::NoDevice.into())
//!     }
//! }
//! # struct NoDomain;
//! # impl Domain for NoDomain {
//! #     type Interface = Absent;
//! #     type Connector = Absent;
//! #     type Region = ();
//! #     fn modules(&self) -> Vec<abi::ModuleAttr> { vec![] }
//! #     fn open_interface(&self, _: &str, _: [u8; 16]) -> Result<Absent, Failure> { Err(Status::Unsupported.into()) }
//! # }
//!
//! export_provider!(Nothing, name = "nothing", version = "0.1.0");
//! # fn main() {}
//! ```
//!
//! `docs/writing-a-provider.md` leads from there to a provider that passes conformance.

pub mod abi;
mod absent;
pub mod config;
mod events;
mod flags;
mod kernel;
mod note;
pub mod provider;
mod status;
pub mod units;

pub use abi::host::HostHandle;
pub use abi::process;
pub use abi::shims::explain;
pub use abi::{effective_uid, is_static_program, raised_rights};
pub use config::ConfigDoc;
pub use events::Events;
pub use flags::{
    Named, access, async_kind, atomic_op, caps, config_kind, connects, cost_class, event,
    event_flags, known_flags, log_level, memory_caps, memory_kind, not_understood, note_flags,
    op_flags, register_flags, rma_kind, role, tables,
};
pub use kernel::{boot_id, kernel_text};
pub use note::{CoreNote, DlopenNote, Note};
pub use provider::{
    Absent, Allocation, Armed, AtOnce, Connector, Domain, DomainInfo, Endpoint, Interface, ListOp,
    ListPart, MemoryReport, Packer, Posted, Posting, Provider, Revoked, RmaOp,
};
pub use status::{Failure, OK, PENDING, Status};

/// The text with which a transport reports a connection that ended without a goodbye from the other end.
pub const NO_GOODBYE: &str = "the connection was closed without a goodbye";

/// Returns the hash that identifies an address in a connector's [`event::PEER_LEFT`] and [`event::DATAGRAM`]: FNV-1a, 64 bit.
#[must_use]
pub fn address_hash(address: &[u8]) -> u64 {
    address.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Makes a shared object a provider: the ELF note and the entry symbol.
///
/// ```text
/// export_provider!(ShmCma, name = "shm-cma", version = env!("CARGO_PKG_VERSION"));
/// ```
///
/// A provider without a device on most machines names the paths of which it needs one, separated by `:`. If there is none, the core
/// reports the reason without loading the file ([`Note::needing`]):
///
/// ```text
/// export_provider!(Mine, name = "mine", version = "1.0.0", needs = "/dev/mine", reason = "there is no /dev/mine");
/// ```
#[macro_export]
macro_rules! export_provider {
    (
        $provider:ty, name = $name:expr, version = $version:expr
        $(, needs = $paths:expr, reason = $reason:expr)?
    ) => {
        #[allow(unsafe_code, missing_docs)]
        const _: () = {
            #[used]
            // SAFETY: a note section holds constants without pointers; `Note` is such a constant.
            #[unsafe(link_section = ".note.tieline.provider")]
            static NOTE: $crate::Note = $crate::Note::new(
                $name,
                $version,
                0,
                $crate::note_flags::RUST
                    | if cfg!(panic = "unwind") { $crate::note_flags::UNWIND } else { 0 },
            )
            $(.needing($paths, $reason))?;

            // SAFETY: this object exports the symbol once; its name carries the ABI's major.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn tieline_provider_v1(
                host: *const $crate::abi::Host,
                out: *mut $crate::abi::ProviderOps,
            ) -> i32 {
                // SAFETY: the core calls this with its host table and with a record whose `size` it has set.
                unsafe { $crate::abi::shims::entry::<$provider>(host, out) }
            }
        };
    };
}

/// Lists the libraries that this file opens at run time, for the tools that make a distribution's packages.
///
/// ```text
/// dlopen_note!(br#"[{"feature":"rdma","description":"RDMA devices","priority":"recommended","soname":["libibverbs.so.1"]}]"#);
/// ```
#[macro_export]
macro_rules! dlopen_note {
    ($json:literal) => {
        #[allow(unsafe_code)]
        const _: () = {
            #[used]
            // SAFETY: a note section holds constants without pointers; `DlopenNote` is such a constant.
            #[unsafe(link_section = ".note.dlopen")]
            static NOTE: $crate::DlopenNote<{ $json.len() }> = $crate::DlopenNote::new($json);
        };
    };
}

/// The name that lists of providers and connection modules use for the application's own datagrams; no provider file may have this
/// name.
pub const OUT_OF_BAND: &str = "oob";
