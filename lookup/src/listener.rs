//! The names of a context's workers, and the listener that answers requests for their addresses.

use crate::Error;
use crate::name::{PURPOSE, USER, WorkerName, tag};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_net::{Filter, Hub, Incoming, Listen, Mailbox, Ports, Settings, target_of};

/// The maximum number of requests that one poll answers.
const AT_ONCE: usize = 64;

/// The names of a context's workers. The listener is open while a worker has a name.
#[derive(Default)]
pub struct Names {
    open: Mutex<Option<Arc<NameService>>>,
}

impl Names {
    /// Returns the listener, if it is open.
    pub fn listener(&self) -> Option<Arc<NameService>> {
        self.lock().clone()
    }

    /// Makes the name of a worker; requests get this address until a newer one is set. The first name opens the listener with
    /// `open`.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn publish(
        &self,
        worker: &[u8; 16],
        address: Vec<u8>,
        open: impl FnOnce() -> Result<NameService, Error>,
    ) -> Result<(Arc<NameService>, WorkerName), Error> {
        let mut known = self.lock();
        let names = match &*known {
            Some(names) => names.clone(),
            None => known.insert(Arc::new(open()?)).clone(),
        };
        let name = names.publish(worker, address);
        Ok((names, name))
    }

    /// Removes the name of a closed worker. Returns the listener after the last name: requests are refused once it is dropped.
    #[must_use]
    pub fn forget(&self, worker: &[u8; 16]) -> Option<Arc<NameService>> {
        self.lock().take_if(|names| names.forget(worker))
    }

    /// Abandons the listener in a forked child, where the parent owns it. No lock is taken.
    pub fn abandon(&mut self) {
        let names = self.open.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(names.take());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<NameService>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The responder for requests by name, for the workers of a context. The responder is usable from any thread.
pub struct NameService {
    pub(crate) mailbox: Mailbox,
    addresses: Mutex<HashMap<[u8; 8], Vec<u8>>>,
}

impl NameService {
    /// Starts to listen.
    ///
    /// # Errors
    /// The reason as text.
    pub fn open(settings: &Settings) -> Result<NameService, String> {
        let hub = Hub::open(settings)?;
        let target = target_of(USER, &hub.contact([0; 16]).cookie);
        let mailbox = hub.register(target)?;
        Ok(NameService { mailbox, addresses: Mutex::default() })
    }

    /// Returns the name of a worker, and sets the address that requests get.
    pub(crate) fn publish(&self, worker: &[u8; 16], address: Vec<u8>) -> WorkerName {
        let _ = self.known().insert(tag(worker), address);
        self.name_of(worker)
    }

    /// Returns the name under which a worker's requests arrive at this listener.
    pub fn name_of(&self, worker: &[u8; 16]) -> WorkerName {
        WorkerName::new(&self.mailbox.contact(), worker)
    }

    /// Removes a closed worker. `true`: no other worker has a name.
    pub(crate) fn forget(&self, worker: &[u8; 16]) -> bool {
        let mut known = self.known();
        let _ = known.remove(&tag(worker));
        known.is_empty()
    }

    /// Returns the listener's descriptors, of which one is readable when [`NameService::poll`] has work.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.mailbox.hub().fd().as_raw_fd(), self.mailbox.fd().as_raw_fd()]
    }

    /// Answers requests without waiting, a bounded number per call. If a request waits, `now` returns the id and the current
    /// address of the worker that answers, if that worker has a name.
    pub fn poll(&self, now: impl FnOnce() -> Option<([u8; 16], Vec<u8>)>) {
        self.mailbox.hub().poll();
        if self.mailbox.is_empty() {
            return;
        }
        if let Some((worker, address)) = now() {
            let _ = self.known().insert(tag(&worker), address);
        }
        let asked = std::iter::from_fn(|| self.mailbox.take()).take(AT_ONCE);
        asked.for_each(|incoming| self.answer(incoming));
    }

    fn answer(&self, incoming: Incoming) {
        let hello = &incoming.hello;
        let asked = hello.payload().first_chunk::<8>().filter(|_| hello.purpose == PURPOSE);
        let address = asked.and_then(|tag| self.known().get(tag).cloned()).unwrap_or_default();
        let answer = [&(address.len() as u32).to_le_bytes()[..], &address].concat();
        // If the answer cannot be sent, the connection ends, which the requester detects.
        let _ = incoming.answer(&answer);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<[u8; 8], Vec<u8>>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the settings of a context's name requests, for the listener and for the requester: interfaces, ports and the secret.
///
/// # Errors
/// The reason as text, if a list of interfaces or ports cannot be read.
pub fn settings(secret: String, interfaces: &str, ports: &str) -> Result<Settings, String> {
    let (filter, listen) = (Filter::parse(interfaces)?, Listen::Ports(Ports::parse(ports)?));
    Ok(Settings { secret: secret.into_bytes(), filter, listen, ..Settings::default() })
}
