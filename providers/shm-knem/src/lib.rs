//! Provider shm-knem: put and get between processes of one machine by the kernel module knem, one copy and no help from
//! the target.
//!
//! One domain, `shm-knem`, with one module, `copy`. The module carries no messages: the core adds it as an RMA lane beside a module
//! with messages, after `shm-cma`, which needs no registration. The module can serve pairs for which `shm-cma` is forbidden: knem
//! checks the user, not the `ptrace` permission. Guarantees:
//!
//! * Put and get have completed at both ends when the call returns, without involving the target's threads.
//! * A region is pinned from its first key to its deregistration. It has exactly the requested rights, which the driver checks. A
//!   key is valid only while its entry in the owner's table is live.
//! * Peers access the memory as its owner sees it, no matter when it was first written, and after forks of the owner unless
//!   `TIELINE_SHM_KNEM_FORK=never` is set (`hold`). Memory for which this cannot be guaranteed gets no key, so another lane has to
//!   serve it.
//! * Every copy is first announced to the owner ([`tieline_memory_file::Announcements`]). A region ends, and its memory is free,
//!   once no access that passed the check is in progress. Until then `deregister` returns `AGAIN`.
//! * A peer counts as reachable only after a real copy of its card. If the driver refuses, the error names the likely cause.
//!
//! Asynchronous copies and DMA engines are not used: the driver reports neither whether it accepted a flag nor how far a copy
//! has progressed.

mod domain;
#[cfg(test)]
mod double;
mod endpoint;
mod hold;
mod keys;
mod probe;
mod sys;

pub use domain::{Knem, KnemDomain, KnemInterface};
pub use endpoint::KnemEndpoint;
pub use keys::{Registration, RemoteKey};

use std::sync::Arc;

use tieline_plugin_api::{ConfigDoc, DomainInfo, Failure, HostHandle, Provider};
use tieline_single_copy::{check_domain, domains};

use crate::hold::Forks;
use crate::sys::Kernel;

/// The name of the only domain.
pub const DOMAIN: &str = "shm-knem";
/// The name of the only module.
pub const MODULE: &str = "copy";

/// The path that the provider needs.
pub const NEEDS: &str = probe::DEVICE;
/// The reason that the provider has no device without that path.
pub const MISSING: &str =
    "there is no /dev/knem: the kernel module knem is not loaded (`modprobe knem`)";

/// The provider shm-knem. It keeps no descriptor: an open descriptor prevents unloading of the kernel module, and belongs to a
/// context.
pub struct ShmKnem {
    forks: Forks,
}

impl Provider for ShmKnem {
    type Domain = KnemDomain;

    fn open(host: HostHandle) -> Result<ShmKnem, Failure> {
        let forks = Forks::read(|name| host.config(name));
        let device = probe::device(forks)?;
        probe::on_oneself(&device)?;
        Ok(ShmKnem { forks })
    }

    fn config() -> &'static [ConfigDoc] {
        hold::VARIABLES
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        // Registering only records the range. The first key pins the range, page by page.
        Ok(domains::<Knem>(60.0))
    }

    fn open_domain(&self, name: &str, _context_id: [u8; 16]) -> Result<KnemDomain, Failure> {
        check_domain::<Knem>(name)?;
        let kernel: Arc<dyn Kernel> = Arc::new(probe::device(self.forks)?);
        KnemDomain::new(kernel)
    }
}
