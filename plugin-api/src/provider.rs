//! The safe side of the ABI: what a provider in Rust implements.
//!
//! A [`Provider`] lists [`Domain`]s; a domain lists modules and opens an [`Interface`] (data path) or a
//! [`Connector`] (connection-only); an interface makes [`Endpoint`]s. Capabilities are stated in
//! [`ModuleAttr`]; a method whose capability is not stated keeps its default, which says
//! [`Status::Unsupported`].
//!
//! Threads: `Provider` and `Domain` are shared (`Send + Sync`). An interface and its endpoints belong to
//! one thread at a time and need no locks.

pub use crate::abi::packer::Packer;
use crate::abi::{
    AllocParams, Atomic, EndpointLimits, Iov, KeyParams, ModuleAttr, RegisterParams,
    host::HostHandle,
};
use crate::{ConfigDoc, Events, Failure, OK, PENDING, Status};

/// How a data call ended when it did not fail.
///
/// It has the value of its code, and lies where a [`Status`] would lie in [`Posted`]: so whichever of both it is,
/// the code that crosses the boundary is read from the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Posting {
    /// All done: buffers may be reused and no completion follows.
    Done = OK,
    /// Accepted: a completion event with the operation's cookie follows.
    Pending = PENDING,
}

/// The result of a data call.
pub type Posted = Result<Posting, Status>;

/// What `Provider::domains` says of one domain.
#[derive(Clone, Debug)]
pub struct DomainInfo {
    /// Full name: `shm`, `verbs:mlx5_0`.
    pub name: String,
    /// [`crate::memory_caps`].
    pub caps: u64,
    /// The longest packed key.
    pub max_key_len: u32,
    /// Fixed cost of registering memory, ns.
    pub register_ns: f64,
    /// Cost of registering per byte, ns.
    pub register_ns_per_byte: f64,
}

/// A plug-in: a plain struct that was opened once and lives as long as the process.
pub trait Provider: Sized + Send + Sync + 'static {
    /// Its memory domains.
    type Domain: Domain;

    /// Opens the provider. Cheap: look whether the device can be there, take no resource yet.
    ///
    /// # Errors
    /// The reason why this provider cannot be used here; it becomes the line that an operator reads.
    fn open(host: HostHandle) -> Result<Self, Failure>;

    /// The variables that it reads: its own, all of them named `TIELINE_<PROVIDER>_...`, and those of
    /// [`crate::config::shared`]. They are declared to the host before [`Provider::open`] is called, which then finds
    /// values that are valid.
    fn config() -> &'static [ConfigDoc] {
        &[]
    }

    /// The domains that are there.
    ///
    /// # Errors
    /// Why none could be listed, for example `no device in /sys/class/infiniband`.
    fn domains(&self) -> Result<Vec<DomainInfo>, Failure>;

    /// Opens one of them for a context.
    ///
    /// # Errors
    /// Why it could not be opened.
    fn open_domain(&self, name: &str, context_id: [u8; 16]) -> Result<Self::Domain, Failure>;

    /// Stops threads and lets go of system resources; nothing else is called afterwards.
    fn quiesce(&self) {}
}

/// Memory that a domain provided or registered.
pub struct Allocation<R> {
    /// The domain's own record of it.
    pub region: R,
    /// First byte.
    pub base: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

/// A memory domain.
pub trait Domain: Sized + Send + Sync + 'static {
    /// Its data-path modules; [`Absent`] when there is none.
    type Interface: Interface;
    /// Its connection-only modules; [`Absent`] when there is none.
    type Connector: Connector;
    /// What it keeps about a registered region.
    type Region: Send + Sync + 'static;

    /// The modules of this domain, best first.
    fn modules(&self) -> Vec<ModuleAttr>;

    /// Opens a data-path module for the calling thread's worker.
    ///
    /// # Errors
    /// Why it could not be opened.
    fn open_interface(&self, module: &str, worker_id: [u8; 16])
    -> Result<Self::Interface, Failure>;

    /// Opens a connection-only module.
    ///
    /// # Errors
    /// Why it could not be opened.
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
    /// Why there is none.
    fn alloc(&self, wanted: &AllocParams) -> Result<Allocation<Self::Region>, Failure> {
        let _ = wanted;
        Err(Status::Unsupported.into())
    }

    /// Registers memory of this process, which stays mapped until [`Domain::deregister`]. Who knows only the processor's memory
    /// refuses other kinds with [`RegisterParams::of_host`].
    ///
    /// # Errors
    /// Why it could not be registered.
    fn register(&self, memory: &RegisterParams) -> Result<Self::Region, Failure> {
        let _ = memory;
        Err(Status::Unsupported.into())
    }

    /// Refuses every new access by a key of this region, and says whether one is still under way: that of a peer that
    /// had passed the check of its key before. The default is for transports whose accesses end with the registration
    /// alone, a device's for example.
    ///
    /// The core calls it as soon as the owner asks to close the region, when operations of this process may still have it
    /// as their local memory: those go on. It is called again before [`Domain::deregister`], and while it says
    /// [`Revoked::Busy`]; it must not wait. The region is valid, and its memory stays mapped, until deregistered.
    fn revoke(&self, region: &Self::Region) -> Revoked {
        let _ = region;
        Revoked::Quiet
    }

    /// Ends a registration; memory from [`Domain::alloc`] is freed. Remote keys stop working at once.
    ///
    /// # Errors
    /// What could not be undone; the region is gone all the same.
    fn deregister(&self, region: Self::Region) -> Result<(), Failure> {
        drop(region);
        Ok(())
    }

    /// Writes a remote key of the region and returns its length. Who has only keys to all of it, with its rights, refuses others
    /// with [`KeyParams::whole`].
    ///
    /// # Errors
    /// [`Status::TooLarge`] when `out` is shorter than `max_key_len`, or why there is no key.
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

/// What [`Domain::revoke`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// Nobody touches the memory any more.
    Quiet,
    /// An access that began before is not through.
    Busy,
}

/// Whether an interface may go to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// The descriptor becomes readable on the next event.
    Sleep,
    /// There is something to poll right now.
    Ready,
}

/// Memory that an interface holds, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Bytes that do not depend on the number of peers.
    pub base_bytes: u64,
    /// Bytes for all peers together.
    pub peer_bytes: u64,
    /// Peers that these bytes are for.
    pub peers: u64,
    /// Bytes of message buffers that have been committed.
    pub buffer_bytes: u64,
}

/// A data-path module, opened for one worker.
pub trait Interface: Sized + 'static {
    /// Its endpoints. They outlive no interface: the core closes them first.
    type Endpoint: Endpoint;
    /// `false` only for [`Absent`].
    const PRESENT: bool = true;

    /// The bytes that let a peer reach this interface.
    fn address(&self) -> Vec<u8>;

    /// Whether a peer with this address can be reached. The bytes come from the peer: check every one.
    ///
    /// # Errors
    /// Why not, for an operator to read.
    fn reachable(&self, address: &[u8]) -> Result<(), Failure>;

    /// Makes an endpoint. `identity` is handed to the peer in [`PEER_ARRIVED`](crate::event::PEER_ARRIVED); `cookie` comes back
    /// in [`ENDPOINT_FAILED`](crate::event::ENDPOINT_FAILED).
    ///
    /// A module that connects to an endpoint gets an empty `address`, carries no identity and announces no
    /// arrivals: the core carries the two endpoint addresses ([`Endpoint::address`]), then calls
    /// [`Endpoint::connect`]. `peer` of every message that arrives on the endpoint is its `cookie`.
    ///
    /// # Errors
    /// Why there can be no such endpoint; [`Status::Again`] when it may succeed after progress.
    fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<Self::Endpoint, Failure>;

    /// Progress: pushes events while there is room. Payloads of the call before are released first.
    ///
    /// # Errors
    /// Only what breaks the whole interface; trouble with one peer is an event.
    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status>;

    /// Prepares to sleep on [`Interface::event_fd`].
    ///
    /// # Errors
    /// [`Status::Unsupported`] without [`crate::caps::EVENT_FD`].
    fn arm(&self) -> Result<Armed, Status> {
        Err(Status::Unsupported)
    }

    /// The descriptor to sleep on.
    fn event_fd(&self) -> Option<i32> {
        None
    }

    /// Gives back a payload that was kept.
    fn release(&self, token: u64) {
        let _ = token;
    }

    /// Ends what a peer has towards us, by the number that its messages carry: nothing more of it comes, its endpoint
    /// fails, and a later one of the same peer is a new connection. The core calls it when it cannot answer a peer that
    /// would wait for ever; of modules that connect to an endpoint it closes the endpoint instead.
    ///
    /// # Errors
    /// [`Status::Unsupported`] where that cannot be told: the peer then waits until it is told otherwise.
    fn hang_up(&self, peer: u64) -> Result<(), Status> {
        let _ = peer;
        Err(Status::Unsupported)
    }

    /// Makes a packed key usable on every endpoint of this interface to the peer whose key it is. The bytes come from the peer:
    /// check every one. Asked where the module says [`crate::caps::INTERFACE_KEYS`], and then no endpoint is.
    ///
    /// # Errors
    /// As [`Endpoint::import_key`].
    fn import_key(&self, bytes: &[u8]) -> Result<<Self::Endpoint as Endpoint>::Key, Failure> {
        let _ = bytes;
        Err(Status::Unsupported.into())
    }

    /// Completes when everything that was posted before on any endpoint of this interface is complete at its target. Asked where the
    /// module says [`crate::caps::FLUSH_ALL`].
    ///
    /// # Errors
    /// [`Status::Again`]: ask again after progress.
    fn flush(&self, cookie: u64) -> Posted {
        let _ = cookie;
        Err(Status::Unsupported)
    }

    /// The worker has closed: tells every connected peer that this side has left in good order, hands over what was taken before,
    /// and accepts nobody any more. Endpoints, keys and lent payloads may still exist, and go afterwards; nothing is posted and
    /// nothing is polled from here on.
    fn leave(&self) {}

    /// What memory it holds.
    fn memory(&self) -> MemoryReport {
        MemoryReport::default()
    }
}

/// A put or get: local pieces, and where in the remote region.
#[derive(Clone, Copy, Debug)]
pub struct RmaOp<'a> {
    /// Local pieces: read by put, written by get.
    pub iov: &'a [Iov],
    /// Sum of their lengths.
    pub len: usize,
    /// Offset into the remote region.
    pub offset: u64,
    /// For the completion event.
    pub cookie: u64,
    /// [`crate::op_flags`].
    pub flags: u64,
}

/// A connection to one peer.
pub trait Endpoint: Sized + 'static {
    /// What it keeps about an imported remote key.
    type Key: 'static;

    /// Sends a short message; the payload is copied before the call returns.
    ///
    /// # Errors
    /// [`Status::Again`]: nothing was sent. [`Status::PeerFailed`] and others: the endpoint is finished.
    fn am_short(&self, id: u32, header: u64, payload: &[u8]) -> Posted {
        let _ = (id, header, payload);
        Err(Status::Unsupported)
    }

    /// Sends a message that `packer` writes into the transport's buffer; returns its length.
    ///
    /// # Errors
    /// As [`Endpoint::am_short`], or what the packer said.
    fn am_packed(
        &self,
        id: u32,
        header: u64,
        packer: Packer<'_>,
        most: usize,
    ) -> Result<usize, Status> {
        let _ = (id, header, packer, most);
        Err(Status::Unsupported)
    }

    /// Sends a message gathered from `iov`, whose bytes stay untouched until completion.
    ///
    /// # Errors
    /// As [`Endpoint::am_short`].
    fn am_zcopy(&self, id: u32, header: u64, iov: &[Iov], cookie: u64) -> Posted {
        let _ = (id, header, iov, cookie);
        Err(Status::Unsupported)
    }

    /// Writes remote memory.
    ///
    /// # Errors
    /// [`Status::KeyRejected`] and [`Status::OutOfRange`] belong to this operation: the endpoint lives on.
    fn put(&self, key: &Self::Key, op: &RmaOp<'_>) -> Posted {
        let _ = (key, op);
        Err(Status::Unsupported)
    }

    /// Reads remote memory.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    fn get(&self, key: &Self::Key, op: &RmaOp<'_>) -> Posted {
        let _ = (key, op);
        Err(Status::Unsupported)
    }

    /// A put behind which the target gets [`NOTIFIED`](crate::event::NOTIFIED) with `word`, once all bytes of it, and of every put
    /// that this endpoint has posted before, are there. It may be empty.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    fn put_notify(&self, key: &Self::Key, op: &RmaOp<'_>, word: u32) -> Posted {
        let _ = (key, op, word);
        Err(Status::Unsupported)
    }

    /// Where `len` bytes from `offset` on are mapped in this process, until the key is dropped. When the owner has ended its
    /// region, what is mapped is nobody's memory any more.
    ///
    /// # Errors
    /// [`Status::OutOfRange`], [`Status::KeyRejected`], or why there is no such place.
    fn key_pointer(&self, key: &Self::Key, offset: u64, len: u64) -> Result<*mut u8, Failure> {
        let _ = (key, offset, len);
        Err(Status::Unsupported.into())
    }

    /// Asks that a pending operation end soon: its completion comes as it would have, with [`Status::Canceled`] where nothing of it
    /// has happened.
    ///
    /// # Errors
    /// [`Status::Invalid`]: nothing with this cookie is pending.
    fn cancel(&self, cookie: u64) -> Result<(), Status> {
        let _ = cookie;
        Err(Status::Unsupported)
    }

    /// What this endpoint can carry, where that is less than its module can: asked behind [`Interface::connect`] or
    /// [`Endpoint::connect`].
    fn limits(&self) -> EndpointLimits {
        EndpointLimits::empty()
    }

    /// Does a remote atomic. When done at once, the value from before is returned through `result`.
    ///
    /// # Errors
    /// As [`Endpoint::put`], and [`Status::Misaligned`].
    fn atomic(&self, key: &Self::Key, op: &Atomic, result: &mut u64) -> Posted {
        let _ = (key, op, result);
        Err(Status::Unsupported)
    }

    /// Completes when everything posted before is complete at the target.
    ///
    /// # Errors
    /// The first failure of what it waited for.
    fn flush(&self, cookie: u64) -> Posted {
        let _ = cookie;
        Ok(Posting::Done)
    }

    /// Orders what was posted before ahead of what is posted after.
    ///
    /// # Errors
    /// As [`Endpoint::am_short`].
    fn fence(&self) -> Result<(), Status> {
        Ok(())
    }

    /// Makes a packed key usable on this endpoint. The bytes come from the peer: check every one.
    ///
    /// # Errors
    /// [`Status::Again`]: ask again after progress. [`Status::KeyRejected`]: malformed or not for us.
    fn import_key(&self, bytes: &[u8]) -> Result<Self::Key, Failure> {
        let _ = bytes;
        Err(Status::Unsupported.into())
    }

    /// Connect-to-endpoint modules: this endpoint's address. The peer may use it before [`Endpoint::connect`]
    /// is called here; what it sends then is kept until that call.
    fn address(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Connect-to-endpoint modules: connects to the peer's endpoint address. Both sides call it, in any
    /// order. It does not wait: data calls say [`Status::Again`] until the connection stands, and one that
    /// never does ends in [`ENDPOINT_FAILED`](crate::event::ENDPOINT_FAILED). The bytes come from the peer: check every one.
    ///
    /// # Errors
    /// Why it could not be connected.
    fn connect(&self, address: &[u8]) -> Result<(), Failure> {
        let _ = address;
        Err(Status::Unsupported.into())
    }
}

/// A connection-only module: datagrams to addresses, and no way to carry user data.
pub trait Connector: Sized + 'static {
    /// `false` only for [`Absent`].
    const PRESENT: bool = true;

    /// The bytes that let a peer reach this connector.
    fn address(&self) -> Vec<u8>;

    /// Whether that address can be reached.
    ///
    /// # Errors
    /// Why not.
    fn reachable(&self, address: &[u8]) -> Result<(), Failure>;

    /// Sends one datagram. It may be lost when the way there breaks; [`PEER_LEFT`](crate::event::PEER_LEFT) then says so.
    ///
    /// # Errors
    /// [`Status::Again`]: nothing was sent.
    fn send(&self, address: &[u8], datagram: &[u8]) -> Result<(), Status>;

    /// Progress: pushes [`DATAGRAM`](crate::event::DATAGRAM), and [`PEER_LEFT`](crate::event::PEER_LEFT) when an address
    /// cannot be reached or the way to it broke: `header` is [`crate::address_hash`] of the address given to [`Connector::send`],
    /// data the reason in words. Datagrams sent before may then be lost; sending again tries again.
    ///
    /// # Errors
    /// Only what breaks the whole connector.
    fn poll(&self, events: &mut Events<'_>) -> Result<(), Status>;

    /// Prepares to sleep, like [`Interface::arm`].
    ///
    /// # Errors
    /// [`Status::Unsupported`] without a descriptor.
    fn arm(&self) -> Result<Armed, Status> {
        Err(Status::Unsupported)
    }

    /// The descriptor to sleep on.
    fn event_fd(&self) -> Option<i32> {
        None
    }
}

/// Stands where a provider has nothing: a domain without connection-only modules says
/// `type Connector = Absent`.
#[derive(Debug)]
pub enum Absent {}

impl Interface for Absent {
    type Endpoint = Absent;
    const PRESENT: bool = false;
    fn address(&self) -> Vec<u8> {
        match *self {}
    }
    fn reachable(&self, _: &[u8]) -> Result<(), Failure> {
        match *self {}
    }
    fn connect(&self, _: &[u8], _: &[u8], _: u64) -> Result<Absent, Failure> {
        match *self {}
    }
    fn poll(&self, _: &mut Events<'_>) -> Result<(), Status> {
        match *self {}
    }
}

impl Endpoint for Absent {
    type Key = Absent;
}

impl Connector for Absent {
    const PRESENT: bool = false;
    fn address(&self) -> Vec<u8> {
        match *self {}
    }
    fn reachable(&self, _: &[u8]) -> Result<(), Failure> {
        match *self {}
    }
    fn send(&self, _: &[u8], _: &[u8]) -> Result<(), Status> {
        match *self {}
    }
    fn poll(&self, _: &mut Events<'_>) -> Result<(), Status> {
        match *self {}
    }
}

#[cfg(test)]
#[path = "provider_tests.rs"]
mod tests;
