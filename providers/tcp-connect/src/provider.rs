//! The provider: one domain, present if an interface is up.

use std::sync::Arc;

use tieline_net::{SharedHub, check_addresses};
use tieline_plugin_api::{ConfigDoc, DomainInfo, Failure, HostHandle, Provider, Status};

use crate::config::{Settings, VARIABLES};
use crate::domain::TcpConnectDomain;

const DOMAIN: &str = "tcp-connect";

/// The provider tcp-connect.
pub struct TcpConnect {
    settings: Settings,
    hub: Arc<SharedHub>,
    host: HostHandle,
}

impl Provider for TcpConnect {
    type Domain = TcpConnectDomain;

    fn open(host: HostHandle) -> Result<TcpConnect, Failure> {
        Ok(TcpConnect { settings: Settings::from_host(&host)?, hub: Arc::default(), host })
    }

    fn config() -> &'static [ConfigDoc] {
        VARIABLES
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        check_addresses(&self.settings.net.filter)
            .map_err(|why| Failure::new(Status::NoDevice, why))?;
        Ok(vec![DomainInfo {
            name: DOMAIN.into(),
            caps: 0,
            max_key_len: 0,
            register_ns: 0.0,
            register_ns_per_byte: 0.0,
        }])
    }

    fn open_domain(&self, name: &str, _context: [u8; 16]) -> Result<TcpConnectDomain, Failure> {
        if name != DOMAIN {
            return Err(Failure::new(Status::NoDevice, format!("there is no domain {name:?}")));
        }
        Ok(TcpConnectDomain::new(self.settings.clone(), Arc::clone(&self.hub), Some(self.host)))
    }
}
