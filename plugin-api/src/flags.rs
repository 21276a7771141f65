//! The named bits and numbers of the ABI, each declared once for Rust and for the C header.

/// One named number, as the C header shows it.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name in C: `TIELINE_CAP_PUT`.
    pub c_name: &'static str,
    /// The value of the number.
    pub value: u64,
    /// The meaning of the number.
    pub doc: &'static str,
}

/// The lower half of the flags of a call. A receiver that does not know one of these bits refuses the call with
/// `UNSUPPORTED_PARAM`. A bit of the upper half is a hint, which a receiver ignores if it does not know the bit.
const MUST_UNDERSTAND: u64 = 0xffff_ffff;

/// Returns the mandatory bits of `flags` that are not among the `known` ones.
#[must_use]
#[inline]
pub const fn not_understood(flags: u64, known: u64) -> u64 {
    flags & MUST_UNDERSTAND & !known
}

/// Declares a module of constants, and the list from which the header and the reports are generated.
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
    /// Capabilities of a module. docs/abi.md lists those that the core does not use yet.
    pub mod caps: u64, "CAP_" {
        AM_SHORT = 1 << 0, "am_short: short active messages, copied before the call returns";
        AM_PACKED = 1 << 1, "am_packed: a callback packs into the transport's buffer";
        AM_ZCOPY = 1 << 2, "am_zcopy: gathered from an iov";
        PUT = 1 << 3, "put";
        GET = 1 << 4, "get";
        ATOMICS = 1 << 5, "atomics; the four masks of module_attr list the operations";
        REMOTE_COMPLETION = 1 << 6, "a put or atomic with OP_REMOTE_COMPLETION that has completed is visible at the target";
        PASSIVE_TARGET = 1 << 7, "put, get and atomics complete without the target's threads";
        PEER_FAILURE = 1 << 8, "a dead peer is reported as EVENT_ENDPOINT_FAILED or EVENT_PEER_LEFT";
        EVENT_FD = 1 << 9, "event_fd and arm: a worker can sleep until the interface has an event";
        NEEDS_POLL = 1 << 10, "poll must be called for progress";
        LOCAL_ONLY = 1 << 11, "reaches only processes under the same kernel";
        OWN_MEMORY_ONLY = 1 << 12, "put, get and atomics reach only memory from this domain's own alloc";
        CHECKS_KEYS = 1 << 13, "the accessing path refuses forged, foreign and revoked keys";
        LENDS_BUFFERS = 1 << 14, "received payloads come with EVENT_FLAG_LENT: they stay valid until release";
        CONNECTED_SEND = 1 << 15, "messages may be posted as soon as connect has returned. The core does not depend on it: it posts, and waits if the result is AGAIN";
        SYNCHRONOUS = 1 << 16, "put, get and atomics are complete when the call returns: never PENDING";
        SLOW_POLL = 1 << 17, "poll makes a system call: the core calls it less often while it returns no events";
        DEVICE_ATOMICS = 1 << 18, "the device executes atomics: they are not atomic towards the processor's, nor towards another device's";
        TAKES_REGIONS = 1 << 19, "needs iov.region: the registration that each piece lies in";
        KEY_POINTER = 1 << 20, "key_pointer: memory of a peer can be mapped for loads and stores";
        PUT_NOTIFY = 1 << 21, "put_notify: a put that notifies the target; notify_bits is the number of bits that it carries";
        NO_EVENT = 1 << 22, "supports OP_NO_EVENT, which the core does not post yet";
        INTERFACE_KEYS = 1 << 23, "import_key of the interface: one key serves all its endpoints to the owner of the key";
        ANY_THREAD = 1 << 24, "a thread other than the opening one may use the interface with its endpoints and keys: calls come from one thread at a time, and each sees the effects of those before it";
        FLUSH_ALL = 1 << 25, "flush of the interface, which the core does not call yet";
        CANCEL = 1 << 26, "cancel";
        DIES_WITH_OWNER = 1 << 27, "an access to memory whose owner has died, or has unmapped it, may end this process by a signal: an operator has enabled that";
        RMA_LIST = 1 << 28, "since 1.1: rma_list, for the operations among PUT and GET that the module has";
    }
}

table! {
    /// Memory capabilities of a domain.
    pub mod memory_caps: u64, "MEMORY_CAP_" {
        ALLOC = 1 << 0, "alloc: the domain provides memory of its own";
        REGISTER = 1 << 1, "register: any memory of the process";
        KEYS_ADD_NO_RIGHT = 1 << 2, "since 1.1: a process that lacks a key of this domain may do the same to the memory by the system's rules, or the key has no effect for it. The core may keep a registration between two messages of one peer";
        REGISTER_PARTS = 1 << 3, "since 1.1: register, only for ranges of this domain's own alloc, and at least for reading; UNSUPPORTED for other memory and other rights";
    }
}

table! {
    /// The kind of memory. A provider refuses a kind that it does not know with UNSUPPORTED. A device's own addresses would be
    /// further kinds, of a later minor. Device memory that has a DMA buffer is registered by that buffer, with REGISTER_DMABUF.
    pub mod memory_kind: u32, "MEMORY_KIND_" {
        HOST = 0, "memory of the host, or of a DMA buffer";
    }
}

table! {
    /// Flags of a registration.
    pub mod register_flags: u64, "REGISTER_" {
        DMABUF = 1 << 0, "the memory is that of the descriptor dmabuf, starting at dmabuf_offset";
        RELAXED_ORDERING = 1 << 32, "a hint: writes of peers to this region may pass each other on the bus; a completion, a notification or a message that reports them still comes behind their bytes";
    }
}

table! {
    /// The purpose of a module.
    pub mod role: u32, "ROLE_" {
        DATA = 1, "moves user data";
        CONNECTION_ONLY = 2, "only forms connections: it is opened through the connector table, which has no data slots";
    }
}

table! {
    /// The target to which a data-path module connects.
    pub mod connects: u32, "CONNECTS_" {
        TO_INTERFACE = 1 << 0, "the peer's interface address is sufficient";
        TO_ENDPOINT = 1 << 1, "both sides create an endpoint and exchange endpoint addresses first";
    }
}

table! {
    /// The kinds of event that `poll` writes.
    pub mod event: u32, "EVENT_" {
        MESSAGE = 1, "an active message: id, header, data, length, peer";
        COMPLETION = 2, "a pending operation ended: cookie, status, and the fetched value in header; if it failed, data may have the reason in words, and header is the device's own number of the reason, or 0";
        PEER_ARRIVED = 3, "modules that connect to an interface, first contact from a peer: data is its identity, peer the number that its messages will carry";
        PEER_LEFT = 4, "that peer's connection to this interface ended, after all data of it was delivered; status 0: the peer closed it in good order; else data is the reason in words";
        ENDPOINT_FAILED = 5, "a local endpoint failed: cookie is the endpoint's, data the reason in words; status CLOSED: the peer closed it in good order";
        DATAGRAM = 6, "connectors only, a datagram arrived: data, length; header is the address_hash of the address at which its sender is reached, as stated by the connection; 0: unknown";
        NOTIFIED = 7, "a put_notify of that peer is in local memory: header is its word; every byte that its endpoint has put so far is there";
        RETURNED = 8, "since 1.1: a message of a local endpoint that the peer has not accepted comes back: cookie is the endpoint's, then id, header, data, length; in order, and before the ENDPOINT_FAILED with UNTAKEN";
    }
}

table! {
    /// The bits of `event.flags`.
    pub mod event_flags: u32, "EVENT_FLAG_" {
        LENT = 1 << 0, "the payload stays valid until release is called with the event's cookie, once for every such event";
        UNTAKEN = 1 << 1, "since 1.1, for ENDPOINT_FAILED: the peer refused the endpoint at first contact and accepted nothing; each message that was posted to it came back as RETURNED";
    }
}

table! {
    /// Atomic operations. A mask of module_attr has bit `1 << op` for each supported operation.
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
        NO_EVENT = 1 << 2, "no event on success: the operation has ended when a later put or get of that endpoint without this flag, or a flush, has ended; a failure has its event. Only with CAP_NO_EVENT of the module";
        MORE = 1 << 32, "a hint: another operation of this endpoint follows immediately, so the provider may delay the device's doorbell; the next data call without this hint rings it, whatever that call returns, or the next poll";
    }
}

table! {
    /// The kinds of a list.
    pub mod rma_kind: u32, "RMA_" {
        PUT = 1, "since 1.1: each part is a put";
        GET = 2, "since 1.1: each part is a get";
    }
}

table! {
    /// The flags that each data call knows: a call with any other mandatory flag is refused.
    pub mod known_flags: u64, "FLAGS_OF_" {
        RMA = super::op_flags::REMOTE_COMPLETION | super::op_flags::NO_EVENT | super::op_flags::MORE, "put, get, put_notify and rma_list";
        ATOMIC = super::op_flags::FETCH | super::op_flags::REMOTE_COMPLETION | super::op_flags::NO_EVENT | super::op_flags::MORE, "atomic";
    }
}

table! {
    /// The levels of the host's log service.
    pub mod log_level: u32, "LOG_" {
        ERROR = 1, "a request cannot be fulfilled";
        WARN = 2, "an unexpected condition";
        INFO = 3, "a decision that was made";
        DEBUG = 4, "for the author of the provider";
    }
}

table! {
    /// The kinds of values of a configuration variable.
    pub mod config_kind: u32, "CONFIG_" {
        SIZE = 1, "bytes: 4096, 64k, 2GiB, inf; all units are powers of 1024";
        COUNT = 2, "a whole number, or inf";
        DURATION = 3, "a time with its unit: 10ms, 1s, inf; as a number nanoseconds";
        BOOL = 4, "on, off and their usual spellings; as a number 1 and 0";
        TEXT = 5, "any text, or one of the variable's words";
        LIST = 6, "names separated by commas";
    }
}

table! {
    /// Kinds of asynchronous reports of a provider. A later minor may have more.
    pub mod async_kind: u32, "ASYNC_" {
        MESSAGE = 0, "words for the log; from an entry function that fails: the reason";
        PORT_DOWN = 1, "a port or a network interface has lost its link: operations over it wait or fail";
        PORT_UP = 2, "it has its link again";
        DEVICE_GONE = 3, "a device was removed or has failed permanently: everything opened on it has ended";
    }
}

table! {
    /// The flags in the ELF note.
    pub mod note_flags: u16, "NOTE_" {
        UNWIND = 1 << 0, "built with unwinding panics: a panic is caught on the provider's side";
        RUST = 1 << 1, "built from the Rust traits";
    }
}

table! {
    /// The classes of operation for which a module states its cost: indices into `module_attr.cost`.
    pub mod cost_class: usize, "COST_" {
        SMALL_MESSAGE = 0, "a message of 8 bytes";
        BULK_MESSAGE = 1, "a message of 8 KiB";
        SMALL_RMA = 2, "a put or get of 8 bytes";
        BULK_RMA = 3, "a put or get of 256 KiB, registration included";
        ATOMIC = 4, "a fetching atomic";
        COUNT = 8, "the number of entries; those without a name are zero";
    }
}

/// Returns every table, in the order of the header.
#[must_use]
pub fn tables() -> Vec<(&'static str, &'static [Named])> {
    vec![
        ("Capabilities of a module (module_attr.caps)", caps::ALL),
        ("Memory capabilities of a domain (domain_attr.caps)", memory_caps::ALL),
        ("Kinds of memory (alloc_params.kind, register_params.kind)", memory_kind::ALL),
        ("Flags of a registration (register_params.flags)", register_flags::ALL),
        ("The purpose of a module (module_attr.role)", role::ALL),
        ("How a data-path module connects (module_attr.connects)", connects::ALL),
        ("Kinds of event", event::ALL),
        ("Flags of an event", event_flags::ALL),
        ("Atomic operations", atomic_op::ALL),
        ("Access rights of a region", access::ALL),
        ("Flags of an operation", op_flags::ALL),
        ("Kinds of a list (rma_list.kind)", rma_kind::ALL),
        ("The flags that a data call knows", known_flags::ALL),
        ("Log levels", log_level::ALL),
        ("Kinds of configuration variable (config_var.kind)", config_kind::ALL),
        ("Kinds of asynchronous event (async_event.kind)", async_kind::ALL),
        ("Flags of the ELF note", note_flags::ALL),
        ("Cost classes: indices into module_attr.cost", cost_class::ALL),
    ]
}

// `ModuleAttr::cost` has 8 entries. The header's generator cannot use a constant of this file.
const _: () = assert!(cost_class::COUNT == 8);
