//! The calls that the core makes, and the rules by which a test changes their results.

use tieline_plugin_api::Status;

/// A slot of the provider's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// `am_short`
    Short,
    /// `am_packed`
    Packed,
    /// `am_zcopy`
    Zcopy,
    /// `put`
    Put,
    /// `put_notify`
    PutNotify,
    /// `get`
    Get,
    /// `atomic`
    Atomic,
    /// `flush`
    Flush,
    /// `fence`
    Fence,
    /// `connect` of an interface
    Connect,
    /// `import_key`
    ImportKey,
    /// `import_key` of an interface
    ImportShared,
    /// `drop_key` of an interface
    DropShared,
    /// `key_pointer`
    Pointer,
    /// `cancel`
    Cancel,
    /// `limits`
    Limits,
    /// `flush` of an interface
    FlushAll,
    /// `poll`
    Poll,
    /// `reachable`
    Reachable,
    /// `address` of an interface
    Address,
    /// `register`
    Register,
    /// `deregister`
    Deregister,
    /// `pack_key`
    PackKey,
    /// `release`
    Release,
    /// `arm`
    Arm,
    /// `connect` of an endpoint
    Bind,
    /// `event_fd`
    EventFd,
    /// `memory`
    Memory,
    /// `revoke`
    Revoke,
    /// `hang_up`
    HangUp,
    /// `drop_key`
    DropKey,
    /// `close` of an endpoint
    CloseEndpoint,
    /// `open_interface`
    OpenInterface,
    /// `close` of an interface
    CloseInterface,
    /// `open_domain`
    OpenDomain,
    /// `close` of a domain
    CloseDomain,
    /// `open_connector`
    OpenConnector,
    /// `send` of a connector
    Datagram,
    /// `poll` of a connector
    Collect,
    /// `arm` of a connector
    ArmConnector,
    /// `close` of a connector
    CloseConnector,
}

impl Slot {
    /// The slots of the data path that may return `AGAIN`.
    pub const POSTING: [Slot; 13] = [
        Slot::Short,
        Slot::Packed,
        Slot::Zcopy,
        Slot::Put,
        Slot::PutNotify,
        Slot::Get,
        Slot::Atomic,
        Slot::Flush,
        Slot::Fence,
        Slot::Connect,
        Slot::ImportKey,
        Slot::ImportShared,
        Slot::FlushAll,
    ];
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The call returns this status and has no effect.
    Refuse(Status),
    /// It panics.
    Panic,
    /// A put, get, atomic or flush is accepted and held until `World::release_held`.
    Hold,
    /// A put, get, atomic or flush is accepted and completes with this status, without any effect.
    FailLater(Status),
    /// A put, get or atomic that could complete later completes inline.
    AtOnce,
    /// A put, get or atomic completes with success, without any effect.
    Lie,
    /// The calling thread stops in the call until `World::go_on`, then carries out the operation.
    Stop,
    /// The calling thread waits in the call until another thread has stopped, some seconds at most.
    AwaitStop,
}

/// A rule by which the test changes the result of some calls.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The slot.
    pub slot: Slot,
    /// The name of the lane; `None`: any lane.
    pub lane: Option<&'static str>,
    /// The interface, by its place in the order of opening; `None`: any interface.
    pub interface: Option<usize>,
    /// The message id; `None`: any id.
    pub id: Option<u32>,
    /// The number of matching calls that pass before the rule applies.
    pub skip: u64,
    /// The number of calls that the rule applies to.
    pub times: u64,
    /// The result of these calls.
    pub act: Act,
}

impl Rule {
    /// Every call of a slot.
    #[must_use]
    pub fn every(slot: Slot, act: Act) -> Rule {
        Rule { slot, lane: None, interface: None, id: None, skip: 0, times: u64::MAX, act }
    }

    /// The next call of a slot.
    #[must_use]
    pub fn next(slot: Slot, act: Act) -> Rule {
        Rule { times: 1, ..Rule::every(slot, act) }
    }

    /// Restricts the rule to the lane of this name.
    #[must_use]
    pub fn on(self, lane: &'static str) -> Rule {
        Rule { lane: Some(lane), ..self }
    }

    /// Restricts the rule to this interface.
    #[must_use]
    pub fn at(self, interface: usize) -> Rule {
        Rule { interface: Some(interface), ..self }
    }

    /// Restricts the rule to messages of this id.
    #[must_use]
    pub fn id(self, id: u32) -> Rule {
        Rule { id: Some(id), ..self }
    }
}

/// A record of one call of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The slot.
    pub slot: Slot,
    /// The interface, by its place in the order of opening; `usize::MAX`: a call of a domain.
    pub interface: usize,
    /// The cookie of the operation, or the header of a message.
    pub cookie: u64,
    /// The message id.
    pub id: u32,
    /// The length of the operation or message.
    pub len: usize,
    /// The flags of an operation, or of a registration.
    pub flags: u64,
    /// Whether the call was refused, or panicked.
    pub refused: bool,
}

/// The decision about one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Go,
    Act(Act),
}
