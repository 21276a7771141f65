//! One endpoint type for `rc` and `ud`.

use crate::keys::PackedKey;
use crate::rc::RcEndpoint;
use crate::ud::UdEndpoint;
use tieline_plugin_api::abi::{Atomic, Iov};
use tieline_plugin_api::{Endpoint, Failure, ListOp, Packer, Posted, RmaOp, Status};

/// An endpoint to one peer.
pub enum VerbsEndpoint {
    /// An endpoint of `rc`: a reliable connection.
    Rc(RcEndpoint),
    /// An endpoint of `ud`: a sequence of datagrams.
    Ud(UdEndpoint),
}

/// A peer's imported key.
pub struct RemoteKey(pub(crate) PackedKey);

impl VerbsEndpoint {
    #[inline]
    fn rc(&self) -> Result<&RcEndpoint, Status> {
        match self {
            VerbsEndpoint::Rc(rc) => Ok(rc),
            VerbsEndpoint::Ud(_) => Err(Status::Unsupported),
        }
    }
}

impl Endpoint for VerbsEndpoint {
    type Key = RemoteKey;

    #[inline]
    fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        match self {
            VerbsEndpoint::Rc(rc) => rc.told(rc.am_short(id, header, payload)),
            VerbsEndpoint::Ud(ud) => ud.am_short(id, header, payload),
        }
    }

    fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        max: usize,
    ) -> Result<usize, Status> {
        match self {
            VerbsEndpoint::Rc(rc) => rc.told(rc.am_packed(id, header, packer, max)),
            VerbsEndpoint::Ud(ud) => ud.am_packed(id, header, packer, max),
        }
    }

    fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], cookie: u64) -> Posted {
        let rc = self.rc()?;
        rc.told(rc.am_zcopy(id, header, iov, cookie))
    }

    #[inline(always)] // inlined into the entry point that the core calls
    fn put(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        let rc = self.rc()?;
        rc.told(rc.put(&key.0, op))
    }

    fn put_notify(&self, key: &RemoteKey, op: &RmaOp<'_>, word: u32) -> Posted {
        let rc = self.rc()?;
        rc.told(rc.put_notify(&key.0, op, word))
    }

    fn get(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        let rc = self.rc()?;
        rc.told(rc.get(&key.0, op))
    }

    fn rma_list(&self, list: &ListOp<'_, RemoteKey>, taken: &mut usize) -> Posted {
        let rc = self.rc()?;
        rc.told(rc.rma_list(list, taken))
    }

    fn atomic(&self, key: &RemoteKey, op: &Atomic, _result: &mut u64) -> Posted {
        let rc = self.rc()?;
        rc.told(rc.atomic(&key.0, op))
    }

    fn flush(&self, cookie: u64) -> Posted {
        match self {
            VerbsEndpoint::Rc(rc) => rc.told(rc.flush(cookie)),
            VerbsEndpoint::Ud(ud) => ud.flush(cookie),
        }
    }

    fn fence(&self) -> Result<(), Status> {
        match self {
            VerbsEndpoint::Rc(rc) => rc.fence(),
            // `ud` delivers the datagrams of one endpoint in the order in which they were sent.
            VerbsEndpoint::Ud(ud) => ud.healthy(),
        }
    }

    fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, Failure> {
        self.rc()?.import_key(bytes).map(RemoteKey)
    }

    fn address(&self) -> Vec<u8> {
        match self {
            VerbsEndpoint::Rc(rc) => rc.address(),
            VerbsEndpoint::Ud(_) => Vec::new(),
        }
    }

    fn connect(&self, address: &[u8]) -> Result<(), Failure> {
        self.rc()?.connect(address)
    }
}
