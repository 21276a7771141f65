//! The core's own messages: their formats, and the part of their handling that needs neither an endpoint nor a worker.

pub(crate) mod announce;
pub(crate) mod emulate;
pub(crate) mod handles;
pub(crate) mod head;
pub(crate) mod shared_copy;
pub(crate) mod torn;

/// The ids of the core's own messages; applications use the ids below.
pub(crate) mod id {
    pub(crate) const FIRST: u16 = 0xf000;
    pub(crate) const PUT: u16 = 0xf000;
    pub(crate) const GET: u16 = 0xf001;
    pub(crate) const GET_DATA: u16 = 0xf002;
    pub(crate) const ATOMIC: u16 = 0xf003;
    pub(crate) const REPLY: u16 = 0xf004;
    pub(crate) const PING: u16 = 0xf005;
    pub(crate) const ASSIST: u16 = 0xf006;
    pub(crate) const WIREUP: u16 = 0xf007;
    pub(crate) const SERVICE: u16 = 0xf008;
    pub(crate) const NOTIFY: u16 = 0xf009;
    pub(crate) const PUT_NOTIFY: u16 = 0xf00a;
    pub(crate) const ANNOUNCE: u16 = 0xf00b;
    pub(crate) const WITHDRAW: u16 = 0xf00c;
    pub(crate) const KEY: u16 = 0xf00d;
    pub(crate) const KEY_IS: u16 = 0xf00e;
    pub(crate) const EXITED: u16 = 0xf00f;
    pub(crate) const HEADED: u16 = 0xf010;
    pub(crate) const DELIVER: u16 = 0xf011;
    pub(crate) const DELIVERED: u16 = 0xf012;
    pub(crate) const ANNOUNCE_HEADED: u16 = 0xf013;
    pub(crate) const KEY_NUMBERED: u16 = 0xf014;
    pub(crate) const NAMED: u16 = 0xf020;
}

/// The sender of one of the core's own messages, and the circuit that carried the message; `None` for a message of an interface
/// without circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) peer: u32,
    pub(crate) circuit: Option<u64>,
}
