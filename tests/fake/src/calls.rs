//! The calls that the core makes, and what the test wants done with some of them.

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
    /// The slots of the data path that may say that there is no room.
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

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is refused, and nothing happens.
    Refuse(Status),
    /// It panics.
    Panic,
    /// A put, get, atomic or flush is accepted and stays where it is until `World::release_held`.
    Hold,
    /// A put, get, atomic or flush is accepted and ends with this status; nothing is done.
    FailLater(Status),
    /// A put, get or atomic that could end later is done when the call returns.
    AtOnce,
    /// A put, get or atomic is said to be done, and nothing is.
    Lie,
    /// The calling thread stops in the call until `World::go_on`, then does what was asked.
    Stop,
    /// The calling thread waits in the call until another one has stopped, some seconds at most.
    AwaitStop,
}

/// A wish of the test's for some calls.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Calls of this slot,
    pub slot: Slot,
    /// of the lane of this name; `None`: of any,
    pub lane: Option<&'static str>,
    /// on this interface, by its place in the order of opening; `None`: on any,
    pub interface: Option<usize>,
    /// messages of this id; `None`: of any,
    pub id: Option<u32>,
    /// after so many that are let pass,
    pub skip: u64,
    /// so many of them,
    pub times: u64,
    /// end like this.
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

    /// Only on the lane of this name.
    #[must_use]
    pub fn on(self, lane: &'static str) -> Rule {
        Rule { lane: Some(lane), ..self }
    }

    /// Only on this interface.
    #[must_use]
    pub fn at(self, interface: usize) -> Rule {
        Rule { interface: Some(interface), ..self }
    }

    /// Only messages of this id.
    #[must_use]
    pub fn id(self, id: u32) -> Rule {
        Rule { id: Some(id), ..self }
    }
}

/// A call that the core made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Of which slot.
    pub slot: Slot,
    /// On which interface, by its place in the order of opening; `usize::MAX`: of a domain.
    pub interface: usize,
    /// The cookie that it came with, or the header of a message.
    pub cookie: u64,
    /// The id of a message.
    pub id: u32,
    /// Its length.
    pub len: usize,
    /// The flags of an operation, or of a registration.
    pub flags: u64,
    /// Whether it was refused, or panicked.
    pub refused: bool,
}

/// What is to be done with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Go,
    Act(Act),
}
