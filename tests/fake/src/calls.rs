//! The calls that the core makes, and rules that change their results.

use tieline_plugin_api::Status;

/// A slot of the provider's tables, which a rule can select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// The slot `am_short`.
    Short,
    /// The slot `am_packed`.
    Packed,
    /// The slot `am_zcopy`.
    Zcopy,
    /// The slot `put`.
    Put,
    /// The slot `put_notify`.
    PutNotify,
    /// The slot `get`.
    Get,
    /// The slot `atomic`.
    Atomic,
    /// The slot `flush`.
    Flush,
    /// The slot `fence`.
    Fence,
    /// The slot `connect` of an interface.
    Connect,
    /// The slot `import_key`.
    ImportKey,
    /// The slot `import_key` of an interface.
    ImportShared,
    /// The slot `drop_key` of an interface.
    DropShared,
    /// The slot `key_pointer`.
    Pointer,
    /// The slot `cancel`.
    Cancel,
    /// The slot `limits`.
    Limits,
    /// The slot `flush` of an interface.
    FlushAll,
    /// The slot `poll`.
    Poll,
    /// The slot `reachable`.
    Reachable,
    /// The slot `address` of an interface.
    Address,
    /// The slot `register`.
    Register,
    /// The slot `deregister`.
    Deregister,
    /// The slot `pack_key`.
    PackKey,
    /// The slot `release`.
    Release,
    /// The slot `arm`.
    Arm,
    /// The slot `connect` of an endpoint.
    Bind,
    /// The slot `event_fd`.
    EventFd,
    /// The slot `memory`.
    Memory,
    /// The slot `revoke`.
    Revoke,
    /// The slot `hang_up`.
    HangUp,
    /// The slot `drop_key`.
    DropKey,
    /// The slot `close` of an endpoint.
    CloseEndpoint,
    /// The slot `open_interface`.
    OpenInterface,
    /// The slot `close` of an interface.
    CloseInterface,
    /// The slot `open_domain`.
    OpenDomain,
    /// The slot `close` of a domain.
    CloseDomain,
    /// The slot `open_connector`.
    OpenConnector,
    /// The slot `send` of a connector.
    Datagram,
    /// The slot `poll` of a connector.
    Collect,
    /// The slot `arm` of a connector.
    ArmConnector,
    /// The slot `close` of a connector.
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
    /// The call returns this status and has no other effect.
    Refuse(Status),
    /// The call panics.
    Panic,
    /// A put, get, atomic or flush is accepted and held until `World::release_held`. A gathered message is sent, and its completion
    /// is held.
    Hold,
    /// A put, get, atomic, flush or gathered message is accepted and completes with this status, without any effect.
    FailLater(Status),
    /// A put, get, atomic or flush that waits for no earlier operation completes inline.
    AtOnce,
    /// A put, get, atomic or flush completes with success, without any effect.
    Lie,
    /// The thread that makes the call stops in it until `World::go_on`, then carries out the operation.
    Stop,
    /// The calling thread waits in the call until another thread has stopped, for a few seconds at most.
    AwaitStop,
}

/// A rule by which the test changes the result of some calls.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The slot whose calls the rule changes.
    pub slot: Slot,
    /// The name of the lane; `None` for any lane.
    pub lane: Option<&'static str>,
    /// The interface, by its position in the order of opening; `None` for any interface.
    pub interface: Option<usize>,
    /// The message id; `None` for any id.
    pub id: Option<u32>,
    /// The number of matching calls that pass before the rule applies.
    pub skip: u64,
    /// The number of calls to which the rule applies.
    pub times: u64,
    /// The result of these calls.
    pub act: Act,
}

impl Rule {
    /// Makes a rule for every call of a slot.
    #[must_use]
    pub fn every(slot: Slot, act: Act) -> Rule {
        Rule { slot, lane: None, interface: None, id: None, skip: 0, times: u64::MAX, act }
    }

    /// Makes a rule for the next call of a slot.
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
    /// The slot that was called.
    pub slot: Slot,
    /// The interface, by its position in the order of opening; `usize::MAX` for a call of a domain.
    pub interface: usize,
    /// The cookie of the operation, or the header of a message.
    pub cookie: u64,
    /// The message id of the call.
    pub id: u32,
    /// The length of the operation or message.
    pub len: usize,
    /// The flags of an operation, or of a registration.
    pub flags: u64,
    /// Whether the call was refused, or panicked.
    pub refused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Go,
    Act(Act),
}
