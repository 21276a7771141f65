/*
 * The provider ABI of Tieline: everything that a provider in C needs. docs/abi.md gives the rules,
 * docs/writing-a-provider.md a complete example.
 *
 * Made by `cargo xtask header` from plugin-api/src. Do not edit.
 */
#ifndef TIELINE_PROVIDER_H
#define TIELINE_PROVIDER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Only equal majors work together. */
#define TIELINE_ABI_MAJOR 1
/* What this header added at the ends of records and tables. */
#define TIELINE_ABI_MINOR 1
/* The owner of the ELF note. */
#define TIELINE_NOTE_OWNER "tieline"
/* The type of the ELF note. */
#define TIELINE_NOTE_TYPE 1
/* The section of the ELF note. */
#define TIELINE_NOTE_SECTION ".note.tieline.provider"

/* ---- Statuses ---- */

/* done: buffers may be reused, and no completion follows */
#define TIELINE_OK (0)
/* accepted: a completion event with the cookie follows */
#define TIELINE_PENDING (1)
/* no resources now, nothing was sent: make progress and try again */
#define TIELINE_AGAIN (-1)
/* not supported */
#define TIELINE_UNSUPPORTED (-2)
/* invalid argument */
#define TIELINE_INVALID (-3)
/* out of memory or of another bounded resource */
#define TIELINE_NO_MEMORY (-4)
/* no such device */
#define TIELINE_NO_DEVICE (-5)
/* permission denied */
#define TIELINE_PERMISSION (-6)
/* the peer failed */
#define TIELINE_PEER_FAILED (-7)
/* peer not reachable */
#define TIELINE_UNREACHABLE (-8)
/* remote key rejected */
#define TIELINE_KEY_REJECTED (-9)
/* range outside the region */
#define TIELINE_OUT_OF_RANGE (-10)
/* too large */
#define TIELINE_TOO_LARGE (-11)
/* timed out */
#define TIELINE_TIMED_OUT (-12)
/* closed */
#define TIELINE_CLOSED (-13)
/* the provider failed */
#define TIELINE_PROVIDER_FAILED (-14)
/* input/output error */
#define TIELINE_IO (-15)
/* malformed data from a peer */
#define TIELINE_BAD_DATA (-16)
/* unknown non-zero field in a parameter record */
#define TIELINE_UNSUPPORTED_PARAM (-17)
/* busy */
#define TIELINE_BUSY (-18)
/* cancelled */
#define TIELINE_CANCELED (-19)
/* misaligned */
#define TIELINE_MISALIGNED (-21)
/* not by this lane: nothing happened, ask the next one */
#define TIELINE_DECLINED (-22)
/* it may have happened or not */
#define TIELINE_OUTCOME_UNKNOWN (-23)

/* ---- What a module can do (module_attr.caps) ---- */

/* am_short: short active messages, copied before the call returns */
#define TIELINE_CAP_AM_SHORT UINT64_C(0x1)
/* am_packed: a callback packs into the transport's buffer */
#define TIELINE_CAP_AM_PACKED UINT64_C(0x2)
/* am_zcopy: gathered from an iov */
#define TIELINE_CAP_AM_ZCOPY UINT64_C(0x4)
/* put */
#define TIELINE_CAP_PUT UINT64_C(0x8)
/* get */
#define TIELINE_CAP_GET UINT64_C(0x10)
/* atomics; which ones is said by the four masks of module_attr */
#define TIELINE_CAP_ATOMICS UINT64_C(0x20)
/* a put or atomic that has completed is visible at the target */
#define TIELINE_CAP_REMOTE_COMPLETION UINT64_C(0x40)
/* put, get and atomics need nothing from the target's threads */
#define TIELINE_CAP_PASSIVE_TARGET UINT64_C(0x80)
/* a dead peer is reported as EVENT_ENDPOINT_FAILED or EVENT_PEER_LEFT */
#define TIELINE_CAP_PEER_FAILURE UINT64_C(0x100)
/* event_fd and arm: the interface can be waited for */
#define TIELINE_CAP_EVENT_FD UINT64_C(0x200)
/* poll must be called for progress */
#define TIELINE_CAP_NEEDS_POLL UINT64_C(0x400)
/* reaches processes under the same kernel only */
#define TIELINE_CAP_LOCAL_ONLY UINT64_C(0x800)
/* put, get and atomics reach only memory from this domain's own alloc */
#define TIELINE_CAP_OWN_MEMORY_ONLY UINT64_C(0x1000)
/* the accessing path refuses forged, foreign and revoked keys */
#define TIELINE_CAP_CHECKS_KEYS UINT64_C(0x2000)
/* received payloads come with EVENT_FLAG_LENT: they stay valid until release */
#define TIELINE_CAP_LENDS_BUFFERS UINT64_C(0x4000)
/* messages may be posted as soon as connect has returned. The core does not need to know: it posts, and waits where the answer is AGAIN */
#define TIELINE_CAP_CONNECTED_SEND UINT64_C(0x8000)
/* put, get and atomics are complete when the call returns: never PENDING */
#define TIELINE_CAP_SYNCHRONOUS UINT64_C(0x10000)
/* poll asks the kernel: the core calls it less often while nothing comes */
#define TIELINE_CAP_SLOW_POLL UINT64_C(0x20000)
/* atomics are the device's: they are not atomic towards the processor's, nor towards another device's */
#define TIELINE_CAP_DEVICE_ATOMICS UINT64_C(0x40000)
/* wants iov.region: which registration each piece lies in */
#define TIELINE_CAP_TAKES_REGIONS UINT64_C(0x80000)
/* key_pointer: memory of a peer can be mapped, for loads and stores */
#define TIELINE_CAP_KEY_POINTER UINT64_C(0x100000)
/* put_notify: a put that tells the target; how many bits it carries is said by notify_bits */
#define TIELINE_CAP_PUT_NOTIFY UINT64_C(0x200000)
/* knows OP_NO_EVENT, which the core does not post yet */
#define TIELINE_CAP_NO_EVENT UINT64_C(0x400000)
/* import_key of the interface: one key serves all its endpoints to the peer that it came from */
#define TIELINE_CAP_INTERFACE_KEYS UINT64_C(0x800000)
/* the interface with its endpoints and keys may be used by another thread than the one that opened it: calls come from one thread at a time, and each sees what those before it have done */
#define TIELINE_CAP_ANY_THREAD UINT64_C(0x1000000)
/* flush of the interface */
#define TIELINE_CAP_FLUSH_ALL UINT64_C(0x2000000)
/* cancel */
#define TIELINE_CAP_CANCEL UINT64_C(0x4000000)
/* an access to memory whose owner has died, or has taken it away, may end this process by a signal: an operator has asked for that */
#define TIELINE_CAP_DIES_WITH_OWNER UINT64_C(0x8000000)

/* ---- What a memory domain can do (domain_attr.caps) ---- */

/* alloc: the domain provides memory of its own */
#define TIELINE_MEMORY_CAP_ALLOC UINT64_C(0x1)
/* register: any memory of the process */
#define TIELINE_MEMORY_CAP_REGISTER UINT64_C(0x2)

/* ---- Kinds of memory (alloc_params.kind, register_params.kind) ---- */

/* the processor's, or a DMA buffer's */
#define TIELINE_MEMORY_KIND_HOST 0

/* ---- Flags of a registration (register_params.flags) ---- */

/* the memory is that of the descriptor dmabuf, from dmabuf_offset on */
#define TIELINE_REGISTER_DMABUF UINT64_C(0x1)
/* a hint: writes of peers to this region may pass each other on the bus; what says that they are there (a completion, a notification, a message) comes behind their bytes all the same */
#define TIELINE_REGISTER_RELAXED_ORDERING UINT64_C(0x100000000)

/* ---- What a module is for (module_attr.role) ---- */

/* moves user data */
#define TIELINE_ROLE_DATA 1
/* only forms connections: it is opened through the connector table, which has no data slots */
#define TIELINE_ROLE_CONNECTION_ONLY 2

/* ---- How a data-path module connects (module_attr.connects) ---- */

/* the peer's interface address is enough */
#define TIELINE_CONNECTS_TO_INTERFACE 1
/* both sides create an endpoint and exchange endpoint addresses first */
#define TIELINE_CONNECTS_TO_ENDPOINT 2

/* ---- Kinds of event ---- */

/* an active message: id, header, data, length, peer */
#define TIELINE_EVENT_MESSAGE 1
/* a pending operation ended: cookie, status, and the fetched value in header; where it failed, data may say why in words, and header is the device's own number of the reason, or 0 */
#define TIELINE_EVENT_COMPLETION 2
/* modules that connect to an interface: first contact from a peer: data is its identity, peer the number that its messages will carry */
#define TIELINE_EVENT_PEER_ARRIVED 3
/* that peer's connection to us ended, behind everything that came over it: status 0, the peer closed it in good order; else data is the reason in words */
#define TIELINE_EVENT_PEER_LEFT 4
/* an endpoint of ours failed: cookie is the endpoint's, data the reason in words; status CLOSED: the peer closed it in good order */
#define TIELINE_EVENT_ENDPOINT_FAILED 5
/* connectors only: a datagram arrived: data, length; header is the address_hash of the address at which its sender is reached, as the connection says, 0: not known */
#define TIELINE_EVENT_DATAGRAM 6
/* a put_notify of that peer is in our memory: header is its word, behind every byte that it has put */
#define TIELINE_EVENT_NOTIFIED 7
/* since 1.1: a message of an endpoint of ours that the peer has not taken comes back: cookie is the endpoint's, then id, header, data, length; in order, and before the ENDPOINT_FAILED that says UNTAKEN */
#define TIELINE_EVENT_RETURNED 8

/* ---- Flags of an event ---- */

/* the payload stays valid until release is called with the event's cookie, once for every such event */
#define TIELINE_EVENT_FLAG_LENT 1
/* since 1.1, of ENDPOINT_FAILED: the peer refused the endpoint at first contact and took nothing; each message that was posted to it came back as RETURNED */
#define TIELINE_EVENT_FLAG_UNTAKEN 2

/* ---- Atomic operations ---- */

/* addition, wrapping */
#define TIELINE_ATOMIC_ADD 0
/* bitwise and */
#define TIELINE_ATOMIC_AND 1
/* bitwise or */
#define TIELINE_ATOMIC_OR 2
/* bitwise exclusive or */
#define TIELINE_ATOMIC_XOR 3
/* exchange */
#define TIELINE_ATOMIC_SWAP 4
/* exchange if equal to compare */
#define TIELINE_ATOMIC_COMPARE_SWAP 5
/* unsigned minimum */
#define TIELINE_ATOMIC_MIN 6
/* unsigned maximum */
#define TIELINE_ATOMIC_MAX 7

/* ---- Access rights of a region ---- */

/* peers may get */
#define TIELINE_ACCESS_REMOTE_READ UINT64_C(0x1)
/* peers may put */
#define TIELINE_ACCESS_REMOTE_WRITE UINT64_C(0x2)
/* peers may do atomics */
#define TIELINE_ACCESS_REMOTE_ATOMIC UINT64_C(0x4)

/* ---- Flags of an operation ---- */

/* atomics: return the value from before */
#define TIELINE_OP_FETCH UINT64_C(0x1)
/* complete only when visible at the target */
#define TIELINE_OP_REMOTE_COMPLETION UINT64_C(0x2)
/* makes no event when it succeeds: it has ended when a later put or get of that endpoint without this flag, or a flush, has ended; a failure makes its event. Only where the module says CAP_NO_EVENT */
#define TIELINE_OP_NO_EVENT UINT64_C(0x4)
/* a hint: another operation of this endpoint follows at once, so the device need not be told yet; it is told by the next data call without this hint, whatever that returns, or by the next poll */
#define TIELINE_OP_MORE UINT64_C(0x100000000)

/* ---- The flags that a data call knows ---- */

/* put, get and put_notify */
#define TIELINE_FLAGS_OF_RMA UINT64_C(0x100000006)
/* atomic */
#define TIELINE_FLAGS_OF_ATOMIC UINT64_C(0x100000007)

/* ---- Log levels ---- */

/* something asked for cannot be done */
#define TIELINE_LOG_ERROR 1
/* something is not as it should be */
#define TIELINE_LOG_WARN 2
/* a choice that was made */
#define TIELINE_LOG_INFO 3
/* for the author of the provider */
#define TIELINE_LOG_DEBUG 4

/* ---- Kinds of configuration variable (config_var.kind) ---- */

/* bytes: 4096, 64k, 2GiB, inf; all units are powers of 1024 */
#define TIELINE_CONFIG_SIZE 1
/* a whole number, or inf */
#define TIELINE_CONFIG_COUNT 2
/* a time with its unit: 10ms, 1s, inf; as a number nanoseconds */
#define TIELINE_CONFIG_DURATION 3
/* on, off and their usual spellings; as a number 1 and 0 */
#define TIELINE_CONFIG_BOOL 4
/* any text, or one of the variable's words */
#define TIELINE_CONFIG_TEXT 5
/* names with commas between them */
#define TIELINE_CONFIG_LIST 6

/* ---- Kinds of asynchronous event (async_event.kind) ---- */

/* words, for the log; from an entry function that fails: why */
#define TIELINE_ASYNC_MESSAGE 0
/* a port or an interface of the network has lost its link: what goes that way waits or fails */
#define TIELINE_ASYNC_PORT_DOWN 1
/* it has its link again */
#define TIELINE_ASYNC_PORT_UP 2
/* a device was removed or has failed for good: everything opened on it has ended */
#define TIELINE_ASYNC_DEVICE_GONE 3

/* ---- Flags of the ELF note ---- */

/* built with unwinding panics: a panic is caught on the provider's side */
#define TIELINE_NOTE_UNWIND 1
/* built from the Rust traits: layouts can be compared */
#define TIELINE_NOTE_RUST 2

/* ---- Cost classes: indices into module_attr.cost ---- */

/* a message of 8 bytes */
#define TIELINE_COST_SMALL_MESSAGE 0
/* a message of 8 KiB */
#define TIELINE_COST_BULK_MESSAGE 1
/* a put or get of 8 bytes */
#define TIELINE_COST_SMALL_RMA 2
/* a put or get of 256 KiB, registration included */
#define TIELINE_COST_BULK_RMA 3
/* a fetching atomic */
#define TIELINE_COST_ATOMIC 4
/* how many there is room for; those that have no name yet are zero */
#define TIELINE_COST_COUNT 8

/* ---- Records and tables ---- */

/* What the ELF note says: a provider's identity, read from the file before any of its code runs. */
struct tieline_note_desc {
    /* Size of this record as the provider compiled it. */
    uint16_t desc_len;
    /* Revision of the record: 1. */
    uint16_t note_rev;
    /* ABI major that the provider was built for. */
    uint16_t abi_major;
    /* ABI minor that the provider was built for. */
    uint16_t abi_minor;
    /* The least minor of the core that it can work with. */
    uint16_t min_core_minor;
    /* `TIELINE_NOTE_*`. */
    uint16_t flags;
    /* Provider name, zero-padded: `verbs`. */
    uint8_t name[32];
    /* Provider version, zero-padded, semver: `1.2.0`. */
    uint8_t version[32];
};

/* One configuration variable of a provider: what its value is checked against, and what reports say of it. */
struct tieline_config_var {
    /* Size of this record: every record of a list carries it, and all the same. */
    size_t size;
    /*
     * `TIELINE_SHM_FASTBOX_SIZE`. A provider's own ones are named `TIELINE_<PROVIDER>_...`; where it reads one of the
     * core's it declares that too, and the core's own declaration holds.
     */
    const uint8_t *name;
    /* Its length. */
    size_t name_len;
    /* The default, as a user would write it: `4k`. A variable whose default is empty may be empty. */
    const uint8_t *default_value;
    /* Its length. */
    size_t default_value_len;
    /* What it does, in one sentence. */
    const uint8_t *doc;
    /* Its length. */
    size_t doc_len;
    /* `TIELINE_CONFIG_*`. */
    uint32_t kind;
    /* Zero. */
    uint32_t reserved;
    /* Sizes, counts and durations: the least number. */
    uint64_t least;
    /* Sizes, counts and durations: the greatest number; 0: any. */
    uint64_t most;
    /*
     * With bars between them (`auto|on|off`): what a text has to be one of, or what a value of another kind may be
     * instead of a number; empty: any text, numbers only.
     */
    const uint8_t *words;
    /* Its length. */
    size_t words_len;
};

/* The value of a configuration variable. */
struct tieline_config_value {
    /* Size of this record. */
    size_t size;
    /* Bytes, a count, nanoseconds, or 0 and 1 for no and yes; `inf` is the largest number; 0 for texts and words. */
    uint64_t number;
    /* Which of the variable's words it is, from 1 on; 0: none of them. */
    uint32_t word;
    /* 1: nobody has set it. */
    uint32_t is_default;
    /*
     * As it was written, without blanks around it; one of the variable's words as the variable declares it, in whatever
     * case it was written.
     */
    const uint8_t *text;
    /* Its length. */
    size_t text_len;
    /* Who set it, in words: `environment`, `/etc/tieline/tieline.toml:3`, `default`. */
    const uint8_t *origin;
    /* Its length. */
    size_t origin_len;
};

/* What a provider reports without having been asked. */
struct tieline_async_event {
    /* Size of this record. */
    size_t size;
    /* `TIELINE_ASYNC_*`. A kind that the host does not know is taken as a message. */
    uint32_t kind;
    /* A status, or 0 for what is no failure. */
    int32_t status;
    /* The domain that it is about; empty: none. */
    const uint8_t *domain;
    /* Its length. */
    size_t domain_len;
    /* The module that it is about; empty: all of the domain's. */
    const uint8_t *module;
    /* Its length. */
    size_t module_len;
    /* What happened, in words. */
    const uint8_t *text;
    /* Its length. */
    size_t text_len;
};

/* What the host offers a provider. Stays valid for the life of the process. */
struct tieline_host {
    /* Size of this table as the core compiled it. */
    size_t size;
    /* The core's ABI major. */
    uint32_t abi_major;
    /* The core's ABI minor. */
    uint32_t abi_minor;
    /* Passed back as the first argument of every function below. */
    void *context;
    /* Log one line: `(context, TIELINE_LOG_*, text, length)`. */
    void (*log)(void *context, uint32_t level, const uint8_t *text, size_t text_len);
    /*
     * Declares the configuration variables that the provider reads: `(context, list, count)`, in which the first
     * record's size is the distance between records. The entry function calls it before anything else. The records
     * and their texts are borrowed for the call. `INVALID` when somebody has set one to what it cannot be: the host
     * has kept the sentence, with where it was set, and the entry function returns that status. `PROVIDER_FAILED` for a
     * list that makes no sense, `UNSUPPORTED_PARAM` for what only a newer host knows.
     */
    int32_t (*config_declare)(void *context, const struct tieline_config_var *vars, size_t count);
    /*
     * The value of a variable that was declared: `(context, name, name length, out)`. `NO_DEVICE` when it was not.
     * What a value is does not change, and its texts stay until `quiesce` has returned, or the entry function has
     * failed.
     */
    int32_t (*config_get)(void *context,
                          const uint8_t *name,
                          size_t name_len,
                          struct tieline_config_value *out);
    /* Nanoseconds of a clock that never goes backwards. */
    uint64_t (*clock_ns)(void *context);
    /* Reports something that no call is waiting for. The record and its texts are borrowed for the call. */
    void (*async_event)(void *context, const struct tieline_async_event *event);
    /*
     * Page-aligned zeroed memory, for buffers of a provider that should be accounted to the context:
     * `(context, length)`; null when there is none.
     */
    void *(*pages_alloc)(void *context, size_t len);
    /* Gives memory of `pages_alloc` back: `(context, pointer, length)`. */
    void (*pages_free)(void *context, void *pages, size_t len);
};

/*
 * What a provider's state is to the core, and what each of the handles below is: an address of which only the provider
 * knows what lies there. In C each kind is a struct of its own, which the provider may define, so that no handle is taken
 * for another kind's.
 */
struct tieline_state;

/* What a domain is. */
struct tieline_domain_attr {
    /* Size of this record, set by the caller. */
    size_t size;
    /* The domain's full name, zero-padded: `shm`, `verbs:mlx5_0`. */
    uint8_t name[64];
    /* `TIELINE_MEMORY_CAP_*`. */
    uint64_t caps;
    /* The longest packed key. */
    uint32_t max_key_len;
    /* Zero. */
    uint32_t reserved;
    /* Fixed cost of registering memory, ns. */
    double register_ns;
    /* Cost of registering per byte, ns. */
    double register_ns_per_byte;
};

/* How to open a domain. */
struct tieline_domain_params {
    /* Size of this record. */
    size_t size;
    /* Name, as `query_domains` gave it. */
    const uint8_t *name;
    /* Its length. */
    size_t name_len;
    /* A number that is different for every context on the machine, for telling lives apart. */
    uint8_t context_id[16];
    /* None yet. */
    uint64_t flags;
};

/* An open domain. */
struct tieline_domain;

/* Where a Rust-built provider's abi_stable layouts lie. Compared only when `abi_stable` is the core's own version. */
struct tieline_layouts {
    /* Size of this record. */
    size_t size;
    /* The version of abi_stable, zero-padded text: `0.11`. */
    uint8_t abi_stable[16];
    /* Array of `count` pointers to `abi_stable::type_layout::TypeLayout`. */
    const void *const *layouts;
    /* Length of the array. */
    size_t count;
};

/* Overhead, latency and bandwidth of one class of operation. */
struct tieline_cost {
    /* Time of the calling CPU, ns. */
    double overhead_ns;
    /* Time on the way, ns. */
    double latency_ns;
    /* Bytes per second; 0 when size does not matter. */
    double bytes_per_second;
};

/* What a module is and can do. */
struct tieline_module_attr {
    /* Size of this record, set by the caller. */
    size_t size;
    /* Name within its domain, zero-padded: `rc`. */
    uint8_t name[32];
    /* `TIELINE_ROLE_*`. */
    uint32_t role;
    /* `TIELINE_CONNECTS_*`. */
    uint32_t connects;
    /* `TIELINE_CAP_*`. */
    uint64_t caps;
    /* Rank among the modules that can do the same; higher first; negative: not used unless asked for. */
    int32_t priority;
    /* Most entries of an iov. */
    uint32_t max_iov;
    /* Longest payload of am_short: 8 at least. */
    size_t max_short;
    /* Longest payload of am_packed: 64 at least. */
    size_t max_packed;
    /* Longest payload of am_zcopy. */
    size_t max_zcopy;
    /* Longest put; 0: no limit. */
    size_t max_put;
    /* Longest get; 0: no limit. */
    size_t max_get;
    /* Masks of `1 << TIELINE_ATOMIC_*` without a result: 32 bit. */
    uint32_t atomic_post32;
    /* 64 bit, without a result. */
    uint32_t atomic_post64;
    /* 32 bit, with the value from before. */
    uint32_t atomic_fetch32;
    /* 64 bit, with the value from before. */
    uint32_t atomic_fetch64;
    /* Cost by class: `TIELINE_COST_*`. */
    struct tieline_cost cost[8];
    /* Longest interface (or connector) address. */
    uint32_t max_address_len;
    /* Longest endpoint address; connect-to-endpoint only. */
    uint32_t max_endpoint_address_len;
    /* Longest identity that connect can carry: 4096 at least with messages, where peers connect to the interface. */
    uint32_t max_identity_len;
    /* Connectors: longest datagram: 1024 at least. */
    uint32_t max_datagram;
    /* Connectors: 1 if datagrams arrive exactly once and in order while the peer lives, else 0. */
    uint32_t reliable;
    /* How many of the lowest bits of a word `put_notify` carries, 1 to 32; 0 without CAP_PUT_NOTIFY. */
    uint32_t notify_bits;
    /*
     * Longest put in one piece of host memory, without OP_MORE, whose bytes are taken when `put` returns; without
     * OP_REMOTE_COMPLETION it answers 0 then, and never 1. 0: none.
     */
    size_t max_short_put;
};

/* How to open an interface or a connector. */
struct tieline_interface_params {
    /* Size of this record. */
    size_t size;
    /* Module name within the domain. */
    const uint8_t *module;
    /* Its length. */
    size_t module_len;
    /* The worker's number, different for every worker of every context, here and on other hosts. */
    uint8_t worker_id[16];
    /* None yet. */
    uint64_t flags;
};

/* An open data-path module. */
struct tieline_interface;

/* An open connection-only module. */
struct tieline_connector;

/* Memory that is asked for. */
struct tieline_alloc_params {
    /* Size of this record. */
    size_t size;
    /* Length in bytes, never 0. What is given may be longer. */
    size_t len;
    /* `TIELINE_ACCESS_*`. */
    uint64_t access;
    /* `TIELINE_ALLOC_*`; none yet. */
    uint64_t flags;
    /* `TIELINE_MEMORY_KIND_*`. */
    uint32_t kind;
    /* Zero. */
    uint32_t reserved;
};

/* A region that a domain knows. */
struct tieline_region;

/* A piece of memory that a domain knows. */
struct tieline_memory_region {
    /* Size of this record, set by the caller. */
    size_t size;
    /* The domain's handle, never null. */
    struct tieline_region *handle;
    /* First byte. */
    uint8_t *base;
    /* Length in bytes. */
    size_t len;
};

/* Memory that is to be registered. */
struct tieline_register_params {
    /* Size of this record. */
    size_t size;
    /* First byte. With REGISTER_DMABUF the processor must not touch what lies there; pieces are still counted from this address. */
    uint8_t *base;
    /* Length in bytes. */
    size_t len;
    /* `TIELINE_ACCESS_*`; 0: only for local pieces. */
    uint64_t access;
    /* `TIELINE_REGISTER_*`. */
    uint64_t flags;
    /* `TIELINE_MEMORY_KIND_*`. */
    uint32_t kind;
    /* REGISTER_DMABUF: the descriptor, borrowed for the call; else 0, and not looked at. */
    int32_t dmabuf;
    /* REGISTER_DMABUF: where `base` lies in it. */
    uint64_t dmabuf_offset;
};

/* A remote key that is to be packed: to all of the region, with all of its rights, when everything but the region is zero. */
struct tieline_key_params {
    /* Size of this record. */
    size_t size;
    /* The region. */
    struct tieline_region *region;
    /*
     * First byte of it that the key leads to: offset 0 of put, get and atomics by it. A provider whose keys lead to whole
     * regions refuses others with `UNSUPPORTED`.
     */
    uint64_t offset;
    /*
     * Bytes that the key leads to; 0: up to the region's end. A part that leaves the region is `OUT_OF_RANGE`, and so is what an
     * operation by the key does outside of the part.
     */
    uint64_t len;
    /* What the key grants, of the region's rights; 0: all of them. A right that the region has not is `INVALID`. */
    uint64_t access;
    /* None yet. */
    uint64_t flags;
};

/* Functions of a domain. Any thread. */
struct tieline_domain_ops {
    /* Size of this table as the provider compiled it. */
    size_t size;
    /* Closes the domain; everything opened from it is closed already. */
    void (*close)(struct tieline_domain *domain);
    /* Lists modules, as `query_domains` lists domains. */
    int32_t (*query_modules)(struct tieline_domain *domain,
                             struct tieline_module_attr *out,
                             size_t capacity,
                             size_t *count);
    /* Opens a data-path module. The interface belongs to the calling thread's worker. */
    int32_t (*open_interface)(struct tieline_domain *domain,
                              const struct tieline_interface_params *params,
                              struct tieline_interface **out);
    /* Opens a connection-only module. */
    int32_t (*open_connector)(struct tieline_domain *domain,
                              const struct tieline_interface_params *params,
                              struct tieline_connector **out);
    /* Provides memory that this domain's peers reach best: zeroed, and it begins with a page. */
    int32_t (*alloc)(struct tieline_domain *domain,
                     const struct tieline_alloc_params *params,
                     struct tieline_memory_region *out);
    /* Registers memory of the process. */
    int32_t (*register_)(struct tieline_domain *domain,
                         const struct tieline_register_params *params,
                         struct tieline_memory_region *out);
    /*
     * Ends a registration, and frees the memory if it came from alloc. Keys stop working at once. `AGAIN`: keys are
     * refused from now on, but an access that began before is not through; the region is still there: call again.
     */
    int32_t (*deregister)(struct tieline_domain *domain, struct tieline_region *region);
    /* Writes a region's remote key and returns its length, which is at most `max_key_len`. */
    int64_t (*pack_key)(struct tieline_domain *domain,
                        const struct tieline_key_params *params,
                        uint8_t *buffer,
                        size_t capacity);
    /*
     * Refuses every new access by a key of this region, as far as that can be done while the process itself still uses
     * the registration: 0, or `AGAIN` when an access that began before is not through. The region stays, and
     * `deregister` follows; the core may call this several times.
     */
    int32_t (*revoke)(struct tieline_domain *domain, struct tieline_region *region);
};

/* What `poll` writes: 64 bytes, frozen. Which fields count depends on `kind`. */
struct tieline_event {
    /* `TIELINE_EVENT_*`. */
    uint32_t kind;
    /* Message id. */
    uint32_t id;
    /* 0 or a negative status. */
    int32_t status;
    /* `TIELINE_EVENT_FLAG_*`. */
    uint32_t flags;
    /* The sender's number on this interface. */
    uint64_t peer;
    /* Message header, or fetched value; of a completion that failed the device's own number of the reason, or 0. */
    uint64_t header;
    /* Payload, or words: valid until the next poll or close of this interface. */
    const uint8_t *data;
    /* Its length. */
    size_t len;
    /* The operation's or endpoint's cookie, or the number to release a lent buffer with. */
    uint64_t cookie;
    /* Zero. */
    uint64_t reserved;
};

/* How to make an endpoint. */
struct tieline_endpoint_params {
    /* Size of this record. */
    size_t size;
    /* Connect-to-interface: the peer's interface address; connect-to-endpoint: null. */
    const uint8_t *address;
    /* Its length. */
    size_t address_len;
    /* Who we are: handed to the peer in EVENT_PEER_ARRIVED. */
    const uint8_t *identity;
    /* Its length. */
    size_t identity_len;
    /* Comes back in EVENT_ENDPOINT_FAILED. */
    uint64_t cookie;
    /* None yet. */
    uint64_t flags;
};

/* An endpoint. */
struct tieline_endpoint;

/* Memory that an interface holds. */
struct tieline_memory_use {
    /* Size of this record, set by the caller. */
    size_t size;
    /* Bytes that do not depend on the number of peers. */
    uint64_t base_bytes;
    /* Bytes for all peers together. */
    uint64_t peer_bytes;
    /* Peers that these bytes are for. */
    uint64_t peers;
    /* Bytes of message buffers that have been committed. */
    uint64_t buffer_bytes;
};

/* A packed key that is to be made usable. */
struct tieline_import_params {
    /* Size of this record. */
    size_t size;
    /* What `pack_key` of the peer's domain has written. The bytes come from the peer: check every one. */
    const uint8_t *bytes;
    /* Their number. */
    size_t len;
    /* None yet. */
    uint64_t flags;
};

/* A remote key that was imported. */
struct tieline_key;

/* Functions of an interface. One thread at a time. */
struct tieline_interface_ops {
    /* Size of this table as the provider compiled it. */
    size_t size;
    /*
     * Progress: writes up to `capacity` events and returns how many, or a negative status. What the events
     * of the call before pointed to is released by this call.
     */
    int64_t (*poll)(struct tieline_interface *interface, struct tieline_event *events, uint32_t capacity);
    /* Closes the interface; its endpoints are closed already. */
    void (*close)(struct tieline_interface *interface);
    /* Writes the interface's address and returns its length. */
    int64_t (*address)(struct tieline_interface *interface, uint8_t *buffer, size_t capacity);
    /* Can a peer with this address be reached? 0, or a negative status, with the reason in `last_error`. */
    int32_t (*reachable)(struct tieline_interface *interface, const uint8_t *address, size_t address_len);
    /*
     * Makes an endpoint. Connect-to-interface: it is usable at once, or `am_*` says AGAIN until it is.
     * Connect-to-endpoint: no address and no identity; `peer` of every message that arrives on it is its cookie.
     */
    int32_t (*connect)(struct tieline_interface *interface,
                       const struct tieline_endpoint_params *params,
                       struct tieline_endpoint **out);
    /*
     * Prepares to sleep: 0 means that `event_fd` becomes readable on the next event; 1 that there is
     * something to poll right now. It may be called at any time, also behind a poll that brought something.
     */
    int32_t (*arm)(struct tieline_interface *interface);
    /*
     * A descriptor for poll(2) or epoll (level-triggered), or a negative status: one for the interface's life, which stays
     * the provider's. The core neither reads nor closes it.
     */
    int32_t (*event_fd)(struct tieline_interface *interface);
    /* Gives a lent payload back, by the cookie of its event. */
    void (*release)(struct tieline_interface *interface, uint64_t cookie);
    /* Memory of this process that is held by the interface and its endpoints. */
    int32_t (*memory)(struct tieline_interface *interface, struct tieline_memory_use *out);
    /*
     * Ends what a peer has towards us, by the number that its messages carry: nothing more of it comes, its endpoint
     * fails, and a later one of the same peer is a new connection. The core calls it when it cannot answer a peer that
     * would wait for ever; of modules that connect to an endpoint it closes the endpoint instead.
     */
    int32_t (*hang_up)(struct tieline_interface *interface, uint64_t peer);
    /*
     * CAP_INTERFACE_KEYS: makes a packed key usable on every endpoint of this interface that leads to the peer whose key it is.
     * The core then asks no endpoint for it. AGAIN: ask again after progress.
     */
    int32_t (*import_key)(struct tieline_interface *interface,
                          const struct tieline_import_params *params,
                          struct tieline_key **out);
    /* Lets go of a key that this interface has imported. */
    void (*drop_key)(struct tieline_interface *interface, struct tieline_key *key);
    /*
     * CAP_FLUSH_ALL: completes when all that was posted before on any endpoint of this interface is complete at its target, as
     * `flush` of every one of them would. An endpoint that has failed does not fail it: its own events tell.
     */
    int32_t (*flush)(struct tieline_interface *interface, uint64_t cookie);
    /*
     * Since minor 1. The worker has closed: tells every connected peer that this side has left in good order, hands over what
     * was taken before, and accepts nobody any more. Endpoints, keys and lent payloads may still exist, and go afterwards;
     * nothing is posted and nothing is polled from here on. Without the slot peers learn of it from `close`.
     */
    void (*leave)(struct tieline_interface *interface);
};

/*
 * Packs a message: returns how many bytes were written, or a negative status.
 * The buffer is initialised memory (its content does not matter), the callback's alone during the call.
 */
typedef int64_t (*tieline_pack_fn)(void *argument, uint8_t *buffer, size_t capacity);

/* One piece of a gathered buffer: frozen. */
struct tieline_iov {
    /* First byte. */
    uint8_t *base;
    /* Length in bytes. */
    size_t len;
    /*
     * The region of the interface's domain that the piece lies in, or null: it lies anywhere. Null, too, unless the module says
     * TAKES_REGIONS, and for operations of modules that are SYNCHRONOUS. A piece whose region is null is memory of the host.
     */
    struct tieline_region *region;
};

/* A put or get: frozen. */
struct tieline_rma {
    /* Local pieces: read by put, written by get. */
    const struct tieline_iov *iov;
    /* How many. */
    size_t iov_count;
    /* Sum of their lengths. */
    size_t len;
    /* The key, from `import_key` on the same endpoint or on its interface. */
    struct tieline_key *key;
    /* Offset into what the key leads to. */
    uint64_t offset;
    /* Comes back in EVENT_COMPLETION when the call returned PENDING. */
    uint64_t cookie;
    /* `TIELINE_OP_*`. */
    uint64_t flags;
    /* Zero. */
    uint64_t reserved;
};

/* A remote atomic: frozen. */
struct tieline_atomic {
    /* `TIELINE_ATOMIC_*`. */
    uint32_t op;
    /* 4 or 8 bytes. */
    uint32_t width;
    /* The key, from `import_key` on the same endpoint or on its interface. */
    struct tieline_key *key;
    /* Offset into what the key leads to, a multiple of the width. */
    uint64_t offset;
    /* The operand. */
    uint64_t operand;
    /* What COMPARE_SWAP compares with. */
    uint64_t compare;
    /* Where the value from before goes when the call returns 0 and FETCH is set; a pending one brings it in the event. */
    uint64_t *result;
    /* Comes back in EVENT_COMPLETION when the call returned PENDING. */
    uint64_t cookie;
    /* `TIELINE_OP_*`. */
    uint64_t flags;
};

/* What a connect-to-endpoint module connects an endpoint to. */
struct tieline_connect_params {
    /* Size of this record. */
    size_t size;
    /* The peer's endpoint address. The bytes come from the peer: check every one. */
    const uint8_t *address;
    /* Its length. */
    size_t address_len;
    /* None yet. */
    uint64_t flags;
};

/* What one endpoint can carry, where that is less than its module can: 0, as the module says. */
struct tieline_endpoint_limits {
    /* Size of this record, set by the caller. */
    size_t size;
    /* Longest payload of am_short. */
    size_t max_short;
    /* Longest payload of am_packed. */
    size_t max_packed;
    /* Longest payload of am_zcopy. */
    size_t max_zcopy;
    /* Longest put, and put_notify. */
    size_t max_put;
    /* Longest get. */
    size_t max_get;
};

/*
 * Functions of an endpoint. One thread at a time, the interface's.
 *
 * Data calls return 0 (done), 1 (pending: an EVENT_COMPLETION with the cookie follows) or a negative status.
 */
struct tieline_endpoint_ops {
    /* Size of this table as the provider compiled it. */
    size_t size;
    /* Sends a message of at most `max_short` bytes, which are copied before the call returns. */
    int32_t (*am_short)(struct tieline_endpoint *endpoint,
                        uint32_t id,
                        uint64_t header,
                        const uint8_t *payload,
                        size_t len);
    /* Sends a message that `pack` writes, of at most `most` bytes: returns its length or a negative status. */
    int64_t (*am_packed)(struct tieline_endpoint *endpoint,
                         uint32_t id,
                         uint64_t header,
                         tieline_pack_fn pack,
                         void *argument,
                         size_t most);
    /* Sends a message that is gathered from pieces. The array is borrowed for the call, the bytes until the completion. */
    int32_t (*am_zcopy)(struct tieline_endpoint *endpoint,
                        uint32_t id,
                        uint64_t header,
                        const struct tieline_iov *iov,
                        size_t iov_count,
                        uint64_t cookie);
    /* Writes remote memory. The record and the array are borrowed for the call, the bytes until the completion. */
    int32_t (*put)(struct tieline_endpoint *endpoint, const struct tieline_rma *op);
    /* Reads remote memory, in the same way. */
    int32_t (*get)(struct tieline_endpoint *endpoint, const struct tieline_rma *op);
    /* Does a remote atomic. */
    int32_t (*atomic)(struct tieline_endpoint *endpoint, const struct tieline_atomic *op);
    /*
     * Completes when puts, gets and atomics that were posted before are complete at the target, and messages are where nothing that
     * happens to their sender can lose them. UNSUPPORTED, of a module of messages alone: they are, once they were taken.
     */
    int32_t (*flush)(struct tieline_endpoint *endpoint, uint64_t cookie);
    /*
     * Orders what was posted before on this endpoint, messages too, ahead of what is posted after, and waits for nothing.
     * UNSUPPORTED: this lane cannot keep order; AGAIN: not now. The core then waits for a flush.
     */
    int32_t (*fence)(struct tieline_endpoint *endpoint);
    /* Closes the endpoint. Pending operations are dropped without an event. */
    void (*close)(struct tieline_endpoint *endpoint);
    /* Makes a packed key usable on this endpoint. AGAIN: ask again after progress. */
    int32_t (*import_key)(struct tieline_endpoint *endpoint,
                          const struct tieline_import_params *params,
                          struct tieline_key **out);
    /* Lets go of an imported key. */
    void (*drop_key)(struct tieline_endpoint *endpoint, struct tieline_key *key);
    /*
     * Connect-to-endpoint: writes this endpoint's address: returns its length. The peer may use it before
     * `connect` is called here; what it sends then is kept until that call.
     */
    int64_t (*address)(struct tieline_endpoint *endpoint, uint8_t *buffer, size_t capacity);
    /*
     * Connect-to-endpoint: connects to the peer's endpoint address. Does not wait: data calls return AGAIN until the
     * connection stands; one that never does ends in EVENT_ENDPOINT_FAILED.
     */
    int32_t (*connect)(struct tieline_endpoint *endpoint, const struct tieline_connect_params *params);
    /*
     * CAP_PUT_NOTIFY: a put behind which the target gets EVENT_NOTIFIED with `word`, of which `notify_bits` count. The event comes
     * once, when all bytes of this put are there, and those of every put that this endpoint has posted before it. It may be empty:
     * length 0 notifies alone, and its key is not null all the same.
     */
    int32_t (*put_notify)(struct tieline_endpoint *endpoint, const struct tieline_rma *op, uint32_t word);
    /*
     * CAP_KEY_POINTER: where `len` bytes from `offset` on are mapped here: loads and stores there are the peer's memory. The
     * mapping stays until the key is dropped. When the owner has ended its region, what is mapped is nobody's memory any more.
     */
    int32_t (*key_pointer)(struct tieline_endpoint *endpoint,
                           struct tieline_key *key,
                           uint64_t offset,
                           uint64_t len,
                           uint8_t **out);
    /*
     * CAP_CANCEL: asks that a pending operation end soon. 0: its completion comes as it would have, with CANCELED where nothing of
     * it has happened; INVALID: nothing with this cookie is pending.
     */
    int32_t (*cancel)(struct tieline_endpoint *endpoint, uint64_t cookie);
    /* What this endpoint can carry, asked behind `connect`; of one that is formed again when it stands. */
    int32_t (*limits)(struct tieline_endpoint *endpoint, struct tieline_endpoint_limits *out);
};

/* Functions of a connector: datagrams that form connections, and nothing else. One thread at a time. */
struct tieline_connector_ops {
    /* Size of this table as the provider compiled it. */
    size_t size;
    /*
     * Progress: EVENT_DATAGRAM, and EVENT_PEER_LEFT when an address given to `send` cannot be reached or the
     * way to it broke: `header` is the address's FNV-1a hash (64 bit), data the reason in words. Datagrams sent
     * before may then be lost; sending again tries again. See `tieline_interface_ops.poll`.
     */
    int64_t (*poll)(struct tieline_connector *connector, struct tieline_event *events, uint32_t capacity);
    /* Closes the connector. */
    void (*close)(struct tieline_connector *connector);
    /* Writes the connector's address and returns its length. */
    int64_t (*address)(struct tieline_connector *connector, uint8_t *buffer, size_t capacity);
    /* Can that address be reached? Like `tieline_interface_ops.reachable`. */
    int32_t (*reachable)(struct tieline_connector *connector, const uint8_t *address, size_t address_len);
    /* Sends one datagram: 0, AGAIN or another negative status. */
    int32_t (*send)(struct tieline_connector *connector,
                    const uint8_t *address,
                    size_t address_len,
                    const uint8_t *datagram,
                    size_t len);
    /* Prepares to sleep, like `tieline_interface_ops.arm`. */
    int32_t (*arm)(struct tieline_connector *connector);
    /* A descriptor to wait on, or a negative status. */
    int32_t (*event_fd)(struct tieline_connector *connector);
};

/* The provider's table: written by the entry function. */
struct tieline_provider_ops {
    /* In: the core's size. Out: the size as the provider compiled it. */
    size_t size;
    /* The minor that the provider was compiled for. */
    uint32_t abi_minor;
    /* Zero. */
    uint32_t reserved;
    /* Passed back as the first argument of the functions below. */
    struct tieline_state *state;
    /*
     * Lists domains: `(state, out, capacity, count)`. Writes up to `capacity` records, and to `count`
     * how many there are. Each record's `size` is set by the caller.
     */
    int32_t (*query_domains)(struct tieline_state *state,
                             struct tieline_domain_attr *out,
                             size_t capacity,
                             size_t *count);
    /* Opens a domain by name. */
    int32_t (*open_domain)(struct tieline_state *state,
                           const struct tieline_domain_params *params,
                           struct tieline_domain **out);
    /* The calling thread's last error in words: `(state, buffer, capacity)` returns the length. */
    int64_t (*last_error)(struct tieline_state *state, uint8_t *buffer, size_t capacity);
    /* Stops threads and lets go of system resources. No other call follows. The code stays mapped. */
    void (*quiesce)(struct tieline_state *state);
    /* Rust-built providers: the layouts of the ABI's types as the provider compiled them; otherwise null. */
    int32_t (*layouts)(struct tieline_state *state, struct tieline_layouts *out);
    /* The domain functions. */
    const struct tieline_domain_ops *domain;
    /* The interface functions; null when the provider has no data-path module. */
    const struct tieline_interface_ops *interface;
    /* The endpoint functions; null when the provider has no data-path module. */
    const struct tieline_endpoint_ops *endpoint;
    /* The connector functions; null when the provider has no connection-only module. */
    const struct tieline_connector_ops *connector;
};

/*
 * The type of `tieline_provider_v1`: fills `out`, whose `size` the core has set; 0 or a negative status.
 * On failure the text goes to `host->async_event`.
 */
typedef int32_t (*tieline_entry_fn)(const struct tieline_host *host,
                                    struct tieline_provider_ops *out);

/* ---- Identity ---- */

/* The ELF note as it lies in the file. */
struct tieline_note {
    uint32_t owner_len;
    uint32_t desc_len;
    uint32_t type;
    char owner[8];
    struct tieline_note_desc desc;
};

/*
 * Says who a provider is; read from the file before any of its code runs. Once per provider, at file scope:
 *
 *     TIELINE_PROVIDER_NOTE("verbs", "1.2.0", 0);
 *
 * The name is the one in the file's name (libtieline_verbs.so): a-z, 0-9 and '-', at most 31 bytes. The
 * version is a semantic version. The flags are TIELINE_NOTE_*; a provider in C has none. A provider that needs what a
 * later minor of the core has brought says so with TIELINE_PROVIDER_NOTE_FOR("verbs", "1.2.0", 0, 3): older cores
 * leave it out, with these words.
 */
#define TIELINE_PROVIDER_NOTE(name_, version_, flags_) TIELINE_PROVIDER_NOTE_FOR(name_, version_, flags_, 0)
#define TIELINE_PROVIDER_NOTE_FOR(name_, version_, flags_, min_core_minor_) \
    __attribute__((section(TIELINE_NOTE_SECTION), used, aligned(4))) \
    static const struct tieline_note tieline_provider_note = { \
        sizeof TIELINE_NOTE_OWNER, sizeof(struct tieline_note_desc), TIELINE_NOTE_TYPE, TIELINE_NOTE_OWNER, \
        { sizeof(struct tieline_note_desc), 1, TIELINE_ABI_MAJOR, TIELINE_ABI_MINOR, min_core_minor_, flags_, \
          name_, version_ } \
    }

/* The one symbol that a provider exports: fills `out`, whose `size` the core has set; 0 or a negative status.
 * On failure the text goes to host->async_event. Called once for every context that the process opens. */
__attribute__((visibility("default")))
int32_t tieline_provider_v1(const struct tieline_host *host, struct tieline_provider_ops *out);

/* ---- The tail rules ---- */

/* Writes an attribute record, or the provider's table: no more than both sides know, `size` kept.
 *
 *     struct tieline_domain_attr attr = { .size = sizeof attr, ... };
 *     tieline_write_record(out, &attr, sizeof attr);
 */
static inline void tieline_write_record(void *out, const void *value, size_t known)
{
    size_t size = *(const size_t *)out;
    size_t len = size < known ? size : known;
    if (len > sizeof size) {
        memcpy((char *)out + sizeof size, (const char *)value + sizeof size, len - sizeof size);
    }
}

/* Reads a parameter record: what is missing is zero, what is unknown must be.
 *
 *     struct tieline_domain_params params;
 *     int32_t status = tieline_read_params(&params, sizeof params, in);
 */
static inline int32_t tieline_read_params(void *params, size_t known, const void *in)
{
    size_t at, size;
    if (!in) {
        return TIELINE_INVALID;
    }
    size = *(const size_t *)in;
    memset(params, 0, known);
    memcpy(params, in, size < known ? size : known);
    for (at = known; at < size; at++) {
        if (((const char *)in)[at]) {
            return TIELINE_UNSUPPORTED_PARAM;
        }
    }
    return TIELINE_OK;
}

/* The bits of flags that must be understood and are not among those that are known: who finds one answers
 * TIELINE_UNSUPPORTED_PARAM. Bits of the upper half are hints, and ignored by who does not know them.
 *
 *     if (tieline_not_understood(op->flags, TIELINE_FLAGS_OF_RMA)) return TIELINE_UNSUPPORTED_PARAM;
 */
static inline uint64_t tieline_not_understood(uint64_t flags, uint64_t known)
{
    return flags & UINT64_C(0xffffffff) & ~known;
}

/* What PEER_LEFT and DATAGRAM of a connector call an address: FNV-1a of its bytes, 64 bit. */
static inline uint64_t tieline_address_hash(const uint8_t *address, size_t len)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    while (len--) {
        hash = (hash ^ *address++) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* ---- The layout, checked ---- */

#ifdef __cplusplus
#define TIELINE_CHECK(what) static_assert(what, #what)
#else
#define TIELINE_CHECK(what) _Static_assert(what, #what)
#endif

#if UINTPTR_MAX == UINT64_MAX
TIELINE_CHECK(sizeof(struct tieline_note_desc) == 76);
TIELINE_CHECK(offsetof(struct tieline_note_desc, desc_len) == 0);
TIELINE_CHECK(offsetof(struct tieline_note_desc, note_rev) == 2);
TIELINE_CHECK(offsetof(struct tieline_note_desc, abi_major) == 4);
TIELINE_CHECK(offsetof(struct tieline_note_desc, abi_minor) == 6);
TIELINE_CHECK(offsetof(struct tieline_note_desc, min_core_minor) == 8);
TIELINE_CHECK(offsetof(struct tieline_note_desc, flags) == 10);
TIELINE_CHECK(offsetof(struct tieline_note_desc, name) == 12);
TIELINE_CHECK(offsetof(struct tieline_note_desc, version) == 44);
TIELINE_CHECK(sizeof(struct tieline_host) == 80);
TIELINE_CHECK(offsetof(struct tieline_host, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_host, abi_major) == 8);
TIELINE_CHECK(offsetof(struct tieline_host, abi_minor) == 12);
TIELINE_CHECK(offsetof(struct tieline_host, context) == 16);
TIELINE_CHECK(offsetof(struct tieline_host, log) == 24);
TIELINE_CHECK(offsetof(struct tieline_host, config_declare) == 32);
TIELINE_CHECK(offsetof(struct tieline_host, config_get) == 40);
TIELINE_CHECK(offsetof(struct tieline_host, clock_ns) == 48);
TIELINE_CHECK(offsetof(struct tieline_host, async_event) == 56);
TIELINE_CHECK(offsetof(struct tieline_host, pages_alloc) == 64);
TIELINE_CHECK(offsetof(struct tieline_host, pages_free) == 72);
TIELINE_CHECK(sizeof(struct tieline_provider_ops) == 96);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, abi_minor) == 8);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, reserved) == 12);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, state) == 16);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, query_domains) == 24);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, open_domain) == 32);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, last_error) == 40);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, quiesce) == 48);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, layouts) == 56);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, domain) == 64);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, interface) == 72);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, endpoint) == 80);
TIELINE_CHECK(offsetof(struct tieline_provider_ops, connector) == 88);
TIELINE_CHECK(sizeof(struct tieline_config_var) == 96);
TIELINE_CHECK(offsetof(struct tieline_config_var, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_config_var, name) == 8);
TIELINE_CHECK(offsetof(struct tieline_config_var, name_len) == 16);
TIELINE_CHECK(offsetof(struct tieline_config_var, default_value) == 24);
TIELINE_CHECK(offsetof(struct tieline_config_var, default_value_len) == 32);
TIELINE_CHECK(offsetof(struct tieline_config_var, doc) == 40);
TIELINE_CHECK(offsetof(struct tieline_config_var, doc_len) == 48);
TIELINE_CHECK(offsetof(struct tieline_config_var, kind) == 56);
TIELINE_CHECK(offsetof(struct tieline_config_var, reserved) == 60);
TIELINE_CHECK(offsetof(struct tieline_config_var, least) == 64);
TIELINE_CHECK(offsetof(struct tieline_config_var, most) == 72);
TIELINE_CHECK(offsetof(struct tieline_config_var, words) == 80);
TIELINE_CHECK(offsetof(struct tieline_config_var, words_len) == 88);
TIELINE_CHECK(sizeof(struct tieline_config_value) == 56);
TIELINE_CHECK(offsetof(struct tieline_config_value, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_config_value, number) == 8);
TIELINE_CHECK(offsetof(struct tieline_config_value, word) == 16);
TIELINE_CHECK(offsetof(struct tieline_config_value, is_default) == 20);
TIELINE_CHECK(offsetof(struct tieline_config_value, text) == 24);
TIELINE_CHECK(offsetof(struct tieline_config_value, text_len) == 32);
TIELINE_CHECK(offsetof(struct tieline_config_value, origin) == 40);
TIELINE_CHECK(offsetof(struct tieline_config_value, origin_len) == 48);
TIELINE_CHECK(sizeof(struct tieline_async_event) == 64);
TIELINE_CHECK(offsetof(struct tieline_async_event, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_async_event, kind) == 8);
TIELINE_CHECK(offsetof(struct tieline_async_event, status) == 12);
TIELINE_CHECK(offsetof(struct tieline_async_event, domain) == 16);
TIELINE_CHECK(offsetof(struct tieline_async_event, domain_len) == 24);
TIELINE_CHECK(offsetof(struct tieline_async_event, module) == 32);
TIELINE_CHECK(offsetof(struct tieline_async_event, module_len) == 40);
TIELINE_CHECK(offsetof(struct tieline_async_event, text) == 48);
TIELINE_CHECK(offsetof(struct tieline_async_event, text_len) == 56);
TIELINE_CHECK(sizeof(struct tieline_domain_attr) == 104);
TIELINE_CHECK(offsetof(struct tieline_domain_attr, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_domain_attr, name) == 8);
TIELINE_CHECK(offsetof(struct tieline_domain_attr, caps) == 72);
TIELINE_CHECK(offsetof(struct tieline_domain_attr, max_key_len) == 80);
TIELINE_CHECK(offsetof(struct tieline_domain_attr, reserved) == 84);
TIELINE_CHECK(offsetof(struct tieline_domain_attr, register_ns) == 88);
TIELINE_CHECK(offsetof(struct tieline_domain_attr, register_ns_per_byte) == 96);
TIELINE_CHECK(sizeof(struct tieline_domain_params) == 48);
TIELINE_CHECK(offsetof(struct tieline_domain_params, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_domain_params, name) == 8);
TIELINE_CHECK(offsetof(struct tieline_domain_params, name_len) == 16);
TIELINE_CHECK(offsetof(struct tieline_domain_params, context_id) == 24);
TIELINE_CHECK(offsetof(struct tieline_domain_params, flags) == 40);
TIELINE_CHECK(sizeof(struct tieline_cost) == 24);
TIELINE_CHECK(offsetof(struct tieline_cost, overhead_ns) == 0);
TIELINE_CHECK(offsetof(struct tieline_cost, latency_ns) == 8);
TIELINE_CHECK(offsetof(struct tieline_cost, bytes_per_second) == 16);
TIELINE_CHECK(sizeof(struct tieline_module_attr) == 344);
TIELINE_CHECK(offsetof(struct tieline_module_attr, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_module_attr, name) == 8);
TIELINE_CHECK(offsetof(struct tieline_module_attr, role) == 40);
TIELINE_CHECK(offsetof(struct tieline_module_attr, connects) == 44);
TIELINE_CHECK(offsetof(struct tieline_module_attr, caps) == 48);
TIELINE_CHECK(offsetof(struct tieline_module_attr, priority) == 56);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_iov) == 60);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_short) == 64);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_packed) == 72);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_zcopy) == 80);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_put) == 88);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_get) == 96);
TIELINE_CHECK(offsetof(struct tieline_module_attr, atomic_post32) == 104);
TIELINE_CHECK(offsetof(struct tieline_module_attr, atomic_post64) == 108);
TIELINE_CHECK(offsetof(struct tieline_module_attr, atomic_fetch32) == 112);
TIELINE_CHECK(offsetof(struct tieline_module_attr, atomic_fetch64) == 116);
TIELINE_CHECK(offsetof(struct tieline_module_attr, cost) == 120);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_address_len) == 312);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_endpoint_address_len) == 316);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_identity_len) == 320);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_datagram) == 324);
TIELINE_CHECK(offsetof(struct tieline_module_attr, reliable) == 328);
TIELINE_CHECK(offsetof(struct tieline_module_attr, notify_bits) == 332);
TIELINE_CHECK(offsetof(struct tieline_module_attr, max_short_put) == 336);
TIELINE_CHECK(sizeof(struct tieline_memory_region) == 32);
TIELINE_CHECK(offsetof(struct tieline_memory_region, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_memory_region, handle) == 8);
TIELINE_CHECK(offsetof(struct tieline_memory_region, base) == 16);
TIELINE_CHECK(offsetof(struct tieline_memory_region, len) == 24);
TIELINE_CHECK(sizeof(struct tieline_alloc_params) == 40);
TIELINE_CHECK(offsetof(struct tieline_alloc_params, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_alloc_params, len) == 8);
TIELINE_CHECK(offsetof(struct tieline_alloc_params, access) == 16);
TIELINE_CHECK(offsetof(struct tieline_alloc_params, flags) == 24);
TIELINE_CHECK(offsetof(struct tieline_alloc_params, kind) == 32);
TIELINE_CHECK(offsetof(struct tieline_alloc_params, reserved) == 36);
TIELINE_CHECK(sizeof(struct tieline_register_params) == 56);
TIELINE_CHECK(offsetof(struct tieline_register_params, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_register_params, base) == 8);
TIELINE_CHECK(offsetof(struct tieline_register_params, len) == 16);
TIELINE_CHECK(offsetof(struct tieline_register_params, access) == 24);
TIELINE_CHECK(offsetof(struct tieline_register_params, flags) == 32);
TIELINE_CHECK(offsetof(struct tieline_register_params, kind) == 40);
TIELINE_CHECK(offsetof(struct tieline_register_params, dmabuf) == 44);
TIELINE_CHECK(offsetof(struct tieline_register_params, dmabuf_offset) == 48);
TIELINE_CHECK(sizeof(struct tieline_key_params) == 48);
TIELINE_CHECK(offsetof(struct tieline_key_params, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_key_params, region) == 8);
TIELINE_CHECK(offsetof(struct tieline_key_params, offset) == 16);
TIELINE_CHECK(offsetof(struct tieline_key_params, len) == 24);
TIELINE_CHECK(offsetof(struct tieline_key_params, access) == 32);
TIELINE_CHECK(offsetof(struct tieline_key_params, flags) == 40);
TIELINE_CHECK(sizeof(struct tieline_domain_ops) == 80);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, close) == 8);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, query_modules) == 16);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, open_interface) == 24);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, open_connector) == 32);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, alloc) == 40);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, register_) == 48);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, deregister) == 56);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, pack_key) == 64);
TIELINE_CHECK(offsetof(struct tieline_domain_ops, revoke) == 72);
TIELINE_CHECK(sizeof(struct tieline_interface_params) == 48);
TIELINE_CHECK(offsetof(struct tieline_interface_params, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_interface_params, module) == 8);
TIELINE_CHECK(offsetof(struct tieline_interface_params, module_len) == 16);
TIELINE_CHECK(offsetof(struct tieline_interface_params, worker_id) == 24);
TIELINE_CHECK(offsetof(struct tieline_interface_params, flags) == 40);
TIELINE_CHECK(sizeof(struct tieline_endpoint_params) == 56);
TIELINE_CHECK(offsetof(struct tieline_endpoint_params, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_endpoint_params, address) == 8);
TIELINE_CHECK(offsetof(struct tieline_endpoint_params, address_len) == 16);
TIELINE_CHECK(offsetof(struct tieline_endpoint_params, identity) == 24);
TIELINE_CHECK(offsetof(struct tieline_endpoint_params, identity_len) == 32);
TIELINE_CHECK(offsetof(struct tieline_endpoint_params, cookie) == 40);
TIELINE_CHECK(offsetof(struct tieline_endpoint_params, flags) == 48);
TIELINE_CHECK(sizeof(struct tieline_event) == 64);
TIELINE_CHECK(offsetof(struct tieline_event, kind) == 0);
TIELINE_CHECK(offsetof(struct tieline_event, id) == 4);
TIELINE_CHECK(offsetof(struct tieline_event, status) == 8);
TIELINE_CHECK(offsetof(struct tieline_event, flags) == 12);
TIELINE_CHECK(offsetof(struct tieline_event, peer) == 16);
TIELINE_CHECK(offsetof(struct tieline_event, header) == 24);
TIELINE_CHECK(offsetof(struct tieline_event, data) == 32);
TIELINE_CHECK(offsetof(struct tieline_event, len) == 40);
TIELINE_CHECK(offsetof(struct tieline_event, cookie) == 48);
TIELINE_CHECK(offsetof(struct tieline_event, reserved) == 56);
TIELINE_CHECK(sizeof(struct tieline_interface_ops) == 120);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, poll) == 8);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, close) == 16);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, address) == 24);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, reachable) == 32);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, connect) == 40);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, arm) == 48);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, event_fd) == 56);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, release) == 64);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, memory) == 72);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, hang_up) == 80);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, import_key) == 88);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, drop_key) == 96);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, flush) == 104);
TIELINE_CHECK(offsetof(struct tieline_interface_ops, leave) == 112);
TIELINE_CHECK(sizeof(struct tieline_memory_use) == 40);
TIELINE_CHECK(offsetof(struct tieline_memory_use, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_memory_use, base_bytes) == 8);
TIELINE_CHECK(offsetof(struct tieline_memory_use, peer_bytes) == 16);
TIELINE_CHECK(offsetof(struct tieline_memory_use, peers) == 24);
TIELINE_CHECK(offsetof(struct tieline_memory_use, buffer_bytes) == 32);
TIELINE_CHECK(sizeof(struct tieline_iov) == 24);
TIELINE_CHECK(offsetof(struct tieline_iov, base) == 0);
TIELINE_CHECK(offsetof(struct tieline_iov, len) == 8);
TIELINE_CHECK(offsetof(struct tieline_iov, region) == 16);
TIELINE_CHECK(sizeof(struct tieline_rma) == 64);
TIELINE_CHECK(offsetof(struct tieline_rma, iov) == 0);
TIELINE_CHECK(offsetof(struct tieline_rma, iov_count) == 8);
TIELINE_CHECK(offsetof(struct tieline_rma, len) == 16);
TIELINE_CHECK(offsetof(struct tieline_rma, key) == 24);
TIELINE_CHECK(offsetof(struct tieline_rma, offset) == 32);
TIELINE_CHECK(offsetof(struct tieline_rma, cookie) == 40);
TIELINE_CHECK(offsetof(struct tieline_rma, flags) == 48);
TIELINE_CHECK(offsetof(struct tieline_rma, reserved) == 56);
TIELINE_CHECK(sizeof(struct tieline_atomic) == 64);
TIELINE_CHECK(offsetof(struct tieline_atomic, op) == 0);
TIELINE_CHECK(offsetof(struct tieline_atomic, width) == 4);
TIELINE_CHECK(offsetof(struct tieline_atomic, key) == 8);
TIELINE_CHECK(offsetof(struct tieline_atomic, offset) == 16);
TIELINE_CHECK(offsetof(struct tieline_atomic, operand) == 24);
TIELINE_CHECK(offsetof(struct tieline_atomic, compare) == 32);
TIELINE_CHECK(offsetof(struct tieline_atomic, result) == 40);
TIELINE_CHECK(offsetof(struct tieline_atomic, cookie) == 48);
TIELINE_CHECK(offsetof(struct tieline_atomic, flags) == 56);
TIELINE_CHECK(sizeof(struct tieline_import_params) == 32);
TIELINE_CHECK(offsetof(struct tieline_import_params, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_import_params, bytes) == 8);
TIELINE_CHECK(offsetof(struct tieline_import_params, len) == 16);
TIELINE_CHECK(offsetof(struct tieline_import_params, flags) == 24);
TIELINE_CHECK(sizeof(struct tieline_connect_params) == 32);
TIELINE_CHECK(offsetof(struct tieline_connect_params, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_connect_params, address) == 8);
TIELINE_CHECK(offsetof(struct tieline_connect_params, address_len) == 16);
TIELINE_CHECK(offsetof(struct tieline_connect_params, flags) == 24);
TIELINE_CHECK(sizeof(struct tieline_endpoint_limits) == 48);
TIELINE_CHECK(offsetof(struct tieline_endpoint_limits, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_endpoint_limits, max_short) == 8);
TIELINE_CHECK(offsetof(struct tieline_endpoint_limits, max_packed) == 16);
TIELINE_CHECK(offsetof(struct tieline_endpoint_limits, max_zcopy) == 24);
TIELINE_CHECK(offsetof(struct tieline_endpoint_limits, max_put) == 32);
TIELINE_CHECK(offsetof(struct tieline_endpoint_limits, max_get) == 40);
TIELINE_CHECK(sizeof(struct tieline_endpoint_ops) == 144);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, am_short) == 8);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, am_packed) == 16);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, am_zcopy) == 24);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, put) == 32);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, get) == 40);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, atomic) == 48);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, flush) == 56);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, fence) == 64);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, close) == 72);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, import_key) == 80);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, drop_key) == 88);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, address) == 96);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, connect) == 104);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, put_notify) == 112);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, key_pointer) == 120);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, cancel) == 128);
TIELINE_CHECK(offsetof(struct tieline_endpoint_ops, limits) == 136);
TIELINE_CHECK(sizeof(struct tieline_connector_ops) == 64);
TIELINE_CHECK(offsetof(struct tieline_connector_ops, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_connector_ops, poll) == 8);
TIELINE_CHECK(offsetof(struct tieline_connector_ops, close) == 16);
TIELINE_CHECK(offsetof(struct tieline_connector_ops, address) == 24);
TIELINE_CHECK(offsetof(struct tieline_connector_ops, reachable) == 32);
TIELINE_CHECK(offsetof(struct tieline_connector_ops, send) == 40);
TIELINE_CHECK(offsetof(struct tieline_connector_ops, arm) == 48);
TIELINE_CHECK(offsetof(struct tieline_connector_ops, event_fd) == 56);
TIELINE_CHECK(sizeof(struct tieline_layouts) == 40);
TIELINE_CHECK(offsetof(struct tieline_layouts, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_layouts, abi_stable) == 8);
TIELINE_CHECK(offsetof(struct tieline_layouts, layouts) == 24);
TIELINE_CHECK(offsetof(struct tieline_layouts, count) == 32);
#endif

#undef TIELINE_CHECK

#ifdef __cplusplus
}
#endif

#endif /* TIELINE_PROVIDER_H */
