//! The provider: one domain, which always exists.

use tieline_plugin_api::{
    ConfigDoc, DomainInfo, Failure, HostHandle, Provider, Status, memory_caps,
};

use crate::config::{Settings, VARIABLES};
use crate::directory::Directory;
use crate::domain::ShmDomain;
use crate::keys::KEY_LEN;

const DOMAIN: &str = "shm";

/// The provider shm.
pub struct Shm {
    settings: Settings,
    host: HostHandle,
}

impl Provider for Shm {
    type Domain = ShmDomain;

    fn open(host: HostHandle) -> Result<Shm, Failure> {
        let settings = Settings::from_host(&host)?;
        // An invalid value is reported when a context opens, not by each of its workers.
        if let Some(dir) = &settings.dir {
            let _ = Directory::given(dir)?;
        }
        Ok(Shm { settings, host })
    }

    fn config() -> &'static [ConfigDoc] {
        VARIABLES
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        Ok(vec![DomainInfo {
            name: DOMAIN.to_string(),
            caps: memory_caps::ALLOC | memory_caps::REGISTER_PARTS | memory_caps::KEYS_ADD_NO_RIGHT,
            max_key_len: KEY_LEN as u32,
            register_ns: 5_000.0,
            register_ns_per_byte: 0.05,
        }])
    }

    fn open_domain(&self, name: &str, _context: [u8; 16]) -> Result<ShmDomain, Failure> {
        if name != DOMAIN {
            return Err(Failure::new(Status::NoDevice, format!("there is no domain {name:?}")));
        }
        ShmDomain::open(self.settings.clone(), self.host)
    }
}
