//! Interfaces and connectors: opening, polling, sleeping, and their events.

use super::*;

/// The parameters for opening an interface or a connector.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct InterfaceParams {
    /// The size of this record.
    pub size: usize,
    /// The module's name within the domain.
    pub module: *const u8,
    /// The length of `module`, in bytes.
    pub module_len: usize,
    /// The worker's number, which is different for every worker of every context, on all hosts.
    pub worker_id: [u8; 16],
    /// The flags; none are defined yet.
    pub flags: u64,
}

/// The parameters for making an endpoint.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct EndpointParams {
    /// The size of this record.
    pub size: usize,
    /// The peer's interface address for connect-to-interface modules; null for connect-to-endpoint modules.
    pub address: *const u8,
    /// The length of `address`, in bytes.
    pub address_len: usize,
    /// The local identity, which the peer gets in EVENT_PEER_ARRIVED; empty for connect-to-endpoint modules.
    pub identity: *const u8,
    /// The length of `identity`, in bytes.
    pub identity_len: usize,
    /// The endpoint's cookie, which EVENT_ENDPOINT_FAILED and EVENT_RETURNED carry.
    pub cookie: u64,
    /// The flags; none are defined yet.
    pub flags: u64,
}

/// An event that `poll` writes: 64 bytes, frozen. The meaningful fields depend on `kind`.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The kind of event, `TIELINE_EVENT_*`.
    pub kind: u32,
    /// The message id.
    pub id: u32,
    /// The status: 0 or negative.
    pub status: i32,
    /// The flags, `TIELINE_EVENT_FLAG_*`.
    pub flags: u32,
    /// The sender's number on this interface; for connect-to-endpoint modules the endpoint's cookie.
    pub peer: u64,
    /// The message header, the fetched value, the word of a notification, or the hash of a connector's address. In a failed
    /// completion: the device's own number of the reason, or 0.
    pub header: u64,
    /// The payload, identity or words, valid until the next poll or close of this interface; with the flag LENT until `release`.
    pub data: *const u8,
    /// The length of `data`, in bytes.
    pub len: usize,
    /// The operation's or endpoint's cookie, or the number that releases a lent buffer.
    pub cookie: u64,
    /// Zero, reserved.
    pub reserved: u64,
}

/// The functions of an interface. One thread at a time may call them.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct InterfaceOps {
    /// The size of this table as the provider compiled it.
    pub size: usize,
    /// Makes progress: writes up to `capacity` events and returns their number, or a negative status. This call releases the data
    /// of the previous call's events, except lent payloads.
    pub poll: Option<
        unsafe extern "C" fn(
            interface: *mut InterfaceHandle,
            events: *mut Event,
            capacity: u32,
        ) -> i64,
    >,
    /// Closes the interface. Its endpoints were closed before, unless the provider has failed.
    pub close: Option<unsafe extern "C" fn(interface: *mut InterfaceHandle)>,
    /// Writes the interface's address and returns its length.
    pub address: Option<
        unsafe extern "C" fn(
            interface: *mut InterfaceHandle,
            buffer: *mut u8,
            capacity: usize,
        ) -> i64,
    >,
    /// Checks whether a peer with this address can be reached: 0, or a negative status with the reason in `last_error`.
    pub reachable: Option<
        unsafe extern "C" fn(
            interface: *mut InterfaceHandle,
            address: *const u8,
            address_len: usize,
        ) -> i32,
    >,
    /// Makes an endpoint. Connect-to-interface modules: data calls return AGAIN until the endpoint is usable. Connect-to-endpoint
    /// modules: there is no address and no identity, and `peer` of every message that arrives on the endpoint is the endpoint's
    /// cookie.
    pub connect: Option<
        unsafe extern "C" fn(
            interface: *mut InterfaceHandle,
            params: *const EndpointParams,
            out: *mut *mut EndpointHandle,
        ) -> i32,
    >,
    /// Prepares to sleep. 0: `event_fd` becomes readable on the next event. 1: there is an event to poll. The core may call this
    /// function at any time, also after a poll that returned events.
    pub arm: Option<unsafe extern "C" fn(interface: *mut InterfaceHandle) -> i32>,
    /// Returns a descriptor for poll(2) or epoll (level-triggered), or a negative status. The descriptor is the same for the
    /// interface's life, and belongs to the provider. The core neither reads nor closes it.
    pub event_fd: Option<unsafe extern "C" fn(interface: *mut InterfaceHandle) -> i32>,
    /// Returns a lent payload, by the cookie of its event.
    pub release: Option<unsafe extern "C" fn(interface: *mut InterfaceHandle, cookie: u64)>,
    /// Writes the memory of this process that the interface and its endpoints use.
    pub memory:
        Option<unsafe extern "C" fn(interface: *mut InterfaceHandle, out: *mut MemoryUse) -> i32>,
    /// Disconnects the peer whose messages carry this number. No message of the peer arrives any more, the peer's endpoint fails,
    /// and a later endpoint of the same peer is a new connection. The core calls this function if it cannot answer a peer that
    /// would otherwise wait without end. For modules that connect to an endpoint, the core closes the endpoint instead.
    pub hang_up: Option<unsafe extern "C" fn(interface: *mut InterfaceHandle, peer: u64) -> i32>,
    /// CAP_INTERFACE_KEYS: makes a packed key usable on every endpoint of this interface that leads to the owner of the key.
    /// The core then calls no endpoint's `import_key`. AGAIN: call again after progress.
    pub import_key: Option<
        unsafe extern "C" fn(
            interface: *mut InterfaceHandle,
            params: *const ImportParams,
            out: *mut *mut KeyHandle,
        ) -> i32,
    >,
    /// Releases a key that this interface has imported.
    pub drop_key:
        Option<unsafe extern "C" fn(interface: *mut InterfaceHandle, key: *mut KeyHandle)>,
    /// CAP_FLUSH_ALL: completes when everything posted before on any endpoint of this interface is complete at its target, like
    /// `flush` of every endpoint. A failed endpoint does not fail this flush: the endpoint's own events report the failure. The
    /// core does not call the slot yet.
    pub flush: Option<unsafe extern "C" fn(interface: *mut InterfaceHandle, cookie: u64) -> i32>,
    /// Since minor 1. Ends the interface's service, because the worker has closed or the process exits. Notifies every connected
    /// peer that this side has left in good order, delivers what it accepted before, as `close` does, and accepts no new peer.
    /// Endpoints, keys and lent payloads may still exist and are released afterwards. Nothing is posted or polled after this call.
    /// Without the slot, peers are notified by `close`.
    pub leave: Option<unsafe extern "C" fn(interface: *mut InterfaceHandle)>,
    /// Since minor 1. Returns the interface's list of watch words, or null. The list stays at its address until `close`. While
    /// every word has the value that the list states, a poll would return no event. The core may compare the words between two
    /// calls instead of polling, but it polls in at least one of 64 calls of its own progress. It calls this slot once,
    /// after it has opened the interface. Every call on the interface or on one of its endpoints may change the list.
    pub watch: Option<unsafe extern "C" fn(interface: *mut InterfaceHandle) -> *const WatchList>,
}

/// A word that the core compares instead of polling: 16 bytes, frozen.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug)]
pub struct WatchWord {
    /// The address of the word, aligned to 8 bytes. The word stays readable until the next call on the interface.
    pub at: *const u64,
    /// The value of the word as long as there is no event.
    pub seen: u64,
}

/// The list of an interface's watch words. Only the provider writes it, and only during a call on the interface or on one of its
/// endpoints.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug)]
pub struct WatchList {
    /// The size of this record as the provider compiled it.
    pub size: usize,
    /// The number of words. 0: the core has to poll. A list with more words than there is room for counts as empty.
    pub count: u64,
    /// The words.
    pub words: [WatchWord; 8],
}

/// The memory that an interface uses.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryUse {
    /// The size of this record, set by the caller.
    pub size: usize,
    /// The number of bytes that do not depend on the number of peers.
    pub base_bytes: u64,
    /// The number of bytes for all peers together.
    pub peer_bytes: u64,
    /// The number of peers that these bytes are for.
    pub peers: u64,
    /// The number of bytes of message buffers that have been committed.
    pub buffer_bytes: u64,
}

/// The functions of a connector, which carries datagrams that form connections, and nothing else. One thread at a time may call
/// them.
#[repr(C)]
#[cfg_attr(test, derive(StableAbi))]
#[derive(Clone, Copy)]
pub struct ConnectorOps {
    /// The size of this table as the provider compiled it.
    pub size: usize,
    /// Makes progress: writes EVENT_DATAGRAM, and EVENT_PEER_LEFT if an address passed to `send` cannot be reached or the
    /// connection to it broke. The `header` of EVENT_PEER_LEFT is the address's FNV-1a hash (64 bit), and its data the reason in
    /// words. Datagrams sent before may be lost; a new `send` starts a new attempt. See `InterfaceOps::poll`.
    pub poll: Option<
        unsafe extern "C" fn(
            connector: *mut ConnectorHandle,
            events: *mut Event,
            capacity: u32,
        ) -> i64,
    >,
    /// Closes the connector.
    pub close: Option<unsafe extern "C" fn(connector: *mut ConnectorHandle)>,
    /// Writes the connector's address and returns its length.
    pub address: Option<
        unsafe extern "C" fn(
            connector: *mut ConnectorHandle,
            buffer: *mut u8,
            capacity: usize,
        ) -> i64,
    >,
    /// Checks whether a connector with that address can be reached, like `InterfaceOps::reachable`.
    pub reachable: Option<
        unsafe extern "C" fn(
            connector: *mut ConnectorHandle,
            address: *const u8,
            address_len: usize,
        ) -> i32,
    >,
    /// Sends one datagram. Returns 0, AGAIN or another negative status.
    pub send: Option<
        unsafe extern "C" fn(
            connector: *mut ConnectorHandle,
            address: *const u8,
            address_len: usize,
            datagram: *const u8,
            len: usize,
        ) -> i32,
    >,
    /// Prepares to sleep, like `InterfaceOps::arm`.
    pub arm: Option<unsafe extern "C" fn(connector: *mut ConnectorHandle) -> i32>,
    /// Returns a descriptor to wait on, or a negative status.
    pub event_fd: Option<unsafe extern "C" fn(connector: *mut ConnectorHandle) -> i32>,
}
