//! Provider shm-cma.

use tieline_plugin_api::{Absent, Domain, DomainInfo, Failure, HostHandle, Provider, Status, abi};

/// The provider.
pub struct ShmCma;

impl Provider for ShmCma {
    type Domain = Nothing;
    fn open(_: HostHandle) -> Result<ShmCma, Failure> {
        Err(Failure::new(Status::Unsupported, "not written yet"))
    }
    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        Ok(Vec::new())
    }
    fn open_domain(&self, _: &str, _: [u8; 16]) -> Result<Nothing, Failure> {
        Err(Status::Unsupported.into())
    }
}

/// No domain yet.
pub struct Nothing;

impl Domain for Nothing {
    type Interface = Absent;
    type Connector = Absent;
    type Region = ();
    fn modules(&self) -> Vec<abi::ModuleAttr> {
        Vec::new()
    }
    fn open_interface(&self, _: &str, _: [u8; 16]) -> Result<Absent, Failure> {
        Err(Status::Unsupported.into())
    }
}
