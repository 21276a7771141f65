//! An open connection-only module.

use super::super::ConnectorTable;
use super::super::events::{Batch, Polled};
use super::super::grown::grown;
use super::super::results::{armed, polled, reached};
use super::DomainHandle;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::sync::Arc;
use tieline_explain::Error;
use tieline_plugin_api::abi::ModuleAttr;
use tieline_plugin_api::{Armed, Failure, Status, caps};

/// A connection-only module. It is not `Send`: one thread uses it.
pub struct OpenConnector {
    pub(super) handle: *mut c_void,
    pub(super) table: ConnectorTable,
    pub(super) domain: Arc<DomainHandle>,
    pub(super) one_thread: PhantomData<*mut ()>,
}

impl Drop for OpenConnector {
    fn drop(&mut self) {
        // SAFETY: the connector is open, and closed once here, on its thread.
        unsafe { (self.table.close)(self.handle) }
    }
}

/// A connector that no thread uses yet. One thread takes it.
pub struct ParkedConnector(OpenConnector);

// SAFETY: `OpenConnector::park` admits only modules with ANY_THREAD, which another thread than the opening one may call, and close.
// Until a thread takes the connector, none calls it.
unsafe impl Send for ParkedConnector {}

impl ParkedConnector {
    /// Returns the connector for this thread's worker.
    #[must_use]
    pub fn take(self) -> OpenConnector {
        self.0
    }
}

impl OpenConnector {
    /// Leaves the connector for another thread, if the attributes of its module permit that. Otherwise closes it.
    #[must_use]
    pub fn park(self, module: &ModuleAttr) -> Option<ParkedConnector> {
        (module.caps & caps::ANY_THREAD != 0).then_some(ParkedConnector(self))
    }

    /// Returns the address by which a peer reaches this connector.
    pub fn address(&self) -> Result<Vec<u8>, Error> {
        self.domain.provider.usable(&|| "a connector has no address".to_string())?;
        grown(|buffer, capacity| {
            // SAFETY: the connector is open and this is its thread; the buffer has that capacity.
            unsafe { (self.table.address)(self.handle, buffer, capacity) }
        })
        .map_err(|status| {
            let what = || "a connector has no address".to_string();
            self.domain.provider.failed_call(status as i32, &what)
        })
    }

    /// Checks whether a connector with this address can be reached; the error has the status and the reason as text.
    pub fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        self.check_provider()?;
        // SAFETY: the connector is open and this is its thread; the address is borrowed for the call.
        let code = unsafe { (self.table.reachable)(self.handle, address.as_ptr(), address.len()) };
        reached(&self.domain.provider, code)
    }

    /// Sends one datagram; AGAIN means that nothing was sent.
    pub fn send(&self, address: &[u8], datagram: &[u8]) -> Result<(), Status> {
        self.check_provider()?;
        // SAFETY: the connector is open and this is its thread; address and datagram are borrowed for the call.
        let code = unsafe {
            (self.table.send)(
                self.handle,
                address.as_ptr(),
                address.len(),
                datagram.as_ptr(),
                datagram.len(),
            )
        };
        self.domain.provider.heard(code);
        if code < 0 { Err(Status::from_code(code)) } else { Ok(()) }
    }

    /// # Safety
    /// Makes progress, under the conditions of [`super::OpenInterface::poll`].
    pub unsafe fn poll<'a>(&self, batch: &'a mut Batch) -> Result<&'a [Polled], Status> {
        self.check_provider()?;
        let (events, max) = batch.room();
        // SAFETY: the connector is open and this is its thread; the batch has space for `max` events.
        let count = polled(unsafe { (self.table.poll)(self.handle, events, max) })
            .inspect_err(|status| self.domain.provider.heard(*status as i32))?;
        // SAFETY: `count` is the result of that poll and does not exceed the capacity.
        Ok(unsafe { batch.written(count) })
    }

    /// Prepares to sleep on [`OpenConnector::event_fd`].
    pub fn arm(&self) -> Result<Armed, Status> {
        self.check_provider()?;
        // SAFETY: the connector is open and this is its thread.
        let code = unsafe { (self.table.arm)(self.handle) };
        self.domain.provider.heard(code);
        armed(code)
    }

    /// Checks that the provider has not failed: none of a failed provider's functions may be called.
    fn check_provider(&self) -> Result<(), Status> {
        self.domain.provider.check_alive()
    }

    /// Returns the descriptor on which a thread can sleep; the connector owns the descriptor.
    pub fn event_fd(&self) -> Option<RawFd> {
        self.check_provider().ok()?;
        // SAFETY: the connector is open and this is its thread.
        let fd = unsafe { (self.table.event_fd)(self.handle) };
        (fd >= 0).then_some(fd)
    }
}
