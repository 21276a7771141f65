//! Provider verbs: messages, put, get and atomics over RDMA devices (InfiniBand, RoCE).
//!
//! One domain for every port: `verbs:mlx5_0` is port 1 of the device, `verbs:mlx5_0:2` its port 2. Two modules each:
//!
//! * `rc`, reliable connections. Connects *to an endpoint*: the core carries the two endpoint addresses, over `ud` or
//!   over any other connector. Messages go through a receive queue that all endpoints of an interface share, and
//!   credits stop a sender whose peer does not poll. Put, get, 64-bit add and compare-swap are the device's own.
//! * `ud`, datagrams. Connects *to an interface*: small messages with sequence numbers, acknowledgements and
//!   retransmission of this provider's own, enough to wire `rc`.
//!
//! What it promises:
//!
//! * An operation completes when the target's device has acknowledged it: a put has then been written to the target's
//!   memory. Operations of one endpoint take effect in the order in which they were posted; those behind a
//!   get or an atomic only after `fence`.
//! * Changed bytes, foreign keys, wrong ranges and missing rights are refused before anything is posted. A *revoked* key
//!   is refused by the target's device; that operation fails with `KEY_REJECTED`, and the connection with it, because
//!   verbs can not carry on after such an error. So `CHECKS_KEYS` is not claimed.
//! * Everything that is posted ends: with its completion, or with the endpoint's failure.
//!
//! # The binding
//!
//! The declarations are written by hand (`abi.rs`) and libibverbs is loaded with `dlopen` when the first device is
//! opened (`load.rs`). The crate rdma-sys was tried and is a poor fit: it runs bindgen when it is built, and so needs
//! libclang and the headers on every machine that builds the workspace; and what it makes is linked to libibverbs and
//! librdmacm, so that on a machine without them the provider could not even be loaded to say that there is no
//! device. Here building needs nothing, a machine without RDMA pays for one look into `/sys/class/infiniband`, and a test
//! compares every size, offset and number with the installed headers. `tests/yardstick` compares them with rdma-sys.

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
