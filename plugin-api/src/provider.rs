//! The safe side of the ABI: the traits that a provider in Rust implements.
//!
//! A [`Provider`] lists [`Domain`]s; a domain lists modules and opens an [`Interface`] (data path) or a [`Connector`]
//! (connection-only); an interface makes [`Endpoint`]s. Capabilities are stated in [`ModuleAttr`]. A method whose capability the
//! module does not state may keep its default. The default of most methods with a result returns [`Status::Unsupported`].
//!
//! Threads: `Provider` and `Domain` are shared (`Send + Sync`). An interface and its endpoints belong to
//! one thread at a time and need no locks.

pub use crate::abi::packer::Packer;
use crate::abi::{
    AllocParams, Event, KeyParams, ModuleAttr, RegisterParams, Watch, host::HostHandle,
};
pub use crate::absent::Absent;
use crate::{ConfigDoc, Events, Failure, OK, PENDING, Status};
use core::mem::MaybeUninit;
pub use endpoint::{AtOnce, Endpoint, ListOp, ListPart, RmaOp};

mod endpoint;

/// The result of a data call that did not fail.
///
/// The value of each variant is its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Posting {
    /// The operation is done: buffers may be reused and no completion follows.
    Done = OK,
    /// The operation was accepted: a completion event with its cookie follows (with [`NO_EVENT`](crate::op_flags::NO_EVENT) only
    /// after a failure).
    Pending = PENDING,
}

/// The result of a data call.
pub type Posted = Result<Posting, Status>;

/// The description of one domain, from `Provider::domains`.
#[derive(Clone, Debug)]
pub struct DomainInfo {
    /// The domain's full name: `shm`, `verbs:mlx5_0`.
    pub name: String,
    /// The memory capabilities, [`crate::memory_caps`].
    pub caps: u64,
    /// The length of the longest packed key, in bytes.
    pub max_key_len: u32,
    /// The fixed cost of registering memory, in ns.
    pub register_ns: f64,
    /// The cost of registering per byte, in ns.
    pub register_ns_per_byte: f64,
}

/// A provider. The core opens it once for each context that uses it, and may open it in a child process that tries the file.
pub trait Provider: Sized + Send + Sync + 'static {
    /// The type of the provider's memory domains.
    type Domain: Domain;

    /// Opens the provider. Opening must be cheap: check whether the device can exist, and acquire no resource yet.
    ///
    /// # Errors
    /// The reason why this provider cannot be used on this machine. Operators read it.
    fn open(host: HostHandle) -> Result<Self, Failure>;

    /// Returns the variables that the provider reads: its own, which are named `TIELINE_<PROVIDER>_...`, and those of
    /// [`crate::config::shared`]. They are declared to the host before [`Provider::open`] is called, which then gets valid values.
    fn config() -> &'static [ConfigDoc] {
        &[]
    }

    /// Returns the available domains.
    ///
    /// # Errors
    /// The reason why no domain could be listed, for example `no device in /sys/class/infiniband`.
    fn domains(&self) -> Result<Vec<DomainInfo>, Failure>;

    /// Opens a listed domain for a context.
    ///
    /// # Errors
    /// The reason why the domain could not be opened.
    fn open_domain(&self, name: &str, context_id: [u8; 16]) -> Result<Self::Domain, Failure>;

    /// Stops threads and releases system resources. No other call follows. After a panic of the provider, this method is not
    /// called.
    fn quiesce(&self) {}
}

/// Memory that a domain provided or registered.
pub struct Allocation<R> {
    /// The domain's own record of the region.
    pub region: R,
    /// The address of the first byte.
    pub base: *mut u8,
    /// The length in bytes.
    pub len: usize,
}

/// A memory domain.
pub trait Domain: Sized + Send + Sync + 'static {
    /// The type of the domain's data-path modules; [`Absent`] if there are none.
    type Interface: Interface;
    /// The type of the domain's connection-only modules; [`Absent`] if there are none.
    type Connector: Connector;
    /// The domain's own record of a registered region.
    type Region: Send + Sync + 'static;

    /// Returns the modules of this domain, best first.
    fn modules(&self) -> Vec<ModuleAttr>;

    /// Opens a data-path module for the calling thread's worker.
    ///
    /// # Errors
    /// The reason why the module could not be opened.
    fn open_interface(&self, module: &str, worker_id: [u8; 16])
    -> Result<Self::Interface, Failure>;

    /// Opens a connection-only module.
    ///
    /// # Errors
    /// The reason why the module could not be opened.
    fn open_connector(
        &self,
        module: &str,
        worker_id: [u8; 16],
    ) -> Result<Self::Connector, Failure> {
        let _ = (module, worker_id);
        Err(Status::Unsupported.into())
    }

    /// Provides memory that peers of this domain reach best; zeroed, page-aligned.
    ///
    /// # Errors
    /// The reason why there is no such memory.
    fn alloc(&self, wanted: &AllocParams) -> Result<Allocation<Self::Region>, Failure> {
        let _ = wanted;
        Err(Status::Unsupported.into())
    }

    /// Registers memory of this process, which stays mapped until [`Domain::deregister`]. A provider that supports only host memory
    /// refuses other kinds with [`RegisterParams::host_memory`].
    ///
    /// # Errors
    /// The reason why the memory could not be registered.
    fn register(&self, memory: &RegisterParams) -> Result<Self::Region, Failure> {
        let _ = memory;
        Err(Status::Unsupported.into())
    }

    /// Refuses every new access by a key of this region, as far as possible while this process still uses the registration, and
    /// reports whether an earlier access is still in progress. Such an access comes from a peer whose key was checked before. The
    /// default is for transports whose accesses end only with the registration, for example a device's.
    ///
    /// The core calls this method as soon as the owner asks to close the region. At that time operations of this process may still
    /// use the region as local memory; these continue. The method is called again before [`Domain::deregister`], and as long as it
    /// returns [`Revoked::Busy`]. The method must not wait. The region is valid, and its memory stays mapped, until the region is
    /// deregistered.
    fn revoke(&self, region: &Self::Region) -> Revoked {
        let _ = region;
        Revoked::Quiet
    }

    /// Ends a registration; memory from [`Domain::alloc`] is freed. Remote keys stop working immediately.
    ///
    /// # Errors
    /// The step that could not be undone; the region no longer exists in any case.
    fn deregister(&self, region: Self::Region) -> Result<(), Failure> {
        drop(region);
        Ok(())
    }

    /// Writes a remote key of the region and returns its length. A provider that only has keys to the whole region, with all of its
    /// rights, refuses other keys with [`KeyParams::whole`].
    ///
    /// # Errors
    /// [`Status::TooLarge`] if the key does not fit into `out`, or the reason why there is no key.
    fn pack_key(
        &self,
        region: &Self::Region,
        key: &KeyParams,
        out: &mut [u8],
    ) -> Result<usize, Failure> {
        let _ = (region, key, out);
        Err(Status::Unsupported.into())
    }
}

/// The result of [`Domain::revoke`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// No access to the memory is in progress.
    Quiet,
    /// An access that began before is not complete.
    Busy,
}

/// Whether an interface may go to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// The descriptor becomes readable on the next event.
    Sleep,
    /// There is an event to poll.
    Ready,
}

/// The memory that an interface uses, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The number of bytes that do not depend on the number of peers.
    pub base_bytes: u64,
    /// The number of bytes for all peers together.
    pub peer_bytes: u64,
    /// The number of peers that these bytes are for.
    pub peers: u64,
    /// The number of bytes of message buffers that have been committed.
    pub buffer_bytes: u64,
}

/// A data-path module, opened for one worker.
pub trait Interface: Sized + 'static {
    /// The type of the interface's endpoints. The core closes the endpoints before the interface, unless the provider has panicked.
    type Endpoint: Endpoint;
    /// Whether the interface exists; `false` only for [`Absent`].
    const PRESENT: bool = true;

    /// Returns the bytes that let a peer reach this interface.
    fn address(&self) -> Vec<u8>;

    /// Checks whether a peer with this address can be reached. The bytes come from the peer, so the method checks every byte.
    ///
    /// # Errors
    /// The reason why the peer cannot be reached, for operators.
    fn reachable(&self, address: &[u8]) -> Result<(), Failure>;

    /// Makes an endpoint. The peer gets `identity` in [`PEER_ARRIVED`](crate::event::PEER_ARRIVED). `cookie` is that of the
    /// endpoint's [`ENDPOINT_FAILED`](crate::event::ENDPOINT_FAILED) and [`RETURNED`](crate::event::RETURNED).
    ///
    /// A module that connects to an endpoint gets an empty `address`, carries no identity and reports no
    /// arrivals. The core exchanges the two endpoint addresses ([`Endpoint::address`]), then calls
    /// [`Endpoint::connect`]. `peer` of every message that arrives on the endpoint is its `cookie`.
    ///
    /// # Errors
    /// The reason why there can be no such endpoint; [`Status::Again`] if the call may succeed after progress.
    fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<Self::Endpoint, Failure>;

    /// Makes progress: first releases the payloads of the previous call that were not lent, then pushes events while there is room.
    ///
    /// # Errors
    /// A failure of the whole interface. A failure of one peer is an event.
    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status>;

    /// Whether the module implements [`Interface::poll_at_once`].
    const POLLS_AT_ONCE: bool = false;

    /// Handles the most frequent poll, which has exactly one event and nothing else to do: makes the progress of [`Interface::poll`],
    /// and writes the event. `false`: nothing has changed, and the caller calls [`Interface::poll`]. The caller uses this method only
    /// if [`Interface::POLLS_AT_ONCE`] holds.
    #[inline]
    fn poll_at_once(&self, event: &mut MaybeUninit<Event>) -> bool {
        let _ = event;
        false
    }

    /// Does the same as [`Interface::poll_at_once`] for a less frequent poll. The caller uses this method directly after
    /// [`Interface::poll_at_once`] has returned `false`.
    #[inline]
    fn poll_second(&self, event: &mut MaybeUninit<Event>) -> bool {
        let _ = event;
        false
    }

    /// Whether the module implements [`Interface::poll_quietly`].
    const POLLS_QUIETLY: bool = false;

    /// Begins a poll. `true`: there is no event, and the poll is complete. `false`: the caller calls [`Interface::poll`], which
    /// continues this poll. The caller uses this method only if [`Interface::POLLS_QUIETLY`] holds.
    #[inline]
    fn poll_quietly(&self) -> bool {
        false
    }

    /// Returns the list of words that the core may compare instead of polling; `None`: the module has none. The interface keeps the
    /// list for its whole life. While all listed words have the listed values, [`Interface::poll`] has no event. Anything else that a
    /// poll does, such as accepting a first contact, may come up to [`WATCH_CALLS`](crate::abi::WATCH_CALLS) polls later. The core
    /// calls this method once.
    fn watch(&self) -> Option<&Watch> {
        None
    }

    /// Prepares to sleep on [`Interface::event_fd`].
    ///
    /// # Errors
    /// [`Status::Unsupported`] without [`crate::caps::EVENT_FD`].
    fn arm(&self) -> Result<Armed, Status> {
        Err(Status::Unsupported)
    }

    /// Returns the descriptor to sleep on.
    fn event_fd(&self) -> Option<i32> {
        None
    }

    /// Returns a payload that was lent; `token` is the cookie of its event.
    fn release(&self, token: u64) {
        let _ = token;
    }

    /// Disconnects the peer whose messages carry this number. No message of the peer arrives any more, the peer's endpoint fails,
    /// and a later endpoint of the same peer is a new connection. The core calls this method if it cannot answer a peer that would
    /// otherwise wait without end. For modules that connect to an endpoint, the core closes the endpoint instead.
    ///
    /// # Errors
    /// [`Status::Unsupported`] if the module cannot notify the peer: the peer then waits until another event ends its wait.
    fn hang_up(&self, peer: u64) -> Result<(), Status> {
        let _ = peer;
        Err(Status::Unsupported)
    }

    /// Makes a packed key usable on every endpoint of this interface to the owner of the key. The bytes come from the peer, so the
    /// method checks every byte. The core calls it for modules with [`crate::caps::INTERFACE_KEYS`], instead of
    /// [`Endpoint::import_key`].
    ///
    /// # Errors
    /// As [`Endpoint::import_key`].
    fn import_key(&self, bytes: &[u8]) -> Result<<Self::Endpoint as Endpoint>::Key, Failure> {
        let _ = bytes;
        Err(Status::Unsupported.into())
    }

    /// Completes when everything that was posted before on any endpoint of this interface is complete at its target. The method
    /// belongs to [`crate::caps::FLUSH_ALL`]. The core does not call it yet.
    ///
    /// # Errors
    /// [`Status::Again`]: call again after progress.
    fn flush(&self, cookie: u64) -> Posted {
        let _ = cookie;
        Err(Status::Unsupported)
    }

    /// Ends the interface's service, because the worker has closed or the process exits. Notifies every connected peer that this
    /// side has left in good order, delivers what was accepted before, for at most `TIELINE_CLOSE_TIMEOUT`, and accepts no new
    /// peer. Endpoints, keys and lent payloads may still exist and are released afterwards. Nothing is posted or polled after this
    /// call.
    fn leave(&self) {}

    /// Returns the memory that the interface uses.
    fn memory(&self) -> MemoryReport {
        MemoryReport::default()
    }
}

/// A connection-only module: it sends datagrams to addresses, and carries no user data.
pub trait Connector: Sized + 'static {
    /// Whether the connector exists; `false` only for [`Absent`].
    const PRESENT: bool = true;

    /// Returns the bytes that let a peer reach this connector.
    fn address(&self) -> Vec<u8>;

    /// Checks whether a connector with this address can be reached.
    ///
    /// # Errors
    /// The reason why the connector cannot be reached.
    fn reachable(&self, address: &[u8]) -> Result<(), Failure>;

    /// Sends one datagram. The datagram may be lost if the connection breaks; [`PEER_LEFT`](crate::event::PEER_LEFT) then reports
    /// the break.
    ///
    /// # Errors
    /// [`Status::Again`]: nothing was sent.
    fn send(&self, address: &[u8], datagram: &[u8]) -> Result<(), Status>;

    /// Makes progress: pushes [`DATAGRAM`](crate::event::DATAGRAM), and [`PEER_LEFT`](crate::event::PEER_LEFT) if an address cannot
    /// be reached or the connection to it broke. `header` of the latter is [`crate::address_hash`] of the address passed to
    /// [`Connector::send`], and data the reason in words. Datagrams sent before may be lost; a new `send` starts a new attempt.
    ///
    /// # Errors
    /// A failure of the whole connector.
    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status>;

    /// Prepares to sleep, like [`Interface::arm`].
    ///
    /// # Errors
    /// [`Status::Unsupported`] without a descriptor.
    fn arm(&self) -> Result<Armed, Status> {
        Err(Status::Unsupported)
    }

    /// Returns the descriptor to sleep on.
    fn event_fd(&self) -> Option<i32> {
        None
    }
}

#[cfg(test)]
#[path = "provider_tests.rs"]
mod tests;
