//! The provider: one domain, which exists while an allowed network interface is up.

use tieline_plugin_api::{
    ConfigDoc, DomainInfo, Failure, HostHandle, Provider, Status, memory_caps,
};

use crate::config::{Settings, VARIABLES};
use crate::domain::TcpDomain;
use crate::regions::KEY_LEN;

const DOMAIN: &str = "tcp";

/// The provider tcp.
pub struct Tcp {
    host: HostHandle,
    settings: Settings,
}

impl Provider for Tcp {
    type Domain = TcpDomain;

    fn open(host: HostHandle) -> Result<Tcp, Failure> {
        Ok(Tcp { host, settings: Settings::from_host(&host)? })
    }

    fn config() -> &'static [ConfigDoc] {
        VARIABLES
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        tieline_net::check_addresses(&self.settings.net.filter)
            .map_err(|why| Failure::new(Status::NoDevice, why))?;
        Ok(vec![DomainInfo {
            name: DOMAIN.to_string(),
            caps: memory_caps::REGISTER,
            max_key_len: KEY_LEN as u32,
            register_ns: 200.0,
            register_ns_per_byte: 0.0,
        }])
    }

    fn open_domain(&self, name: &str, _context: [u8; 16]) -> Result<TcpDomain, Failure> {
        if name != DOMAIN {
            return Err(Failure::new(Status::NoDevice, format!("there is no domain {name:?}")));
        }
        TcpDomain::open(self.settings.clone(), Some(self.host))
    }
}
