//! The domain: no memory, one connection-only module.

use std::sync::Arc;

use tieline_net::{Contact, SharedHub};
use tieline_plugin_api::abi::{Cost, ModuleAttr, fixed};
use tieline_plugin_api::{
    Absent, Domain, Failure, HostHandle, Status, caps, connects, cost_class, role,
};

use crate::config::Settings;
use crate::connector::Stream;
use crate::frame::MAX_DATAGRAM;

const MODULE: &str = "stream";

/// The domain `tcp-connect`.
pub struct TcpConnectDomain {
    settings: Settings,
    hub: Arc<SharedHub>,
    host: Option<HostHandle>,
}

impl TcpConnectDomain {
    pub(crate) fn new(
        settings: Settings,
        hub: Arc<SharedHub>,
        host: Option<HostHandle>,
    ) -> TcpConnectDomain {
        TcpConnectDomain { settings, hub, host }
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
            caps: caps::PEER_FAILURE
                | caps::EVENT_FD
                | caps::NEEDS_POLL
                | caps::SLOW_POLL
                | caps::ANY_THREAD,
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
        Stream::open(hub, &self.settings, worker_id, self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_plugin_api::Connector;

    fn ports(stream: &Stream) -> Vec<u16> {
        let contact = Contact::parse(&stream.address()).expect("our own");
        contact.addresses.iter().map(|address| address.port).collect()
    }

    #[test]
    fn all_workers_of_a_process_share_one_listener_that_closes_with_the_last() {
        let (settings, hub) = (Settings::of(|_| None).expect("defaults"), Arc::default());
        let domain = || TcpConnectDomain::new(settings.clone(), Arc::clone(&hub), None);
        let (one, other) = (domain(), domain());
        let open = |domain: &TcpConnectDomain, worker| domain.open_connector(MODULE, [worker; 16]);
        let first = open(&one, 1).expect("opens");
        let second = open(&other, 2).expect("opens");
        let same_worker = open(&one, 1).expect("a worker may have two");
        assert_eq!(ports(&first), ports(&second));
        assert_eq!(ports(&first), ports(&same_worker));
        assert_ne!(first.address(), second.address());
        assert_ne!(first.address(), same_worker.address());
        let contact = Contact::parse(&first.address()).expect("our own");
        drop((first, second, same_worker));
        for address in contact.addresses {
            let at = std::net::SocketAddr::new(address.ip, address.port);
            assert!(std::net::TcpStream::connect(at).is_err(), "{at} still listens");
        }
    }

    #[test]
    fn other_names_are_refused() {
        let domain =
            TcpConnectDomain::new(Settings::of(|_| None).expect("defaults"), Arc::default(), None);
        assert!(domain.open_connector("streams", [1; 16]).is_err());
        assert!(domain.open_interface(MODULE, [1; 16]).is_err());
    }

    #[test]
    fn the_module_says_what_it_does_and_what_that_costs() {
        let domain =
            TcpConnectDomain::new(Settings::of(|_| None).expect("defaults"), Arc::default(), None);
        let modules = domain.modules();
        let [attr] = modules.as_slice() else { panic!("one module") };
        let all = [
            caps::PEER_FAILURE,
            caps::EVENT_FD,
            caps::NEEDS_POLL,
            caps::SLOW_POLL,
            caps::ANY_THREAD,
        ];
        assert_eq!(attr.caps, all.iter().sum::<u64>());
        assert_eq!((attr.role, attr.reliable), (role::CONNECTION_ONLY, 1));
        assert_eq!(attr.max_datagram as usize, MAX_DATAGRAM);
        let cost = attr.cost[cost_class::SMALL_MESSAGE];
        assert!(cost.overhead_ns > 0.0 && cost.latency_ns > cost.overhead_ns);
        let refused = domain.open_connector("streams", [1; 16]).err().unwrap();
        assert_eq!(refused.text, "there is no module \"streams\"");
    }
}
