//! Provider verbs: messages, put, get and atomics over RDMA devices (InfiniBand, RoCE).
//!
//! Every port that `TIELINE_VERBS_DEVICES` admits is a domain: `verbs:mlx5_0` is port 1 of the device, `verbs:mlx5_0:2` its port 2.
//! Each domain has three modules:
//!
//! * `rc`, reliable connections. It connects *to an endpoint*: the core exchanges the two endpoint addresses over `ud` or a
//!   connector. Messages arrive in a receive queue that all endpoints of an interface share, or in a queue per endpoint if the
//!   device has no shared receive queues. Credits stop a sender whose peer does not poll. Put and get are native operations of the
//!   device, and so are 64-bit add and compare-swap if the device has atomics.
//! * `ud`, datagrams. It connects *to an interface*: small messages with the provider's own sequence numbers, acknowledgements and
//!   retransmission. They suffice to wire up `rc`, and to serve a peer for which there is no `rc` connection.
//! * `rdmacm`, a connector. It carries wire-up datagrams over connections that the RDMA connection manager forms by IP address.
//!
//! Guarantees:
//!
//! * A put, get or atomic completes when the target's device has acknowledged it: the data of a put is then in the target's memory.
//!   A short put with local completion is complete when its call returns. Operations of one endpoint take effect in the order in
//!   which they were posted, with two exceptions. A later operation may overtake a pending get or atomic, unless a `fence`
//!   separates them. With relaxed ordering, the target's bus may reorder writes.
//! * Modified key bytes, foreign keys, ranges outside the region and missing rights are rejected before anything is posted. The
//!   target's device rejects a *revoked* key. That operation fails with `KEY_REJECTED`, and the connection fails with it, because a
//!   queue pair cannot continue after such an error. The provider therefore does not set `CHECKS_KEYS`.
//! * Every posted operation ends while its interface is polled, either with its completion or with the endpoint's failure.
//!
//! # The binding
//!
//! The declarations are written by hand (`abi.rs`). libibverbs is loaded with `dlopen` when the first device is opened (`load.rs`).
//! Building therefore needs neither libclang nor headers, and on a machine without RDMA the provider only reads
//! `/sys/class/infiniband`. The crate rdma-sys is unsuitable for two reasons. It runs bindgen during the build, which needs
//! libclang and the headers on every build machine. Its output links to libibverbs and librdmacm, so on a machine without these
//! libraries the provider could not be loaded to report a missing device. If the headers are installed, a test compares the sizes,
//! offsets and numbers with them. `tests/yardstick` compares the declarations with rdma-sys.

mod abi;
#[cfg(test)]
mod adapters_tests;
mod buffers;
mod cm;
mod config;
mod devices;
mod domain;
#[cfg(test)]
mod double;
mod endpoint;
mod gid;
#[cfg(test)]
mod instructions_tests;
mod interface;
mod keys;
#[cfg(test)]
mod layout_tests;
mod load;
mod memory;
mod notices;
mod port;
#[cfg(test)]
mod ports_tests;
mod queue_pair;
mod rc;
#[cfg(test)]
mod reserve_tests;
mod shared;
#[cfg(test)]
mod sharing_tests;
mod sys;
mod ud;
mod wake;
#[cfg(test)]
mod whole_tests;

pub use cm::{RDMACM, RdmaCm};
pub use domain::{RC, UD, VerbsDomain};
pub use endpoint::{RemoteKey, VerbsEndpoint};
pub use interface::VerbsInterface;
pub use memory::Region;
pub use rc::{RcEndpoint, RcInterface};
pub use ud::{UdEndpoint, UdInterface};

use config::Settings;
use std::path::Path;
use tieline_plugin_api::{ConfigDoc, DomainInfo, Failure, HostHandle, Provider, memory_caps};

/// The path that the provider needs: the kernel's list of RDMA devices.
pub const NEEDS: &str = devices::CLASS;
/// The reason that the provider has no device without that path.
pub const MISSING: &str = "no device in /sys/class/infiniband";

/// The provider.
pub struct Verbs {
    settings: Settings,
    host: HostHandle,
}

impl Provider for Verbs {
    type Domain = VerbsDomain;

    fn open(host: HostHandle) -> Result<Verbs, Failure> {
        Ok(Verbs { settings: Settings::from_host(&host)?, host })
    }

    fn config() -> &'static [ConfigDoc] {
        config::VARIABLES
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        let ports = devices::list(Path::new(devices::CLASS), &self.settings.devices)?;
        Ok(ports
            .iter()
            .map(|port| DomainInfo {
                name: port.domain(),
                caps: memory_caps::REGISTER,
                max_key_len: keys::KEY_LEN as u32,
                register_ns: 15_000.0,
                register_ns_per_byte: 0.06,
            })
            .collect())
    }

    fn open_domain(&self, name: &str, _context_id: [u8; 16]) -> Result<VerbsDomain, Failure> {
        let class = Path::new(devices::CLASS);
        let port = devices::named(class, &self.settings.devices, name)?;
        VerbsDomain::open(class, port, self.settings.clone(), self.host)
    }
}
