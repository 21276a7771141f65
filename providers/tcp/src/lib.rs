//! Provider tcp: moves data over TCP.

use tieline_plugin_api::{Absent, DomainInfo, Failure, HostHandle, Provider, Status};

/// The provider.
pub struct Tcp;

/// Its domain, which is not there yet.
pub struct TcpDomain;

impl tieline_plugin_api::Domain for TcpDomain {
    type Interface = Absent;
    type Connector = Absent;
    type Region = ();

    fn modules(&self) -> Vec<tieline_plugin_api::abi::ModuleAttr> {
        Vec::new()
    }

    fn open_interface(&self, _: &str, _: [u8; 16]) -> Result<Absent, Failure> {
        Err(Status::Unsupported.into())
    }
}

impl Provider for Tcp {
    type Domain = TcpDomain;

    fn open(_: HostHandle) -> Result<Tcp, Failure> {
        Err(Failure::new(Status::Unsupported, "not built yet"))
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        Ok(Vec::new())
    }

    fn open_domain(&self, _: &str, _: [u8; 16]) -> Result<TcpDomain, Failure> {
        Err(Status::NoDevice.into())
    }
}
