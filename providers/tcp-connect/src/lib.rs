//! Provider tcp-connect: forms connections over TCP.

use tieline_plugin_api::{Absent, DomainInfo, Failure, HostHandle, Provider, Status};

/// The provider.
pub struct TcpConnect;

/// Its domain, which is not there yet.
pub struct TcpConnectDomain;

impl tieline_plugin_api::Domain for TcpConnectDomain {
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

impl Provider for TcpConnect {
    type Domain = TcpConnectDomain;

    fn open(_: HostHandle) -> Result<TcpConnect, Failure> {
        Err(Failure::new(Status::Unsupported, "not built yet"))
    }

    fn domains(&self) -> Result<Vec<DomainInfo>, Failure> {
        Ok(Vec::new())
    }

    fn open_domain(&self, _: &str, _: [u8; 16]) -> Result<TcpConnectDomain, Failure> {
        Err(Status::NoDevice.into())
    }
}
