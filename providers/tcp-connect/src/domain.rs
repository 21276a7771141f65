//! The domain: no memory, one connection-only module.

use std::sync::Arc;

use tieline_net::{Contact, SharedHub};
use tieline_plugin_api::abi::{Cost, ModuleAttr, fixed};
use tieline_plugin_api::{Absent, Domain, Failure, Status, caps, connects, cost_class, role};

use crate::config::Settings;
use crate::connector::Stream;
use crate::frame::MAX_DATAGRAM;

const MODULE: &str = "stream";

/// The domain `tcp-connect`.
pub struct TcpConnectDomain {
    settings: Settings,
    hub: Arc<SharedHub>,
}

impl TcpConnectDomain {
    pub(crate) fn new(settings: Settings, hub: Arc<SharedHub>) -> TcpConnectDomain {
        TcpConnectDomain { settings, hub }
    }
}

impl Domain for TcpConnectDomain {
    type Interface = Absent;
    type Connector = Stream;
    type Region = ();

    fn modules(&self) -> Vec<ModuleAttr> {
        let mut attr = ModuleAttr {
            name: fixed(MODULE),
            role: role::CONNECTION_ONLY,
            connects: connects::TO_INTERFACE,
            caps: caps::PEER_FAILURE | caps::EVENT_FD | caps::NEEDS_POLL | caps::SLOW_POLL,
            priority: 10,
            max_address_len: Contact::MAX_LEN as u32,
            max_datagram: MAX_DATAGRAM as u32,
            reliable: 1,
            ..ModuleAttr::empty()
        };
        attr.cost[cost_class::SMALL_MESSAGE] =
            Cost { overhead_ns: 5_000.0, latency_ns: 30_000.0, bytes_per_second: 1e9 };
        vec![attr]
    }

    fn open_interface(&self, module: &str, _: [u8; 16]) -> Result<Absent, Failure> {
        let why = format!("{module:?}: this domain has connection-only modules and no other");
        Err(Failure::new(Status::Unsupported, why))
    }

    fn open_connector(&self, module: &str, worker_id: [u8; 16]) -> Result<Stream, Failure> {
        if module != MODULE {
            return Err(Failure::new(Status::NoDevice, format!("there is no module {module:?}")));
        }
        let hub =
            self.hub.get(&self.settings.net).map_err(|why| Failure::new(Status::NoDevice, why))?;
        Stream::open(hub, &self.settings, worker_id)
    }
}
