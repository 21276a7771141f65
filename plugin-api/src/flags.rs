//! The named bits and numbers of the ABI, each declared once for Rust and for the C header.

/// One named number, as the C header shows it.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The C name: `TIELINE_CAP_PUT`.
    pub c_name: &'static str,
    /// Its value.
    pub value: u64,
    /// What it means.
    pub doc: &'static str,
}

/// The lower half of flags that are passed in: who does not know one of these refuses the call
/// with `UNSUPPORTED_PARAM`. A bit of the upper half is a hint, and ignored by who does not know it.
const MUST_UNDERSTAND: u64 = 0xffff_ffff;

/// The bits of `flags` that must be understood and are not among the `known` ones.
#[must_use]
#[inline]
pub const fn not_understood(flags: u64, known: u64) -> u64 {
    flags & MUST_UNDERSTAND & !known
}

/// Declares a module of constants together with the list that the header and the reports are made from.
macro_rules! table {
    ($(#[$outer:meta])* $vis:vis mod $module:ident : $type:ty, $prefix:literal {
        $( $name:ident = $value:expr, $doc:literal; )*
    }) => {
        $(#[$outer])*
        $vis mod $module {
            $( #[doc = $doc] pub const $name: $type = $value; )*
            /// Every name of this table with its value and meaning.
            pub const ALL: &[super::Named] = &[
                $( super::Named {
                    c_name: concat!("TIELINE_", $prefix, stringify!($name)),
                    value: $name as u64,
                    doc: $doc,
                }, )*
            ];
        }
    };
}

table! {
    /// What a module can do. The core believes these bits, and conformance checks them; a few it does not use yet, as they say.
    pub mod caps: u64, "CAP_" {
        AM_SHORT = 1 << 0, "am_short: short active messages, copied before the call returns";
        AM_PACKED = 1 << 1, "am_packed: a callback packs into the transport's buffer";
        AM_ZCOPY = 1 << 2, "am_zcopy: gathered from an iov";
        PUT = 1 << 3, "put";
        GET = 1 << 4, "get";
        ATOMICS = 1 << 5, "atomics; which ones is said by the four masks of module_attr";
        REMOTE_COMPLETION = 1 << 6, "a put or atomic that has completed is visible at the target";
        PASSIVE_TARGET = 1 << 7, "put, get and atomics need nothing from the target's threads";
        PEER_FAILURE = 1 << 8, "a dead peer is reported as EVENT_ENDPOINT_FAILED or EVENT_PEER_LEFT";
        EVENT_FD = 1 << 9, "event_fd and arm: the interface can be waited for";
        NEEDS_POLL = 1 << 10, "poll must be called for progress";
        LOCAL_ONLY = 1 << 11, "reaches processes under the same kernel only";
        OWN_MEMORY_ONLY = 1 << 12, "put, get and atomics reach only memory from this domain's own alloc";
        CHECKS_KEYS = 1 << 13, "the accessing path refuses forged, foreign and revoked keys";
        LENDS_BUFFERS = 1 << 14, "received payloads come with EVENT_FLAG_LENT: they stay valid until release";
        CONNECTED_SEND = 1 << 15, "messages may be posted as soon as connect has returned. The core does not need to know: it posts, and waits where the answer is AGAIN";
        SYNCHRONOUS = 1 << 16, "put, get and atomics are complete when the call returns: never PENDING";
        SLOW_POLL = 1 << 17, "poll asks the kernel: the core calls it less often while nothing comes";
        DEVICE_ATOMICS = 1 << 18, "atomics are the device's: they are not atomic towards the processor's, nor towards another device's";
        TAKES_REGIONS = 1 << 19, "wants iov.region: which registration each piece lies in";
        KEY_POINTER = 1 << 20, "key_pointer: memory of a peer can be mapped, for loads and stores";
        PUT_NOTIFY = 1 << 21, "put_notify: a put that tells the target; how many bits it carries is said by notify_bits";
        NO_EVENT = 1 << 22, "knows OP_NO_EVENT, which the core does not post yet";
        INTERFACE_KEYS = 1 << 23, "import_key of the interface: one key serves all its endpoints to the peer that it came from";
        ANY_THREAD = 1 << 24, "the interface with its endpoints and keys may be used by another thread than the one that opened it: calls come from one thread at a time, and each sees what those before it have done";
        FLUSH_ALL = 1 << 25, "flush of the interface";
        CANCEL = 1 << 26, "cancel";
        DIES_WITH_OWNER = 1 << 27, "an access to memory whose owner has died, or has taken it away, may end this process by a signal: an operator has asked for that";
    }
}

table! {
    /// What a memory domain can do with memory.
    pub mod memory_caps: u64, "MEMORY_CAP_" {
        ALLOC = 1 << 0, "alloc: the domain provides memory of its own";
        REGISTER = 1 << 1, "register: any memory of the process";
    }
}

table! {
    /// Whose memory it is: what a provider does not know it refuses with UNSUPPORTED. A device's own addresses would be others, of a
    /// later minor; memory of devices that has a DMA buffer is registered by that today, with REGISTER_DMABUF.
    pub mod memory_kind: u32, "MEMORY_KIND_" {
        HOST = 0, "the processor's, or a DMA buffer's";
    }
}

table! {
    /// Flags of a registration.
    pub mod register_flags: u64, "REGISTER_" {
        DMABUF = 1 << 0, "the memory is that of the descriptor dmabuf, from dmabuf_offset on";
        RELAXED_ORDERING = 1 << 32, "a hint: writes of peers to this region may pass each other on the bus; what says that they are there (a completion, a notification, a message) comes behind their bytes all the same";
    }
}

table! {
    /// What a module is for.
    pub mod role: u32, "ROLE_" {
        DATA = 1, "moves user data";
        CONNECTION_ONLY = 2, "only forms connections: it is opened through the connector table, which has no data slots";
    }
}

table! {
    /// How a data-path module connects.
    pub mod connects: u32, "CONNECTS_" {
        TO_INTERFACE = 1 << 0, "the peer's interface address is enough";
        TO_ENDPOINT = 1 << 1, "both sides create an endpoint and exchange endpoint addresses first";
    }
}

table! {
    /// The kinds of event that `poll` writes.
    pub mod event: u32, "EVENT_" {
        MESSAGE = 1, "an active message: id, header, data, length, peer";
        COMPLETION = 2, "a pending operation ended: cookie, status, and the fetched value in header; where it failed, data may say why in words, and header is the device's own number of the reason, or 0";
        PEER_ARRIVED = 3, "modules that connect to an interface: first contact from a peer: data is its identity, peer the number that its messages will carry";
        PEER_LEFT = 4, "that peer's connection to us ended, behind everything that came over it: status 0, the peer closed it in good order; else data is the reason in words";
        ENDPOINT_FAILED = 5, "an endpoint of ours failed: cookie is the endpoint's, data the reason in words; status CLOSED: the peer closed it in good order";
        DATAGRAM = 6, "connectors only: a datagram arrived: data, length; header is the address_hash of the address at which its sender is reached, as the connection says, 0: not known";
        NOTIFIED = 7, "a put_notify of that peer is in our memory: header is its word, behind every byte that it has put";
        RETURNED = 8, "since 1.1: a message of an endpoint of ours that the peer has not taken comes back: cookie is the endpoint's, then id, header, data, length; in order, and before the ENDPOINT_FAILED that says UNTAKEN";
    }
}

table! {
    /// Bits of `event.flags`.
    pub mod event_flags: u32, "EVENT_FLAG_" {
        LENT = 1 << 0, "the payload stays valid until release is called with the event's cookie, once for every such event";
        UNTAKEN = 1 << 1, "since 1.1, of ENDPOINT_FAILED: the peer refused the endpoint at first contact and took nothing; each message that was posted to it came back as RETURNED";
    }
}

table! {
    /// Atomic operations. A mask of module_attr has bit `1 << op` for each one that is there.
    pub mod atomic_op: u32, "ATOMIC_" {
        ADD = 0, "addition, wrapping";
        AND = 1, "bitwise and";
        OR = 2, "bitwise or";
        XOR = 3, "bitwise exclusive or";
        SWAP = 4, "exchange";
        COMPARE_SWAP = 5, "exchange if equal to compare";
        MIN = 6, "unsigned minimum";
        MAX = 7, "unsigned maximum";
    }
}

table! {
    /// Rights of a registered region.
    pub mod access: u64, "ACCESS_" {
        REMOTE_READ = 1 << 0, "peers may get";
        REMOTE_WRITE = 1 << 1, "peers may put";
        REMOTE_ATOMIC = 1 << 2, "peers may do atomics";
    }
}

table! {
    /// Flags of a put, get or atomic.
    pub mod op_flags: u64, "OP_" {
        FETCH = 1 << 0, "atomics: return the value from before";
        REMOTE_COMPLETION = 1 << 1, "complete only when visible at the target";
        NO_EVENT = 1 << 2, "makes no event when it succeeds: it has ended when a later put or get of that endpoint without this flag, or a flush, has ended; a failure makes its event. Only where the module says CAP_NO_EVENT";
        MORE = 1 << 32, "a hint: another operation of this endpoint follows at once, so the device need not be told yet; it is told by the next data call without this hint, whatever that returns, or by the next poll";
    }
}

table! {
    /// The flags that each data call knows today: what a call is given beside them is refused.
    pub mod known_flags: u64, "FLAGS_OF_" {
        RMA = super::op_flags::REMOTE_COMPLETION | super::op_flags::NO_EVENT | super::op_flags::MORE, "put, get and put_notify";
        ATOMIC = super::op_flags::FETCH | super::op_flags::REMOTE_COMPLETION | super::op_flags::NO_EVENT | super::op_flags::MORE, "atomic";
    }
}

table! {
    /// Levels of the host's log service.
    pub mod log_level: u32, "LOG_" {
        ERROR = 1, "something asked for cannot be done";
        WARN = 2, "something is not as it should be";
        INFO = 3, "a choice that was made";
        DEBUG = 4, "for the author of the provider";
    }
}

table! {
    /// What the value of a configuration variable may be.
    pub mod config_kind: u32, "CONFIG_" {
        SIZE = 1, "bytes: 4096, 64k, 2GiB, inf; all units are powers of 1024";
        COUNT = 2, "a whole number, or inf";
        DURATION = 3, "a time with its unit: 10ms, 1s, inf; as a number nanoseconds";
        BOOL = 4, "on, off and their usual spellings; as a number 1 and 0";
        TEXT = 5, "any text, or one of the variable's words";
        LIST = 6, "names with commas between them";
    }
}

table! {
    /// What a provider reports without having been asked. A later minor may have more.
    pub mod async_kind: u32, "ASYNC_" {
        MESSAGE = 0, "words, for the log; from an entry function that fails: why";
        PORT_DOWN = 1, "a port or an interface of the network has lost its link: what goes that way waits or fails";
        PORT_UP = 2, "it has its link again";
        DEVICE_GONE = 3, "a device was removed or has failed for good: everything opened on it has ended";
    }
}

table! {
    /// Flags in the ELF note.
    pub mod note_flags: u16, "NOTE_" {
        UNWIND = 1 << 0, "built with unwinding panics: a panic is caught on the provider's side";
        RUST = 1 << 1, "built from the Rust traits: layouts can be compared";
    }
}

table! {
    /// Classes of operation that a module states its cost for: indices into `module_attr.cost`.
    pub mod cost_class: usize, "COST_" {
        SMALL_MESSAGE = 0, "a message of 8 bytes";
        BULK_MESSAGE = 1, "a message of 8 KiB";
        SMALL_RMA = 2, "a put or get of 8 bytes";
        BULK_RMA = 3, "a put or get of 256 KiB, registration included";
        ATOMIC = 4, "a fetching atomic";
        COUNT = 8, "how many there is room for; those that have no name yet are zero";
    }
}

/// Every table, in the order of the header.
#[must_use]
pub fn tables() -> Vec<(&'static str, &'static [Named])> {
    vec![
        ("What a module can do (module_attr.caps)", caps::ALL),
        ("What a memory domain can do (domain_attr.caps)", memory_caps::ALL),
        ("Kinds of memory (alloc_params.kind, register_params.kind)", memory_kind::ALL),
        ("Flags of a registration (register_params.flags)", register_flags::ALL),
        ("What a module is for (module_attr.role)", role::ALL),
        ("How a data-path module connects (module_attr.connects)", connects::ALL),
        ("Kinds of event", event::ALL),
        ("Flags of an event", event_flags::ALL),
        ("Atomic operations", atomic_op::ALL),
        ("Access rights of a region", access::ALL),
        ("Flags of an operation", op_flags::ALL),
        ("The flags that a data call knows", known_flags::ALL),
        ("Log levels", log_level::ALL),
        ("Kinds of configuration variable (config_var.kind)", config_kind::ALL),
        ("Kinds of asynchronous event (async_event.kind)", async_kind::ALL),
        ("Flags of the ELF note", note_flags::ALL),
        ("Cost classes: indices into module_attr.cost", cost_class::ALL),
    ]
}

// The record has room for that many; a constant of this file does not reach the header's generator.
const _: () = assert!(cost_class::COUNT == 8);
