//! Provider shm-xpmem: put and get between processes of one machine. The kernel module xpmem attaches the peer's memory to this
//! process. The transfer takes one copy and no help from the target.
//!
//! One domain, `shm-xpmem`, with one module, `attach`. The module carries no messages: the core adds it as an RMA lane beside a
//! module with messages. Guarantees:
//!
//! * Put and get have completed at both ends when the call returns, without involving the target's threads.
//! * A peer that dies or unmaps its memory kills no process that accesses the memory, unless an operator has set
//!   `TIELINE_SHM_XPMEM_ACCESS=direct`. The kernel copies, and returns EFAULT in cases in which a load would raise a signal
//!   (`endpoint.rs`).
//! * A key is valid only while its entry in the owner's table is live, whatever is attached. Every copy is first announced to the
//!   owner ([`tieline_memory_file::Announcements`]). A region ends once no access that passed the check is in progress. Until then
//!   `deregister` returns `AGAIN`.
//! * Attachments that outlast an access are bounded, in bytes and in number, for all endpoints of the process together
//!   (`attachments.rs`).
//! * The provider is available only if the whole chain has worked on this process itself. A peer counts as reachable only after
//!   a real copy of its card.

mod attachments;
mod card;
mod device;
mod domain;
#[cfg(test)]
mod double;
mod endpoint;
mod keys;
mod model;
mod probe;
mod settings;
mod sys;

pub use domain::{Xpmem, XpmemDomain, XpmemInterface};
pub use endpoint::XpmemEndpoint;
pub use keys::{Registration, RemoteKey};

use std::sync::{Arc, Mutex, PoisonError};

use tieline_plugin_api::{ConfigDoc, DomainInfo, Failure, HostHandle, Provider};
use tieline_single_copy::{check_domain, domains};

use crate::device::Lease;
use crate::settings::{Settings, VARIABLES};

/// The name of the only domain.
pub const DOMAIN: &str = "shm-xpmem";
/// The name of the only module.
pub const MODULE: &str = "attach";

/// The path that the provider needs.
pub const NEEDS: &str = device::DEVICE;
/// The reason that the provider has no device without that path.
pub const MISSING: &str =
    "there is no /dev/xpmem: the kernel module xpmem is not loaded (`modprobe xpmem`)";

/// The provider shm-xpmem. It holds the device only until the first domain takes it over: an open descriptor prevents unloading of
/// the kernel module, and belongs to contexts.
pub struct ShmXpmem {
    host: HostHandle,
    settings: Settings,
    /// The lease of the initial test, until the first domain takes it over. Closing the device in between would be one more moment
    /// at which another library of the process could lose everything it has made.
    tried: Mutex<Option<Arc<Lease>>>,
}

impl ShmXpmem {
    fn tried(&self) -> Option<Arc<Lease>> {
        let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner).take();
        tried.filter(|lease| lease.is_own())
    }
}

impl Provider for ShmXpmem {
    type Domain = XpmemDomain;

    fn open(host: HostHandle) -> Result<ShmXpmem, Failure> {
        let settings = Settings::read(|name| host.config(name))?;
        let lease = Lease::take(&settings)?;
        probe::on_oneself(&*lease.kernel, settings.page)?;
        Ok(ShmXpmem { host, settings, tried: Mutex::new(Some(lease)) })
    }

    fn config() -> &'static [ConfigDoc] {
        VARIABLES
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        // Registering a segment costs the same for every length, and copies a byte at either end.
        Ok(domains::<Xpmem>(1500.0))
    }

    fn open_domain(&self, name: &str, _context_id: [u8; 16]) -> Result<XpmemDomain, Failure> {
        check_domain::<Xpmem>(name)?;
        let lease = self.tried().map_or_else(|| Lease::take(&self.settings), Ok)?;
        XpmemDomain::new((lease, self.settings.clone(), Some(self.host)))
    }

    fn quiesce(&self) {
        drop(self.tried());
    }
}
