//! Provider shm-knem: put and get between processes of one machine by the kernel module knem, one copy and no help from
//! the target.
//!
//! One domain, `shm-knem`, with one module, `copy`. It carries no messages: the core adds it as an RMA lane beside a module that
//! does, behind `shm-cma`, which needs no registration. It is for where that is forbidden: knem asks who the user is and not what
//! `ptrace` may. What it promises:
//!
//! * Put and get have completed, at both ends, when the call returns; the target's threads do nothing.
//! * A region is pinned from its first key to its deregistration and has exactly the rights that were asked for, which the
//!   driver checks. A key is good only while the owner's table says so.
//! * Peers reach the memory as its owner has it, whether that was filled before or after, and after forks of the owner
//!   (`hold`). Memory of which this cannot be promised gets no key, and other lanes serve it.
//! * Whoever copies announces it to the owner first ([`tieline_memory_file::Announcements`]). A region is gone, and its memory
//!   free, once no access that passed the check is left: until then `deregister` says `AGAIN`.
//! * A peer counts as reachable only after a real copy of its card. What the driver refuses is said in words.
//!
//! Copies that go on in the background and DMA engines are not used: the driver says neither whether a flag was taken nor how
//! far a copy came.

mod domain;
#[cfg(test)]
mod double;
mod endpoint;
mod hold;
mod interface;
mod keys;
mod probe;
mod sys;

pub use domain::KnemDomain;
pub use endpoint::KnemEndpoint;
pub use interface::KnemInterface;
pub use keys::{Registration, RemoteKey};

use std::sync::Arc;

use tieline_plugin_api::{
    ConfigDoc, DomainInfo, Failure, HostHandle, Provider, Status, memory_caps,
};

use crate::hold::Forks;

/// The name of the only domain.
pub const DOMAIN: &str = "shm-knem";
/// The name of the only module.
pub const MODULE: &str = "copy";

/// The provider. It keeps no descriptor: an open one keeps the module from being unloaded, and belongs to a context.
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
        Ok(vec![DomainInfo {
            name: DOMAIN.to_string(),
            caps: memory_caps::REGISTER,
            max_key_len: keys::PACKED_LEN as u32,
            // A note; pinning, page by page, comes with the first key.
            register_ns: 60.0,
            register_ns_per_byte: 0.0,
        }])
    }

    fn open_domain(&self, name: &str, _context_id: [u8; 16]) -> Result<KnemDomain, Failure> {
        if name == DOMAIN {
            KnemDomain::new(Arc::new(probe::device(self.forks)?))
        } else {
            Err(Failure::new(Status::NoDevice, format!("shm-knem has no domain `{name}`")))
        }
    }
}
