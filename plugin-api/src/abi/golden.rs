//! The layout of every record and table, as fixed numbers.
//!
//! The header repeats the numbers as `_Static_assert`, so that a change that moves a field does not compile on either side. ABI 1.0
//! is frozen: a field that is added at an end adds a line here. Only the size of a record that has grown changes. `cargo xtask
//! header --check` compares with the headers of the frozen minors.

use super::*;

/// One record: its name, its size, and each field with its offset.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The name of the type.
    pub name: &'static str,
    /// The size of the record, as `size_of` returns it.
    pub size: usize,
    /// The fields in order, with the `offset_of` of each.
    pub fields: &'static [(&'static str, usize)],
}

/// Returns the size of the field that `_of` returns.
#[allow(dead_code)] // Rust 1.85 does not see that constants use this function
const fn size_of_field<T, F>(_of: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! golden {
    ($( $type:ident = $size:literal { $( $field:ident = $offset:literal, )* } )*) => {
        // The numbers are for pointers of 64 bits, which Tieline requires.
        #[cfg(target_pointer_width = "64")]
        const _: () = {
            $(
                assert!(size_of::<$type>() == $size, stringify!($type));
                // The fields fill the record: there is no hidden padding.
                assert!(0 $( + size_of_field(|record: &$type| &record.$field) )* == $size, stringify!($type));
                $( assert!(core::mem::offset_of!($type, $field) == $offset, stringify!($type.$field)); )*
            )*
        };

        /// Every record and table, in the order of the header.
        pub const RECORDS: &[Record] = &[ $( Record {
            name: stringify!($type),
            size: $size,
            fields: &[ $( (stringify!($field), $offset), )* ],
        }, )* ];
    };
}

golden! {
    NoteDesc = 332 {
        desc_len = 0,
        note_rev = 2,
        abi_major = 4,
        abi_minor = 6,
        min_core_minor = 8,
        flags = 10,
        name = 12,
        version = 44,
        needs = 76,
        reason = 140,
    }
    Host = 80 {
        size = 0,
        abi_major = 8,
        abi_minor = 12,
        context = 16,
        log = 24,
        config_declare = 32,
        config_get = 40,
        clock_ns = 48,
        async_event = 56,
        pages_alloc = 64,
        pages_free = 72,
    }
    ProviderOps = 104 {
        size = 0,
        abi_minor = 8,
        reserved = 12,
        state = 16,
        query_domains = 24,
        open_domain = 32,
        last_error = 40,
        quiesce = 48,
        layouts = 56,
        domain = 64,
        interface = 72,
        endpoint = 80,
        connector = 88,
        layout_digest = 96,
    }
    ConfigVar = 96 {
        size = 0,
        name = 8,
        name_len = 16,
        default_value = 24,
        default_value_len = 32,
        doc = 40,
        doc_len = 48,
        kind = 56,
        reserved = 60,
        least = 64,
        most = 72,
        words = 80,
        words_len = 88,
    }
    ConfigValue = 56 {
        size = 0,
        number = 8,
        word = 16,
        is_default = 20,
        text = 24,
        text_len = 32,
        origin = 40,
        origin_len = 48,
    }
    AsyncEvent = 64 {
        size = 0,
        kind = 8,
        status = 12,
        domain = 16,
        domain_len = 24,
        module = 32,
        module_len = 40,
        text = 48,
        text_len = 56,
    }
    DomainAttr = 104 {
        size = 0,
        name = 8,
        caps = 72,
        max_key_len = 80,
        reserved = 84,
        register_ns = 88,
        register_ns_per_byte = 96,
    }
    DomainParams = 48 {
        size = 0,
        name = 8,
        name_len = 16,
        context_id = 24,
        flags = 40,
    }
    Cost = 24 {
        overhead_ns = 0,
        latency_ns = 8,
        bytes_per_second = 16,
    }
    ModuleAttr = 344 {
        size = 0,
        name = 8,
        role = 40,
        connects = 44,
        caps = 48,
        priority = 56,
        max_iov = 60,
        max_short = 64,
        max_packed = 72,
        max_zcopy = 80,
        max_put = 88,
        max_get = 96,
        atomic_post32 = 104,
        atomic_post64 = 108,
        atomic_fetch32 = 112,
        atomic_fetch64 = 116,
        cost = 120,
        max_address_len = 312,
        max_endpoint_address_len = 316,
        max_identity_len = 320,
        max_datagram = 324,
        reliable = 328,
        notify_bits = 332,
        max_short_put = 336,
    }
    MemoryRegion = 32 {
        size = 0,
        handle = 8,
        base = 16,
        len = 24,
    }
    AllocParams = 40 {
        size = 0,
        len = 8,
        access = 16,
        flags = 24,
        kind = 32,
        reserved = 36,
    }
    RegisterParams = 56 {
        size = 0,
        base = 8,
        len = 16,
        access = 24,
        flags = 32,
        kind = 40,
        dmabuf = 44,
        dmabuf_offset = 48,
    }
    KeyParams = 48 {
        size = 0,
        region = 8,
        offset = 16,
        len = 24,
        access = 32,
        flags = 40,
    }
    DomainOps = 80 {
        size = 0,
        close = 8,
        query_modules = 16,
        open_interface = 24,
        open_connector = 32,
        alloc = 40,
        register = 48,
        deregister = 56,
        pack_key = 64,
        revoke = 72,
    }
    InterfaceParams = 48 {
        size = 0,
        module = 8,
        module_len = 16,
        worker_id = 24,
        flags = 40,
    }
    EndpointParams = 56 {
        size = 0,
        address = 8,
        address_len = 16,
        identity = 24,
        identity_len = 32,
        cookie = 40,
        flags = 48,
    }
    Event = 64 {
        kind = 0,
        id = 4,
        status = 8,
        flags = 12,
        peer = 16,
        header = 24,
        data = 32,
        len = 40,
        cookie = 48,
        reserved = 56,
    }
    InterfaceOps = 128 {
        size = 0,
        poll = 8,
        close = 16,
        address = 24,
        reachable = 32,
        connect = 40,
        arm = 48,
        event_fd = 56,
        release = 64,
        memory = 72,
        hang_up = 80,
        import_key = 88,
        drop_key = 96,
        flush = 104,
        leave = 112,
        watch = 120,
    }
    WatchWord = 16 {
        at = 0,
        seen = 8,
    }
    WatchList = 144 {
        size = 0,
        count = 8,
        words = 16,
    }
    MemoryUse = 40 {
        size = 0,
        base_bytes = 8,
        peer_bytes = 16,
        peers = 24,
        buffer_bytes = 32,
    }
    Iov = 24 {
        base = 0,
        len = 8,
        region = 16,
    }
    Rma = 64 {
        iov = 0,
        iov_count = 8,
        len = 16,
        key = 24,
        offset = 32,
        cookie = 40,
        flags = 48,
        reserved = 56,
    }
    Atomic = 64 {
        op = 0,
        width = 4,
        key = 8,
        offset = 16,
        operand = 24,
        compare = 32,
        result = 40,
        cookie = 48,
        flags = 56,
    }
    RmaPart = 40 {
        local = 0,
        key = 24,
        offset = 32,
    }
    RmaList = 48 {
        size = 0,
        parts = 8,
        count = 16,
        cookie = 24,
        flags = 32,
        kind = 40,
        reserved = 44,
    }
    ImportParams = 32 {
        size = 0,
        bytes = 8,
        len = 16,
        flags = 24,
    }
    ConnectParams = 32 {
        size = 0,
        address = 8,
        address_len = 16,
        flags = 24,
    }
    EndpointLimits = 48 {
        size = 0,
        max_short = 8,
        max_packed = 16,
        max_zcopy = 24,
        max_put = 32,
        max_get = 40,
    }
    EndpointOps = 152 {
        size = 0,
        am_short = 8,
        am_packed = 16,
        am_zcopy = 24,
        put = 32,
        get = 40,
        atomic = 48,
        flush = 56,
        fence = 64,
        close = 72,
        import_key = 80,
        drop_key = 88,
        address = 96,
        connect = 104,
        put_notify = 112,
        key_pointer = 120,
        cancel = 128,
        limits = 136,
        rma_list = 144,
    }
    ConnectorOps = 64 {
        size = 0,
        poll = 8,
        close = 16,
        address = 24,
        reachable = 32,
        send = 40,
        arm = 48,
        event_fd = 56,
    }
    Layouts = 40 {
        size = 0,
        abi_stable = 8,
        layouts = 24,
        count = 32,
    }
}

/// The digest of the layouts of each minor that this crate knows. Minor 0 has none. A minor that is not released yet may have
/// several: one for each state of its records for which files were built.
///
/// A digest covers names, offsets, sizes and types of all fields, and the signatures of all slots but `am_packed`, which abi_stable
/// cannot inspect. The tests compute it with abi_stable. A provider in Rust carries the number, and nothing else of abi_stable.
pub const DIGESTS: &[(u16, u64)] = &[
    (1, 0xe5e2_71a3_54eb_21fc),
    (1, 0x9157_a35c_ab62_b1ed),
    (1, 0x166a_486c_3c9a_2cf6),
    (1, 0xc0dd_87a8_32e5_b2db),
    (1, 0x0aa2_545a_aef0_0da4),
];

/// The digest of the records in this crate.
pub(crate) const DIGEST: u64 = DIGESTS[DIGESTS.len() - 1].1;

#[cfg(test)]
#[path = "golden_tests.rs"]
mod tests;
