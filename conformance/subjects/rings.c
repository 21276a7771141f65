/*
 * A complete Tieline provider in C: rings in shared memory, between processes of one host and within one.
 *
 *     cc -std=c11 -Wall -Wextra -Werror -O2 -shared -fPIC -I include -o libtieline_rings.so conformance/subjects/rings.c
 *     tieline check ./libtieline_rings.so
 *
 * An endpoint makes a memory file and passes it to its peer, with a greeting, over a SEQPACKET socket. The file has slots for
 * messages and two rings of slot numbers: `full` carries them to the receiver, `empty` carries them back, in the order in which
 * payloads are released. The socket stays open: a byte on it is the doorbell of a sleeping side, and its end reports the end of
 * the other side, whatever the cause. Put, get and atomics reach only memory of `alloc`: each region is a memory file too, which
 * the importing side maps. A table that all peers map has the valid keys, and is checked before every access.
 *
 * The suite is tested with this file: with -DMUTATION=NAME it has one of the bugs below, which the suite has to find. With
 * -DODD=NAME it is correct in an unusual way, which the suite has to accept. A copy of this file should leave out the code of
 * MUTATED and ODDLY.
 */
#define MUTATIONS(M) \
    /* several peers */ \
    M(ONE_NUMBER_FOR_ALL_PEERS, "all peers have the same number") \
    M(NUMBER_IS_A_COUNT, "a peer's number is the number of peers, so that after one has left two have the same") \
    M(NINTH_PEER_REFUSED, "no more than eight peers are accepted") \
    M(SENT_TO_ANOTHER_ENDPOINT, "a short message goes to the newest endpoint") \
    M(ONE_END_IS_ALL_ENDS, "when one of a peer's two connections ends, so does the other one") \
    /* several operations in flight */ \
    M(COOKIES_SWAPPED, "two operations that are in flight together end with each other's cookies") \
    M(OPERATION_129_OVERWRITES, "the table has 128 slots, and is used as if it had 256") \
    M(FLUSH_AT_ONCE, "flush is done while operations are pending") \
    M(FENCE_ORDERS_NOTHING, "a message behind a fence overtakes the puts before it") \
    M(PENDING_LOST_AT_DEATH, "operations pending when the peer died have no completion") \
    /* waking */ \
    M(FLAG_BEHIND_THE_CHECK, "arm checks for events first and then announces its sleep") \
    M(COMPLETION_WAKES_NOBODY, "a pending completion neither prevents a sleep nor ends one") \
    M(ROOM_WAKES_NOBODY, "a sender that got AGAIN is not woken when there is room") \
    /* messages */ \
    M(ZCOPY_HEADER_OF_32_BITS, "am_zcopy truncates the header to 32 bits") \
    M(ZCOPY_ID_OF_16_BITS, "am_zcopy truncates the id to 16 bits") \
    M(IDENTITY_CUT_AT_255, "an identity is truncated to 255 bytes") \
    M(PAYLOAD_RELEASED_EARLY, "the sender gets the slot of a payload back before the next poll") \
    M(LENT_PAYLOAD_RELEASED_BY_POLL, "the sender gets the slot of a lent payload back at the next poll") \
    M(DROPPED_BEFORE_DEATH, "messages that a peer sent before its death are not delivered") \
    M(DROPPED_BEFORE_CLOSE, "messages that a peer sent before its close are not delivered") \
    /* death */ \
    M(ENDPOINT_FAILED_NEVER, "an endpoint whose peer died refuses to send, but there is no event") \
    M(ENDPOINT_FAILED_TWICE, "an endpoint fails twice") \
    M(PEER_LEFT_NEVER, "there is no event for a peer that has left") \
    M(DEATH_IN_GOOD_ORDER, "PEER_LEFT of a peer that was killed has status 0") \
    M(KILLED_BY_A_PIPE, "a doorbell to a peer that is gone raises SIGPIPE") \
    /* resources */ \
    M(MAPPING_LEFT_AT_CLOSE, "a closed endpoint stays mapped") \
    M(MAPPING_LEFT_BY_DROP_KEY, "a dropped key stays mapped") \
    M(ALLOCATION_PER_POLL, "every poll leaks some memory") \
    M(ALLOCATION_PER_MESSAGE, "every short message leaks some memory") \
    M(FILE_LEFT_BEHIND, "a socket stays in /tmp when its interface is closed") \
    /* limits, threads and settings */ \
    M(BORROWED_PIECES_KEPT, "the array of pieces is read after the call") \
    M(SCRATCH_OF_ALL_THREADS, "interfaces in several threads pack into the same buffer") \
    M(REGIONS_WITHOUT_A_LOCK, "threads that allocate at the same time get the same region") \
    M(CONNECT_WAITS, "connect waits 300 ms for an answer that the peer does not give") \
    M(FOREIGN_KERNEL_IS_REACHABLE, "an address of another host is reported as reachable") \
    M(SETTINGS_IGNORED, "settings are read and have no effect") \
    M(ONE_LESS_THAN_SET, "an interface accepts one peer less than is set: with a setting of 1, none") \
    /* AGAIN */ \
    M(AGAIN_FOR_EVER, "after its first AGAIN a sender gets nothing else") \
    /* optional features */ \
    M(POINTER_FROM_START, "key_pointer ignores the offset") \
    M(POINTER_WITHOUT_RIGHTS, "key_pointer returns memory that may not be written") \
    M(POINTER_ENDS_WITH_PEER, "the memory of a pointer is unmapped when its owner is gone") \
    M(FILES_USED_AGAIN, "alloc reuses the file of a region that has ended, which peers may have mapped") \
    M(KEY_FREED_AT_ONCE, "drop_key unmaps memory that pending operations use") \
    M(KEY_OF_ONE_ENDPOINT, "a key works only with the endpoint that has used it first") \
    M(CANCEL_OF_ALL, "cancel ends every pending operation of the endpoint") \
    M(CANCELED_AND_DONE, "a canceled operation is carried out, and ends as CANCELED") \
    M(CANCELED_WITHOUT_END, "a canceled operation has no completion") \
    M(FLUSH_OF_NEWEST, "flush of the interface covers only the newest endpoint") \
    M(FLUSH_FAILS_WITH_ONE, "flush of the interface fails if one endpoint has failed") \
    M(FAILURE_WITHOUT_EVENT, "an operation without event has none when it fails either") \
    M(SILENT_ENDS_LATE, "an operation without event ends behind later ones") \
    M(DECLINED_AND_DONE, "a put or get that was declined is carried out") \
    M(DECLINED_COMPLETES, "a put or get that was declined has a completion") \
    M(NOTIFIED_EARLY, "the target is notified when a put_notify is posted") \
    M(WORD_CUT, "only 16 bits of the word of a put_notify arrive") \
    M(LIMITS_OVERSTATED, "limits reports more than the endpoint accepts") \
    M(LIMITS_WRITTEN_WHOLE, "limits writes its whole record, even if the caller's is shorter") \
    M(ANY_KIND, "memory of any requested kind is host memory") \
    M(PACKED_OF_63, "max_packed is less than the core's own messages need") \
    M(NEVER_POLLED, "events come by poll, and the module does not claim that it has to be polled") \
    M(EVENT_HALF_WRITTEN, "poll leaves fields of a message as they were in the core's array") \
    M(SENT_BEHIND_A_POLL, "am_short returns AGAIN until its interface has been polled, though CONNECTED_SEND is claimed") \
    M(PIECES_OF_REGIONS_ONLY, "put and get refuse local pieces that lie in no region") \
    M(REGISTERS_A_COPY, "memory of the application is registered although only that of alloc is reachable: peers' puts go elsewhere") \
    M(HUNG_UP_UNTOLD, "a disconnected peer is not notified") \
    M(HUNG_UP_AND_HEARD, "messages that a peer sent before it was disconnected are delivered") \
    M(HANGS_UP_ALL, "hang_up ends the connections of all peers") \
    M(POLLED_BY_ITS_THREAD, "ANY_THREAD is claimed, and only the thread that opened an interface finds its events") \
    /* watch words */ \
    M(WATCHES_THE_FREE_SLOTS, "the listed words are those of free slots, which no message changes") \
    M(WATCH_WORD_OF_A_LEAVER, "the word of a peer that has left stays listed when its memory is unmapped") \
    M(WATCH_WORD_ODD, "the address of a listed word is not aligned")
#define ODDITIES(M) \
    M(AGAIN_OFTEN, "every second data call returns AGAIN first") \
    M(LATE_AND_OUT_OF_ORDER, "every completion comes some polls later, and the latest operation ends first") \
    M(LEAST_LIMITS, "messages of 8 bytes, 64 packed, one piece, two slots, one event per poll") \
    M(DECLINES, "every third put or get is declined, as if another lane would serve it better") \
    M(ENDPOINT_LIMITS, "endpoints carry a quarter of what the module states") \
    M(LATER_MINOR, "of a later minor, with bits that are unknown so far; and fence leaves the order to the core") \
    M(MOVES, "interfaces may move to another thread: none of their state is bound to one")
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "tieline_provider.h"

#ifndef MUTATION
#define MUTATION NONE
#endif
#ifndef ODD
#define ODD NONE
#endif
#define NAME_OF(name, text) name,
enum variant { NONE, MUTATIONS(NAME_OF) ODDITIES(NAME_OF) };
#define MUTATED(name) (MUTATION == name)
#define ODDLY(name) (ODD == name)

#undef TIELINE_ABI_MINOR
#define TIELINE_ABI_MINOR (2 * ODDLY(LATER_MINOR)) /* later than the minor of the core that loads this file */
TIELINE_PROVIDER_NOTE("rings", "0.1.0", ODDLY(LATER_MINOR) << 15);

#define NOT_YET(bit) (ODDLY(LATER_MINOR) << (bit)) /* a bit whose meaning a later minor may define */
#define DEFAULT_RING_SIZE (ODDLY(LEAST_LIMITS) ? "8k" : "256k")
#define RIGHTS (TIELINE_ACCESS_REMOTE_READ | TIELINE_ACCESS_REMOTE_WRITE | TIELINE_ACCESS_REMOTE_ATOMIC)
#define DECLINING (ODDLY(DECLINES) || MUTATED(DECLINED_AND_DONE) || MUTATED(DECLINED_COMPLETES))
#define LIMITED (ODDLY(ENDPOINT_LIMITS) || MUTATED(LIMITS_OVERSTATED) || MUTATED(LIMITS_WRITTEN_WHOLE))
#define CARRIED(bytes) (LIMITED ? (bytes) / 4 : (bytes)) /* the limit of an endpoint */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) /* a file that shrinks would kill every process that has it mapped */

enum {
    SLOT_BYTES = 4096, MOST_SLOTS = 4096, LEAST_SLOTS = 2, MOST_PEERS = 1 << 20,
    SHORT_BYTES = ODDLY(LEAST_LIMITS) ? 8 : 1024,
    PACKED_BYTES = ODDLY(LEAST_LIMITS) ? 64 : MUTATED(PACKED_OF_63) ? 63 : SLOT_BYTES,
    RMA_BYTES = 1 << 20,
    IOVS = ODDLY(LEAST_LIMITS) ? 1 : 16,
    EVENTS = ODDLY(LEAST_LIMITS) ? 1 : 256,
    IDENTITY = 4096, REGIONS = 1024, TABLE = 256, BACKLOG = 1024,
    OPERATIONS_AT_ONCE = 32, /* one poll does a bounded amount of work */
    POLLS_PER_LOOK = 16,     /* reading sockets costs a system call, so only every 16th poll reads them */
    LEND_FROM = 64,          /* copying a shorter payload is faster than returning it later */
    SOCKETS = (MUTATED(KILLED_BY_A_PIPE) ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC | SOCK_NONBLOCK,
};

/* The indices of both sides in `parting`, and its values. */
enum { SENDER, RECEIVER };
enum { THERE, CLOSED, HUNG_UP };
static const char BELL = 'b', NO_ROOM = 'n'; /* the messages on a socket after the greeting */

/* ---- shared between processes ---- */

struct ring { /* slot numbers: one side writes, the other reads; the ring has a place for every slot, so it never overflows */
    union {
        struct {
            _Atomic uint32_t tail;   /* the number of written entries */
            _Atomic uint32_t asleep; /* the reader wants the doorbell */
        };
        _Atomic uint64_t both; /* a watch word */
    };
    _Atomic uint32_t number[MOST_SLOTS];
};
struct slot { uint32_t told, id, len, reserved; uint64_t header; uint8_t data[SLOT_BYTES]; }; /* told: of a put; `header` is the word */
struct file { _Atomic uint32_t parting[2]; struct ring full, empty; struct slot slots[]; };
struct greeting { char magic[8]; uint32_t slots, identity_len; uint8_t identity[IDENTITY]; };

struct row { _Atomic uint64_t generation; uint64_t len, access; int32_t fd; uint32_t reserved; }; /* generation 0: no key */
struct table { uint8_t domain[16]; struct row rows[REGIONS]; };
struct packed_key {
    char magic[8];
    uint8_t domain[16];
    uint64_t row, generation;
    int32_t pid, table_fd; /* the place of the domain's table: so a put needs only the key */
};

struct address {
    char magic[8], boot[40];     /* the boot id of the kernel */
    uint64_t network, processes; /* the namespaces of the socket's name and of the process number */
    uint8_t name[16], domain[16];
    int32_t pid, table_fd;       /* the place of the domain's table */
};

/* ---- private to a process ---- */

struct settings { uint32_t slots, peers; };
struct tieline_state { struct settings settings; };
struct tieline_region { uint8_t *base; size_t len; int fd, used; };
struct tieline_domain { /* any thread may use it */
    struct settings settings;
    struct table *table;
    int table_fd;
    pthread_mutex_t lock; /* over `regions` and the rows of the table */
    struct tieline_region regions[REGIONS];
};
struct tieline_key {
    const struct table *table;
    uint64_t row, generation, access;
    uint8_t *base;
    size_t len;
    uint32_t uses; /* pending operations with the key */
    int dropped;
    const struct tieline_endpoint *first; /* KEY_OF_ONE_ENDPOINT */
};

/* One end of a connection: the first field of an endpoint or a peer. */
struct connection {
    struct tieline_interface *interface;
    struct file *file;
    uint32_t slots, written, read; /* positions in the ring that this end writes, and in the one that it reads */
    int fd, is_endpoint;
};
struct tieline_endpoint { /* the sender's end */
    struct connection c;
    struct tieline_endpoint *next;
    struct address address;
    uint64_t cookie, polls;  /* polls: the interface's count when the endpoint was made */
    int32_t failed;          /* the status of every call from now on */
    int told, wants_room, odd_calls, odd_again, odd_declines;
    uint32_t free_slots;     /* the number of slots in `free` */
    uint32_t free[MOST_SLOTS];
    uint8_t out[MOST_SLOTS]; /* set: the receiver has the slot */
};
struct peer { /* the receiver's end */
    struct connection c;
    uint64_t number;
    int32_t status;          /* for PEER_LEFT */
    int arrived, ended, left; /* PEER_ARRIVED reported; socket ended; PEER_LEFT reported */
    uint32_t lent, identity_len;
    uint8_t identity[IDENTITY];
};

enum kind { PUT, GET, ATOMIC, FLUSH, MESSAGE, NOTIFY, FLUSH_ALL };
struct operation { /* a pending operation */
    struct tieline_endpoint *endpoint; /* null: a flush of the interface */
    struct tieline_key *key;
    struct slot *slot;                 /* of a NOTIFY: the slot of its notification */
    enum kind kind;
    int open, done, silent;            /* silent: has an event only if it fails */
    int32_t status;
    uint64_t cookie, value, offset, due;
    uint32_t pieces, word;
    const struct tieline_iov *iov; /* `own`, since the array is borrowed for the call */
    struct tieline_iov own[IOVS];
    struct tieline_atomic atomic;
};
struct shown { struct peer *peer; uint32_t slot; };
struct tieline_interface { /* one thread at a time */
    struct tieline_domain *domain;
    struct address address;
    int listener, epoll, wake, armed;
    uint64_t polls, next_number;
    struct tieline_endpoint *endpoints;
    uint32_t first, peer_count; /* of `peers`: the index at which the next poll begins, the number of used entries */
    struct peer **peers;
    uint32_t shown_count;       /* payloads that the last poll delivered without lending them */
    struct shown shown[EVENTS];
    uint64_t head, tail;        /* of the operations */
    struct tieline_watch_list watch; /* the words that the core compares instead of polling */
    int watches;                /* set: the core compares words */
    void *leak;                 /* of a mutation */
    struct operation operations[TABLE];
};

static _Thread_local char why[256];

__attribute__((format(printf, 2, 3))) static int32_t fail(int32_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    return status;
}

static int32_t unknown(int32_t status) /* for the fields of a record that this file does not know */
{
    return fail(status ? status : TIELINE_UNSUPPORTED_PARAM, "a parameter, a right or a flag that rings does not know");
}

static int64_t write_bytes(uint8_t *out, size_t capacity, const void *bytes, size_t len)
{
    if (capacity) memcpy(out, bytes, capacity < len ? capacity : len);
    return (int64_t)len; /* the whole length, even if it did not fit */
}

/* ---- memory files ---- */

/* Makes and maps a new file of zeros; null if that fails. */
static void *new_file(size_t len, int *fd)
{
    void *at = MAP_FAILED;
    *fd = memfd_create("tieline-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) return NULL;
    if (!ftruncate(*fd, (off_t)len) && !fcntl(*fd, F_ADD_SEALS, SEALS))
        at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (at != MAP_FAILED) return at;
    close(*fd);
    return NULL;
}

/* Maps and closes a peer's file; null if it has fewer than `len` bytes or is not sealed against shrinking. */
static void *map_file(int fd, size_t len, int protection)
{
    struct stat stat;
    void *at = MAP_FAILED;
    if (fd < 0) return NULL;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && seals & F_SEAL_SHRINK && !fstat(fd, &stat) && (uint64_t)stat.st_size >= len && len)
        at = mmap(NULL, len, protection, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static void *map_file_of(int32_t pid, int32_t fd, size_t len, int protection)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    return map_file(open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), len, protection);
}

static size_t file_bytes(uint32_t slots) { return sizeof(struct file) + slots * sizeof(struct slot); }

/* ---- rings ---- */

static void say(struct connection *c, char word)
{
    /* A disconnected peer must not raise SIGPIPE. A full socket wakes its reader anyway. */
    int flags = MUTATED(KILLED_BY_A_PIPE) ? MSG_DONTWAIT : MSG_DONTWAIT | MSG_NOSIGNAL;
    if (c->fd >= 0) (void)!send(c->fd, &word, 1, flags);
}

static void push(struct connection *c, struct ring *ring, uint32_t slot)
{
    atomic_store_explicit(&ring->number[c->written % MOST_SLOTS], slot, memory_order_relaxed);
    atomic_store_explicit(&ring->tail, ++c->written, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* the entry is written before the check whether the reader sleeps: see `arm` */
    if (atomic_load_explicit(&ring->asleep, memory_order_relaxed) && atomic_exchange(&ring->asleep, 0)) say(c, BELL);
}

static int is_empty(const struct connection *c, struct ring *ring)
{
    return atomic_load_explicit(&ring->tail, memory_order_acquire) == c->read;
}

static int pop(struct connection *c, struct ring *ring, uint32_t *slot) /* the caller checks the number */
{
    if (is_empty(c, ring)) return 0;
    *slot = atomic_load_explicit(&ring->number[c->read++ % MOST_SLOTS], memory_order_relaxed);
    return 1;
}

/* ---- messages ---- */

/* The first step of data calls: 0, or the status to return. */
static int32_t refusal(struct tieline_endpoint *e)
{
    if (e->failed) return e->failed;
    if (!ODDLY(AGAIN_OFTEN) || e->odd_calls++ % 2) return TIELINE_OK;
    e->odd_again = 1; /* a sender that then sleeps is woken to retry */
    return TIELINE_AGAIN;
}

/* Returns a free slot for a message: null if the receiver has all slots. */
static struct slot *take_slot(struct tieline_endpoint *e)
{
    uint32_t slot;
    uint32_t most = MUTATED(AGAIN_FOR_EVER) && !e->free_slots ? 0 : e->c.slots;
    for (uint32_t n = 0; n < most && pop(&e->c, &e->c.file->empty, &slot); n++) {
        if (slot >= e->c.slots || !e->out[slot]) continue; /* the receiver never had that slot */
        e->out[slot] = 0;
        e->free[e->free_slots++] = slot;
    }
    if (!e->free_slots) {
        e->wants_room = 1;
        return NULL;
    }
    return &e->c.file->slots[e->free[--e->free_slots]];
}

static void give_up_slot(struct tieline_endpoint *e, const struct slot *s)
{
    e->free[e->free_slots++] = (uint32_t)(s - e->c.file->slots);
}

static void send_slot(struct tieline_endpoint *e, struct slot *s, uint32_t id, uint64_t header, size_t len)
{
    uint32_t slot = (uint32_t)(s - e->c.file->slots);
    s->told = 0, s->id = id, s->header = header, s->len = (uint32_t)len;
    e->out[slot] = 1;
    push(&e->c, &e->c.file->full, slot);
}

static void send_word(struct tieline_endpoint *e, struct slot *s, uint32_t word)
{
    uint32_t slot = (uint32_t)(s - e->c.file->slots);
    s->told = 1, s->id = 0, s->header = MUTATED(WORD_CUT) ? (uint16_t)word : word, s->len = 0;
    e->out[slot] = 1;
    push(&e->c, &e->c.file->full, slot);
}

static int32_t am_short(struct tieline_endpoint *e, uint32_t id, uint64_t header, const uint8_t *payload, size_t len)
{
    struct slot *s;
    int32_t status;
    if (MUTATED(SENT_TO_ANOTHER_ENDPOINT)) e = e->c.interface->endpoints;
    if ((status = refusal(e))) return status;
    if (len > CARRIED(SHORT_BYTES)) return TIELINE_TOO_LARGE;
    if (MUTATED(SENT_BEHIND_A_POLL) && e->polls == e->c.interface->polls) return TIELINE_AGAIN;
    if (!(s = take_slot(e))) return TIELINE_AGAIN;
    if (MUTATED(ALLOCATION_PER_MESSAGE)) e->c.interface->leak = malloc(64);
    if (len) memcpy(s->data, payload, len);
    send_slot(e, s, id, header, len);
    return TIELINE_OK;
}

static int64_t am_packed(struct tieline_endpoint *e, uint32_t id, uint64_t header, tieline_pack_fn pack, void *argument,
                         size_t most)
{
    static uint8_t scratch[SLOT_BYTES];
    uint8_t *room;
    struct slot *s;
    int32_t status;
    int64_t len;
    if ((status = refusal(e))) return status;
    if (most > CARRIED(PACKED_BYTES)) return TIELINE_TOO_LARGE;
    if (!(s = take_slot(e))) return TIELINE_AGAIN; /* a slot is taken before the application packs, because it packs once */
    room = MUTATED(SCRATCH_OF_ALL_THREADS) ? scratch : s->data;
    len = pack(argument, room, most); /* the packer may send and poll: the slot is in no list meanwhile */
    if (len >= 0 && (size_t)len > most) len = TIELINE_INVALID;
    if (len >= 0 && e->failed) len = e->failed;
    if (len > 0 && room == scratch) memcpy(s->data, scratch, (size_t)len);
    if (len < 0) give_up_slot(e, s); /* such as the application's own error: nothing is sent */
    else send_slot(e, s, id, header, (size_t)len);
    return len;
}

/* ---- operations ---- */

static struct operation *operation_at(struct tieline_interface *i, uint64_t n)
{
    return &i->operations[n % (MUTATED(OPERATION_129_OVERWRITES) ? 128 : TABLE)];
}

static int has_completions(const struct tieline_interface *i)
{
    return !MUTATED(COMPLETION_WAKES_NOBODY) && i->head != i->tail;
}

static int is_full(const struct tieline_interface *i) { return i->tail - i->head == TABLE; }

/* Returns an entry for a checked operation; null if the table is full. */
static struct operation *post(struct tieline_interface *i, struct tieline_endpoint *e, enum kind kind, uint64_t cookie,
                              struct tieline_key *key)
{
    struct operation *o = operation_at(i, i->tail);
    if (is_full(i)) return NULL;
    o->endpoint = e, o->key = key, o->slot = NULL, o->kind = kind, o->cookie = cookie;
    o->open = 1, o->done = o->silent = 0, o->status = TIELINE_OK, o->value = 0, o->pieces = 0;
    o->due = i->polls + (ODDLY(LATE_AND_OUT_OF_ORDER) ? 3 + i->tail * 7 % 5 : 0);
    if (key) key->uses++;
    i->watch.count = 0; /* polls carry out the operation */
    if (MUTATED(COOKIES_SWAPPED) && i->tail % 2 && i->head != i->tail && operation_at(i, i->tail - 1)->open) {
        o->cookie = operation_at(i, i->tail - 1)->cookie;
        operation_at(i, i->tail - 1)->cookie = cookie;
    }
    i->tail++;
    if (i->armed && has_completions(i)) (void)!write(i->wake, &(uint64_t){ 1 }, 8); /* the interface sleeps already */
    return o;
}

static struct tieline_key *newest_key; /* POINTER_ENDS_WITH_PEER */

static void free_key(struct tieline_key *k)
{
    if (k == newest_key) newest_key = NULL;
    if (k->table) munmap((void *)k->table, sizeof *k->table);
    if (k->base && !MUTATED(MAPPING_LEFT_BY_DROP_KEY)) munmap(k->base, k->len);
    free(k);
}

static void let_go(struct tieline_interface *i, struct operation *o)
{
    if (o->key && !--o->key->uses && o->key->dropped) free_key(o->key);
    o->endpoint = NULL, o->key = NULL, o->open = 0;
    while (i->head != i->tail && !operation_at(i, i->head)->open) i->head++;
}

/* Checks the key and its rights: for every operation, when it is posted and when it is carried out. */
static int32_t check_key(const struct tieline_key *k, uint64_t offset, uint64_t len, uint64_t right)
{
    uint64_t generation = atomic_load_explicit(&k->table->rows[k->row].generation, memory_order_acquire);
    if (generation != k->generation || !(k->access & right)) return TIELINE_KEY_REJECTED;
    return offset > k->len || len > k->len - offset ? TIELINE_OUT_OF_RANGE : TIELINE_OK;
}

static int32_t atomic_operation(struct tieline_endpoint *e, const struct tieline_atomic *op)
{
    struct operation *o;
    int32_t status;
    if (tieline_not_understood(op->flags, TIELINE_FLAGS_OF_ATOMIC)) return TIELINE_UNSUPPORTED_PARAM;
    if ((status = refusal(e))) return status;
    if (op->op > TIELINE_ATOMIC_MAX || (op->width != 4 && op->width != 8)) return TIELINE_INVALID;
    if (op->offset % op->width) return TIELINE_MISALIGNED;
    if ((status = check_key(op->key, op->offset, op->width, TIELINE_ACCESS_REMOTE_ATOMIC))) return status;
    if (!(o = post(e->c.interface, e, ATOMIC, op->cookie, op->key))) return TIELINE_AGAIN;
    o->offset = op->offset, o->atomic = *op, o->silent = (op->flags & TIELINE_OP_NO_EVENT) != 0;
    return TIELINE_PENDING;
}

static uint64_t combine(const struct tieline_atomic *op, uint64_t old, uint64_t operand, uint64_t compare)
{
    switch (op->op) {
    case TIELINE_ATOMIC_ADD: return old + operand;
    case TIELINE_ATOMIC_AND: return old & operand;
    case TIELINE_ATOMIC_OR: return old | operand;
    case TIELINE_ATOMIC_XOR: return old ^ operand;
    case TIELINE_ATOMIC_SWAP: return operand;
    case TIELINE_ATOMIC_COMPARE_SWAP: return old == compare ? operand : old;
    case TIELINE_ATOMIC_MIN: return old < operand ? old : operand;
    default: return old > operand ? old : operand;
    }
}

static uint64_t run_atomic(const struct tieline_atomic *op, void *at)
{
    if (op->width == 4) {
        _Atomic uint32_t *word = at;
        uint32_t old = atomic_load(word);
        while (!atomic_compare_exchange_weak(word, &old,
                                             (uint32_t)combine(op, old, (uint32_t)op->operand, (uint32_t)op->compare)))
            ;
        return old;
    }
    _Atomic uint64_t *word = at;
    uint64_t old = atomic_load(word);
    while (!atomic_compare_exchange_weak(word, &old, combine(op, old, op->operand, op->compare)))
        ;
    return old;
}

static void run(struct operation *o);

static void run_before(struct tieline_endpoint *e, const struct operation *last) /* last: null for all operations of the endpoint */
{
    struct tieline_interface *i = e->c.interface;
    for (uint64_t n = i->head; n != i->tail && operation_at(i, n) != last; n++)
        if (operation_at(i, n)->endpoint == e) run(operation_at(i, n));
}

static void run(struct operation *o)
{
    static const uint64_t rights[] = { [PUT] = TIELINE_ACCESS_REMOTE_WRITE, [GET] = TIELINE_ACCESS_REMOTE_READ,
                                       [ATOMIC] = TIELINE_ACCESS_REMOTE_ATOMIC, [NOTIFY] = TIELINE_ACCESS_REMOTE_WRITE };
    uint64_t len = o->kind == ATOMIC ? o->atomic.width : 0;
    if (o->done) return;
    o->done = 1;
    if (!o->endpoint || (o->status = o->endpoint->failed) || !o->key) return;
    if (o->kind == NOTIFY) run_before(o->endpoint, o); /* the bytes of every earlier put must arrive before the notification */
    for (uint32_t n = 0; n < o->pieces; n++) len += o->iov[n].len;
    o->status = check_key(o->key, o->offset, len, rights[o->kind]); /* the key may have been revoked meanwhile */
    if (o->status && o->slot) give_up_slot(o->endpoint, o->slot);
    if (o->status) return;
    uint8_t *remote = o->key->base + o->offset;
    if (o->kind == ATOMIC) o->value = run_atomic(&o->atomic, remote);
    for (uint32_t n = 0; n < o->pieces; remote += o->iov[n++].len) {
        if (!o->iov[n].len) continue;
        if (o->kind == GET) memmove(o->iov[n].base, remote, o->iov[n].len);
        else memmove(remote, o->iov[n].base, o->iov[n].len);
    }
    atomic_thread_fence(memory_order_acq_rel); /* orders the copies ahead of what this thread loads and stores later */
    if (o->slot && !MUTATED(NOTIFIED_EARLY)) send_word(o->endpoint, o->slot, o->word);
}

static int lie_in_regions(const struct tieline_domain *d, const struct tieline_rma *op) /* PIECES_OF_REGIONS_ONLY */
{
    for (size_t n = 0, found = 0; n < op->iov_count; n++, found = 0) {
        const uint8_t *at = op->iov[n].base;
        for (size_t r = 0; r < REGIONS && !found; r++)
            found = d->regions[r].used && at >= d->regions[r].base && at <= d->regions[r].base + d->regions[r].len;
        if (!found) return 0;
    }
    return 1;
}

static int32_t rma(struct tieline_endpoint *e, const struct tieline_rma *op, enum kind kind, uint32_t word)
{
    struct operation *o;
    struct slot *slot = NULL;
    uint64_t len = 0, right = kind == GET ? TIELINE_ACCESS_REMOTE_READ : TIELINE_ACCESS_REMOTE_WRITE;
    int declined = 0;
    int32_t status;
    if (tieline_not_understood(op->flags, TIELINE_FLAGS_OF_RMA)) return TIELINE_UNSUPPORTED_PARAM;
    if ((status = refusal(e))) return status;
    if (op->iov_count > IOVS) return TIELINE_INVALID;
    for (size_t n = 0; n < op->iov_count; n++) {
        if (op->iov[n].len > CARRIED(RMA_BYTES) - len) return TIELINE_TOO_LARGE;
        len += op->iov[n].len;
    }
    if (len != op->len) return TIELINE_INVALID;
    if (MUTATED(PIECES_OF_REGIONS_ONLY) && !lie_in_regions(e->c.interface->domain, op)) return TIELINE_INVALID;
    if (MUTATED(KEY_OF_ONE_ENDPOINT) && op->key->first && op->key->first != e) return TIELINE_KEY_REJECTED;
    op->key->first = e;
    if ((status = check_key(op->key, op->offset, len, right))) return status;
    if (DECLINING && ++e->odd_declines % 3 == 0) declined = 1;
    if (declined && ODDLY(DECLINES)) return TIELINE_DECLINED;
    if (is_full(e->c.interface) || (kind == NOTIFY && !(slot = take_slot(e)))) return TIELINE_AGAIN;
    o = post(e->c.interface, e, kind, op->cookie, op->key);
    o->offset = op->offset, o->pieces = (uint32_t)op->iov_count;
    o->slot = slot, o->word = word, o->silent = (op->flags & TIELINE_OP_NO_EVENT) != 0;
    if (o->pieces) memcpy(o->own, op->iov, o->pieces * sizeof *op->iov);
    o->iov = MUTATED(BORROWED_PIECES_KEPT) ? op->iov : o->own;
    if (slot && MUTATED(NOTIFIED_EARLY)) send_word(e, slot, word);
    if (declined && MUTATED(DECLINED_AND_DONE)) run(o), let_go(e->c.interface, o);
    return declined ? TIELINE_DECLINED : TIELINE_PENDING;
}

static int32_t put(struct tieline_endpoint *e, const struct tieline_rma *op) { return rma(e, op, PUT, 0); }
static int32_t get(struct tieline_endpoint *e, const struct tieline_rma *op) { return rma(e, op, GET, 0); }
static int32_t put_notify(struct tieline_endpoint *e, const struct tieline_rma *op, uint32_t word)
{
    return rma(e, op, NOTIFY, word);
}

static int32_t am_zcopy(struct tieline_endpoint *e, uint32_t id, uint64_t header, const struct tieline_iov *iov, size_t count,
                        uint64_t cookie)
{
    struct slot *s;
    size_t len = 0;
    int32_t status = refusal(e);
    if (status) return status;
    if (count > IOVS) return TIELINE_INVALID;
    for (size_t n = 0; n < count; n++) {
        if (iov[n].len > CARRIED(PACKED_BYTES) - len) return TIELINE_TOO_LARGE;
        len += iov[n].len;
    }
    if (is_full(e->c.interface) || !(s = take_slot(e))) return TIELINE_AGAIN; /* without any effect: neither message nor event */
    len = 0;
    for (size_t n = 0; n < count; len += iov[n++].len)
        if (iov[n].len) memcpy(s->data + len, iov[n].base, iov[n].len);
    if (MUTATED(ZCOPY_HEADER_OF_32_BITS)) header = (uint32_t)header;
    if (MUTATED(ZCOPY_ID_OF_16_BITS)) id = (uint16_t)id;
    send_slot(e, s, id, header, len);
    post(e->c.interface, e, MESSAGE, cookie, NULL);
    return TIELINE_PENDING;
}

static int has_operations(const struct tieline_endpoint *e)
{
    struct tieline_interface *i = e->c.interface;
    for (uint64_t n = i->head; n != i->tail; n++)
        if (operation_at(i, n)->endpoint == e) return 1;
    return 0;
}

static void drop_operations(struct tieline_endpoint *e) /* without an event */
{
    struct tieline_interface *i = e->c.interface;
    for (uint64_t n = i->head; n != i->tail; n++)
        if (operation_at(i, n)->endpoint == e) let_go(i, operation_at(i, n));
}

/* A message has arrived once it is in the ring; for puts, gets and atomics the flush is an operation behind them. */
static int32_t flush(struct tieline_endpoint *e, uint64_t cookie)
{
    int32_t status = refusal(e);
    if (status) return status;
    if (MUTATED(FLUSH_AT_ONCE) || !has_operations(e)) return TIELINE_OK;
    return post(e->c.interface, e, FLUSH, cookie, NULL) ? TIELINE_PENDING : TIELINE_AGAIN;
}

static int32_t flush_interface(struct tieline_interface *i, uint64_t cookie) /* an endpoint reports its failure itself */
{
    for (struct tieline_endpoint *e = i->endpoints; e && MUTATED(FLUSH_FAILS_WITH_ONE); e = e->next)
        if (e->failed) return e->failed;
    if (i->head == i->tail || (MUTATED(FLUSH_OF_NEWEST) && !has_operations(i->endpoints))) return TIELINE_OK;
    return post(i, NULL, FLUSH_ALL, cookie, NULL) ? TIELINE_PENDING : TIELINE_AGAIN;
}

/* Later operations and messages follow the earlier ones, so the earlier ones are carried out here. Their events come later. */
static int32_t fence(struct tieline_endpoint *e)
{
    int32_t status = ODDLY(LATER_MINOR) ? TIELINE_UNSUPPORTED : refusal(e);
    if (!status && !MUTATED(FENCE_ORDERS_NOTHING)) run_before(e, NULL);
    return status;
}

/* An operation that has not started is canceled; others end normally. */
static int32_t cancel(struct tieline_endpoint *e, uint64_t cookie)
{
    struct tieline_interface *i = e->c.interface;
    int32_t found = TIELINE_INVALID;
    for (uint64_t n = i->head; n != i->tail; n++) {
        struct operation *o = operation_at(i, n);
        if (o->endpoint != e || (o->cookie != cookie && !MUTATED(CANCEL_OF_ALL))) continue;
        found = TIELINE_OK;
        if (o->done || o->kind == MESSAGE) continue;
        if (MUTATED(CANCELED_AND_DONE)) run(o);
        else if (o->slot) give_up_slot(e, o->slot);
        o->done = 1, o->status = TIELINE_CANCELED;
        if (MUTATED(CANCELED_WITHOUT_END)) let_go(i, o);
    }
    return found;
}

static int32_t limits(struct tieline_endpoint *e, struct tieline_endpoint_limits *out)
{
    struct tieline_endpoint_limits l = { .size = sizeof l }; /* 0: the module's limit */
    (void)e;
    if (LIMITED)
        l.max_short = CARRIED(SHORT_BYTES) + MUTATED(LIMITS_OVERSTATED), l.max_packed = l.max_zcopy = CARRIED(PACKED_BYTES),
        l.max_put = l.max_get = CARRIED(RMA_BYTES);
    if (MUTATED(LIMITS_WRITTEN_WHOLE)) l.size = out->size, *out = l;
    tieline_write_record(out, &l, sizeof l);
    return TIELINE_OK;
}

/* ---- keys ---- */

/* For an endpoint whose peer is at `owner`; null: for all endpoints to the owner of the key. */
static int32_t import(const struct address *owner, const struct tieline_import_params *in, struct tieline_key **out)
{
    struct tieline_import_params params;
    struct packed_key packed;
    struct tieline_key *k;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (params.len != sizeof packed) return fail(TIELINE_KEY_REJECTED, "a key of rings has %zu bytes", sizeof packed);
    memcpy(&packed, params.bytes, sizeof packed); /* the bytes need not be aligned */
    if (memcmp(packed.magic, "ringkey", 8) || packed.row >= REGIONS)
        return fail(TIELINE_KEY_REJECTED, "that is no key of rings");
    if (owner && (memcmp(packed.domain, owner->domain, 16) || packed.pid != owner->pid || packed.table_fd != owner->table_fd))
        return fail(TIELINE_KEY_REJECTED, "that is no key of this peer's domain");
    if (!(k = calloc(1, sizeof *k))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    k->row = packed.row, k->generation = packed.generation;
    k->table = map_file_of(packed.pid, packed.table_fd, sizeof *k->table, PROT_READ);
    if (!k->table) {
        status = fail(owner ? TIELINE_UNREACHABLE : TIELINE_KEY_REJECTED, "the memory of process %d cannot be mapped: %s",
                      packed.pid, strerror(errno));
    } else if (!memcmp(k->table->domain, packed.domain, 16) && packed.generation) {
        const struct row *row = &k->table->rows[packed.row];
        k->access = row->access, k->len = row->len;
        if (!check_key(k, 0, 0, RIGHTS)) k->base = map_file_of(packed.pid, row->fd, k->len, PROT_READ | PROT_WRITE);
    }
    /* The mapping is that of the region if the key is still valid: the descriptor is closed after the key has ended. */
    if (k->base && !check_key(k, 0, 0, RIGHTS)) {
        if (MUTATED(POINTER_ENDS_WITH_PEER)) newest_key = k;
        *out = k;
        return TIELINE_OK;
    }
    free_key(k);
    return status ? status : fail(TIELINE_KEY_REJECTED, "no region has this key");
}

static int32_t import_key(struct tieline_endpoint *e, const struct tieline_import_params *in, struct tieline_key **out)
{
    return e->failed ? fail(e->failed, "the peer of this endpoint is gone") : import(&e->address, in, out);
}

static int32_t import_for_all(struct tieline_interface *i, const struct tieline_import_params *in, struct tieline_key **out)
{
    (void)i;
    return import(NULL, in, out);
}

static void let_go_of_key(struct tieline_key *k)
{
    k->dropped = 1; /* pending operations keep the key */
    if (!k->uses || MUTATED(KEY_FREED_AT_ONCE)) free_key(k);
}

static void drop_key(struct tieline_endpoint *e, struct tieline_key *k) { (void)e; let_go_of_key(k); }
static void drop_for_all(struct tieline_interface *i, struct tieline_key *k) { (void)i; let_go_of_key(k); }

/* The key's own mapping, which stays until the key is dropped: the file of an ended region is not reused. */
static int32_t key_pointer(struct tieline_endpoint *e, struct tieline_key *k, uint64_t offset, uint64_t len, uint8_t **out)
{
    int32_t status = e->failed;
    if (!status) status = check_key(k, offset, len, TIELINE_ACCESS_REMOTE_READ);
    if (!status && !MUTATED(POINTER_WITHOUT_RIGHTS)) status = check_key(k, offset, len, TIELINE_ACCESS_REMOTE_WRITE);
    if (status) return fail(status, "loads and stores need a key that holds, grants both, and leads so far");
    *out = k->base + (MUTATED(POINTER_FROM_START) ? 0 : offset);
    return TIELINE_OK;
}

/* ---- the domain ---- */

static void lock(struct tieline_domain *d)
{
    if (!MUTATED(REGIONS_WITHOUT_A_LOCK)) pthread_mutex_lock(&d->lock);
}

static void unlock(struct tieline_domain *d)
{
    if (!MUTATED(REGIONS_WITHOUT_A_LOCK)) pthread_mutex_unlock(&d->lock);
}

static int32_t alloc(struct tieline_domain *d, const struct tieline_alloc_params *in, struct tieline_memory_region *out)
{
    struct tieline_alloc_params params;
    struct tieline_region *r = NULL;
    uint64_t generation = 0;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0) || params.access & ~RIGHTS) return unknown(status);
    if (params.kind != TIELINE_MEMORY_KIND_HOST && !MUTATED(ANY_KIND)) return fail(TIELINE_UNSUPPORTED, "rings has memory of the host only");
    if (!params.len || params.len > SIZE_MAX / 2) return fail(TIELINE_NO_MEMORY, "no region has %zu bytes", params.len);
    while (!generation) /* a generation cannot be guessed, and is never used twice */
        if (getrandom(&generation, sizeof generation, 0) != sizeof generation) return fail(TIELINE_IO, "no random bytes");
    lock(d);
    for (size_t n = 0; n < REGIONS && !r; n++)
        if (!d->regions[n].used) r = &d->regions[n];
    int again = MUTATED(FILES_USED_AGAIN) && r && r->base && r->len == params.len;
    if (again) memset(r->base, 0, r->len);
    if (!r) {
        status = fail(TIELINE_NO_MEMORY, "all %d regions are in use", REGIONS);
    } else if (!again && !(r->base = new_file(params.len, &r->fd))) {
        status = fail(TIELINE_NO_MEMORY, "no memory file of %zu bytes: %s", params.len, strerror(errno));
    } else {
        struct row *row = &d->table->rows[r - d->regions];
        r->len = params.len, r->used = 1;
        row->len = r->len, row->access = params.access, row->fd = r->fd;
        atomic_store_explicit(&row->generation, generation, memory_order_release);
        struct tieline_memory_region region = { .size = sizeof region, .handle = r, .base = r->base, .len = r->len };
        tieline_write_record(out, &region, sizeof region);
    }
    unlock(d);
    return status;
}

static int32_t register_memory(struct tieline_domain *d, const struct tieline_register_params *in, struct tieline_memory_region *out)
{
    struct tieline_register_params params;
    struct tieline_alloc_params own = { .size = sizeof own };
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (!MUTATED(REGISTERS_A_COPY)) return fail(TIELINE_UNSUPPORTED, "rings reaches memory of its own alloc only");
    if (status) return unknown(status);
    own.len = params.len, own.access = params.access;
    if ((status = alloc(d, &own, out))) return status;
    out->base = params.base;
    return TIELINE_OK;
}

/* Keys are refused from here on. A peer that has passed its check writes to the file, which may be unused by then. */
static int32_t revoke_region(struct tieline_domain *d, struct tieline_region *r)
{
    atomic_store(&d->table->rows[r - d->regions].generation, 0);
    return TIELINE_OK;
}

static int32_t deregister(struct tieline_domain *d, struct tieline_region *r)
{
    lock(d);
    revoke_region(d, r);
    if (!MUTATED(FILES_USED_AGAIN)) munmap(r->base, r->len), close(r->fd);
    r->used = 0;
    unlock(d);
    return TIELINE_OK;
}

static int64_t pack_key(struct tieline_domain *d, const struct tieline_key_params *in, uint8_t *out, size_t capacity)
{
    struct tieline_key_params params;
    struct packed_key k = { .magic = "ringkey", .pid = getpid(), .table_fd = d->table_fd };
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0) || params.access & ~RIGHTS) return unknown(status);
    if (params.offset || params.len || params.access)
        return fail(TIELINE_UNSUPPORTED, "keys of rings lead to whole regions, with all their rights");
    memcpy(k.domain, d->table->domain, sizeof k.domain);
    k.row = (uint64_t)(params.region - d->regions);
    k.generation = atomic_load(&d->table->rows[k.row].generation);
    return write_bytes(out, capacity, &k, sizeof k);
}

static int32_t query_modules(struct tieline_domain *domain, struct tieline_module_attr *out, size_t capacity, size_t *count)
{
    const uint32_t all = ((1u << (TIELINE_ATOMIC_MAX + 1)) - 1) | NOT_YET(8);
    const struct tieline_cost small = { 60, 100, 4e9 }, bulk = { 80, 150, 8e9 };
    struct tieline_module_attr attr = {
        .size = sizeof attr, .name = "slots", .role = TIELINE_ROLE_DATA, .connects = TIELINE_CONNECTS_TO_INTERFACE,
        .caps = TIELINE_CAP_AM_SHORT | TIELINE_CAP_AM_PACKED | TIELINE_CAP_AM_ZCOPY | TIELINE_CAP_PUT | TIELINE_CAP_GET |
                TIELINE_CAP_ATOMICS | TIELINE_CAP_REMOTE_COMPLETION | TIELINE_CAP_PASSIVE_TARGET | TIELINE_CAP_PEER_FAILURE |
                TIELINE_CAP_EVENT_FD | (MUTATED(NEVER_POLLED) ? 0 : TIELINE_CAP_NEEDS_POLL) | TIELINE_CAP_LOCAL_ONLY | TIELINE_CAP_OWN_MEMORY_ONLY |
                TIELINE_CAP_CHECKS_KEYS | TIELINE_CAP_LENDS_BUFFERS | TIELINE_CAP_CONNECTED_SEND | TIELINE_CAP_KEY_POINTER |
                TIELINE_CAP_PUT_NOTIFY | TIELINE_CAP_INTERFACE_KEYS | TIELINE_CAP_CANCEL | TIELINE_CAP_FLUSH_ALL |
                TIELINE_CAP_NO_EVENT | (ODDLY(MOVES) || MUTATED(POLLED_BY_ITS_THREAD) ? TIELINE_CAP_ANY_THREAD : 0) | NOT_YET(30),
        .priority = 1, .max_iov = IOVS, .max_short = SHORT_BYTES, .max_packed = PACKED_BYTES, .max_zcopy = PACKED_BYTES,
        .max_put = RMA_BYTES, .max_get = RMA_BYTES, .notify_bits = 32,
        .atomic_post32 = all, .atomic_post64 = all, .atomic_fetch32 = all, .atomic_fetch64 = all,
        .cost = { small, bulk, small, bulk, small },
        .max_address_len = sizeof(struct address), .max_identity_len = IDENTITY,
    };
    (void)domain;
    *count = 1;
    if (capacity) tieline_write_record(out, &attr, sizeof attr);
    return TIELINE_OK;
}

static void close_domain(struct tieline_domain *d)
{
    munmap(d->table, sizeof *d->table);
    close(d->table_fd);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* ---- connections ---- */

/* An abstract name: no file is left in any directory. */
static socklen_t socket_name(struct sockaddr_un *out, const uint8_t name[16])
{
    int begin = MUTATED(FILE_LEFT_BEHIND) ? 0 : 1;
    int len = begin;
    *out = (struct sockaddr_un){ .sun_family = AF_UNIX };
    len += snprintf(out->sun_path + len, sizeof out->sun_path - len, "%srings-", begin ? "" : "/tmp/");
    for (int n = 0; n < 16; n++) len += snprintf(out->sun_path + len, sizeof out->sun_path - len, "%02x", name[n]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

static int is_same_user(int fd) /* any user can connect to an abstract name */
{
    struct ucred credentials;
    socklen_t len = sizeof credentials;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &len) && credentials.uid == geteuid();
}

static int watch(struct tieline_interface *i, int fd, struct connection *c)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };
    return epoll_ctl(i->epoll, EPOLL_CTL_ADD, fd, &event);
}

static void leave(struct connection *c, int side, uint32_t how) /* records the reason, and closes the socket */
{
    if (c->file && how) atomic_store(&c->file->parting[side], how);
    if (c->fd < 0) return;
    epoll_ctl(c->interface->epoll, EPOLL_CTL_DEL, c->fd, NULL); /* a forked child may have the socket open: close alone ends it */
    shutdown(c->fd, SHUT_RDWR);                                 /* neither for epoll nor for the peer */
    close(c->fd);
    c->fd = -1;
}

static void free_peer(struct peer *p)
{
    if (p->c.file) munmap(p->c.file, file_bytes(p->c.slots));
    free(p);
}

/* The socket of a connection has ended: the messages in the ring are read first. */
static void end(struct connection *c)
{
    leave(c, c->is_endpoint ? SENDER : RECEIVER, THERE);
    if (c->is_endpoint) {
        static const int32_t statuses[] = { TIELINE_PEER_FAILED, TIELINE_CLOSED, TIELINE_NO_MEMORY };
        struct tieline_endpoint *e = (struct tieline_endpoint *)c;
        uint32_t how = atomic_load(&c->file->parting[RECEIVER]);
        if (!e->failed) e->failed = statuses[how <= HUNG_UP ? how : THERE];
        if (MUTATED(PENDING_LOST_AT_DEATH)) drop_operations(e);
        if (MUTATED(POINTER_ENDS_WITH_PEER) && newest_key) munmap(newest_key->base, newest_key->len);
    } else {
        struct peer *p = (struct peer *)c;
        int closed = c->file && atomic_load(&c->file->parting[SENDER]) == CLOSED;
        if (!p->status && !closed && !MUTATED(DEATH_IN_GOOD_ORDER)) p->status = TIELINE_PEER_FAILED;
        if (c->file && (closed ? MUTATED(DROPPED_BEFORE_CLOSE) : MUTATED(DROPPED_BEFORE_DEATH)))
            c->read = atomic_load(&c->file->full.tail);
        p->ended = 1;
        for (uint32_t n = 0; MUTATED(ONE_END_IS_ALL_ENDS) && n < c->interface->peer_count; n++) {
            struct peer *other = c->interface->peers[n];
            if (other && !other->ended && other->identity_len == p->identity_len &&
                !memcmp(other->identity, p->identity, p->identity_len))
                end(&other->c);
        }
    }
}

/* Reads the greeting. Returns 1, or 0 if there is none yet or the connection is refused. */
static int greet(struct peer *p)
{
    struct greeting greeting;
    union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int))]; } control;
    struct iovec iov = { &greeting, sizeof greeting };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    struct cmsghdr *first;
    const size_t fixed = offsetof(struct greeting, identity);
    int fd = -1;
    ssize_t len;
    do len = recvmsg(p->c.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (len < 0 && (errno == EINTR || errno == ECONNRESET)); /* reset: the peer closed with unread data; the end follows */
    if (len < 0 && errno == EAGAIN) return 0;
    first = len > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (first && first->cmsg_type == SCM_RIGHTS && first->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(first), sizeof fd);
    if (len >= (ssize_t)fixed && !memcmp(greeting.magic, "ringsV1", 8) && greeting.slots >= LEAST_SLOTS &&
        greeting.slots <= MOST_SLOTS && greeting.identity_len <= IDENTITY && (size_t)len == fixed + greeting.identity_len) {
        p->c.slots = greeting.slots, p->identity_len = greeting.identity_len;
        memcpy(p->identity, greeting.identity, greeting.identity_len);
        p->c.file = map_file(fd, file_bytes(greeting.slots), PROT_READ | PROT_WRITE);
        fd = -1;
    }
    if (fd >= 0) close(fd);
    if (!p->c.file) end(&p->c);
    return p->c.file != NULL;
}

/* Reads a socket: doorbells, which have had their effect, and its end. */
static void listen_to(struct connection *c)
{
    if (!c->file && !greet((struct peer *)c)) return;
    for (int n = 0; n < 16; n++) {
        char word;
        ssize_t len = recv(c->fd, &word, 1, MSG_DONTWAIT);
        if (len == 1 && word == NO_ROOM && c->is_endpoint) ((struct tieline_endpoint *)c)->failed = TIELINE_NO_MEMORY;
        if (len > 0 || (len < 0 && (errno == EINTR || errno == ECONNRESET))) continue;
        if (len < 0 && errno == EAGAIN) return;
        end(c);
        return;
    }
}

static uint32_t count_peers(const struct tieline_interface *i)
{
    uint32_t count = 0;
    for (uint32_t n = 0; n < i->peer_count; n++) count += i->peers[n] && !i->peers[n]->left;
    return count;
}

static int accept_peer(struct tieline_interface *i)
{
    uint32_t limit = MUTATED(NINTH_PEER_REFUSED) ? 8 : i->domain->settings.peers - MUTATED(ONE_LESS_THAN_SET), place = 0;
    struct peer *p;
    int fd = accept4(i->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return errno == EINTR || errno == ECONNABORTED;
    while (place < limit && i->peers[place]) place++;
    p = place < limit && is_same_user(fd) ? calloc(1, sizeof *p) : NULL;
    if (!p) {
        struct connection c = { .interface = i, .fd = fd };
        say(&c, NO_ROOM);
        leave(&c, RECEIVER, THERE);
        return 1;
    }
    p->c = (struct connection){ .interface = i, .fd = fd };
    p->number = i->next_number++; /* never reused: events of two peers cannot be confused */
    if (MUTATED(ONE_NUMBER_FOR_ALL_PEERS)) p->number = 0;
    if (MUTATED(NUMBER_IS_A_COUNT)) p->number = count_peers(i);
    if (watch(i, fd, &p->c)) {
        close(fd);
        free(p);
        return 1;
    }
    i->peers[place] = p;
    if (place >= i->peer_count) i->peer_count = place + 1;
    listen_to(&p->c); /* usually the greeting has arrived */
    return 1;
}

static void look_at_sockets(struct tieline_interface *i)
{
    struct epoll_event ready[16];
    int count = epoll_wait(i->epoll, ready, 16, 0);
    for (int n = 0; n < count; n++) {
        uint64_t woken;
        if (ready[n].data.ptr) {
            listen_to(ready[n].data.ptr);
            continue;
        }
        (void)!read(i->wake, &woken, sizeof woken);
        for (int accepted = 0; accepted < 16 && accept_peer(i); accepted++)
            ;
    }
}

/* ---- polling ---- */

static struct tieline_event words(uint32_t kind, int32_t status)
{
    const char *text = status == TIELINE_OK ? "" : status == TIELINE_CLOSED ? "the peer has closed the connection" :
        status == TIELINE_NO_MEMORY ? "the peer has no room for this connection (TIELINE_RINGS_PEERS), or has hung up" :
        status == TIELINE_BAD_DATA ? "the peer has written what is no message" :
        status == TIELINE_KEY_REJECTED ? "the key was revoked" : status == TIELINE_CANCELED ? "it was taken back" :
        "the peer's process is gone";
    return (struct tieline_event){ .kind = kind, .status = status, .data = (const uint8_t *)text, .len = strlen(text) };
}

static void give_back(struct peer *p, uint32_t slot) { push(&p->c, &p->c.file->empty, slot); }

static uint32_t poll_peer(struct tieline_interface *i, uint32_t place, struct tieline_event *out, uint32_t n, uint32_t most)
{
    struct peer *p = i->peers[place];
    uint32_t number;
    if (p->left || !p->c.file) {
        if ((p->left && !p->lent) || (p->ended && !p->c.file)) {
            i->peers[place] = NULL;
            free_peer(p); /* the peer's payloads of the previous poll have been released */
            if (MUTATED(WATCH_WORD_OF_A_LEAVER) && i->watch.words[0].at) i->watch.count = 1;
        }
        return n;
    }
    if (!p->arrived && n < most) {
        p->arrived = 1;
        out[n++] = (struct tieline_event){ .kind = TIELINE_EVENT_PEER_ARRIVED, .peer = p->number, .data = p->identity,
                                           .len = p->identity_len };
    }
    while (p->arrived && n < most && p->status != TIELINE_BAD_DATA && pop(&p->c, &p->c.file->full, &number)) {
        const volatile struct slot *s = &p->c.file->slots[number];
        uint32_t len = number < p->c.slots ? s->len : UINT32_MAX; /* read once: the peer can write it at any time */
        if (len > SLOT_BYTES) {
            p->status = TIELINE_BAD_DATA;
            end(&p->c);
            break;
        }
        struct tieline_event before = out[n];
        out[n] = (struct tieline_event){ .kind = s->told ? TIELINE_EVENT_NOTIFIED : TIELINE_EVENT_MESSAGE, .id = s->id, .peer = p->number, .header = s->header,
                                         .data = (const uint8_t *)s->data, .len = len };
        if (MUTATED(EVENT_HALF_WRITTEN)) out[n].status = before.status, out[n].reserved = before.reserved;
        if (len >= LEND_FROM && p->lent < p->c.slots / 2) { /* a core that keeps many payloads must not block other peers */
            out[n].flags = TIELINE_EVENT_FLAG_LENT;
            out[n].cookie = (uint64_t)place << 32 | number;
            p->lent++;
            if (MUTATED(LENT_PAYLOAD_RELEASED_BY_POLL)) i->shown[i->shown_count++] = (struct shown){ p, number };
        } else if (MUTATED(PAYLOAD_RELEASED_EARLY)) {
            give_back(p, number);
        } else {
            i->shown[i->shown_count++] = (struct shown){ p, number };
        }
        n++;
    }
    if (p->arrived && n < most && p->ended && (p->status == TIELINE_BAD_DATA || is_empty(&p->c, &p->c.file->full))) {
        p->left = 1;
        if (MUTATED(PEER_LEFT_NEVER)) return n;
        out[n] = words(TIELINE_EVENT_PEER_LEFT, p->status);
        out[n++].peer = p->number;
    }
    return n;
}

static uint32_t poll_peers(struct tieline_interface *i, struct tieline_event *out, uint32_t n, uint32_t most)
{
    uint32_t count = i->peer_count, first = i->first++;
    for (uint32_t at = 0; at < count; at++) {
        uint32_t place = (first + at) % count; /* the order rotates, so no peer is always the last */
        if (i->peers[place]) n = poll_peer(i, place, out, n, most);
    }
    return n;
}

/* Returns the operation to complete next, which is the oldest; null if there is none. */
static struct operation *next_operation(struct tieline_interface *i)
{
    struct operation *next = NULL;
    for (uint64_t n = i->head; n != i->tail && MUTATED(SILENT_ENDS_LATE); n++)
        if (operation_at(i, n)->open && !operation_at(i, n)->silent) return operation_at(i, n);
    if (i->head != i->tail && !ODDLY(LATE_AND_OUT_OF_ORDER)) return operation_at(i, i->head);
    for (uint64_t n = i->head; n != i->tail; n++) {
        struct operation *o = operation_at(i, n);
        int waits = 0; /* a flush: for earlier operations of its endpoint or of all; one with an event: for earlier silent ones */
        for (uint64_t before = i->head; before != n; before++) {
            const struct operation *b = operation_at(i, before);
            if (b->open && (o->kind == FLUSH_ALL || b->endpoint == o->endpoint))
                waits |= o->kind == FLUSH_ALL || o->kind == FLUSH || (b->silent && !o->silent);
        }
        if (o->open && o->due <= i->polls && !waits) next = o;
    }
    return next;
}

static uint32_t poll_operations(struct tieline_interface *i, struct tieline_event *out, uint32_t n, uint32_t most)
{
    struct operation *o;
    for (int ran = 0; n < most && ran < OPERATIONS_AT_ONCE && (o = next_operation(i)); ran++) {
        run(o);
        if (!o->silent || (o->status && !MUTATED(FAILURE_WITHOUT_EVENT))) {
            out[n] = words(TIELINE_EVENT_COMPLETION, o->status);
            out[n].cookie = o->cookie;
            out[n++].header = o->status ? 0 : o->value;
        }
        let_go(i, o);
    }
    return n;
}

/* Updates endpoints that wait for room, and reports failed ones once their pending operations have ended. */
static uint32_t poll_endpoints(struct tieline_interface *i, struct tieline_event *out, uint32_t n, uint32_t most)
{
    for (struct tieline_endpoint *e = i->endpoints; e; e = e->next) {
        if (e->wants_room && !is_empty(&e->c, &e->c.file->empty)) e->wants_room = 0;
        e->odd_again = 0;
        if (!e->failed || e->told >= (MUTATED(ENDPOINT_FAILED_TWICE) ? 2 : 1) || n == most || has_operations(e)) continue;
        e->told++;
        if (MUTATED(ENDPOINT_FAILED_NEVER)) continue;
        out[n] = words(TIELINE_EVENT_ENDPOINT_FAILED, e->failed);
        out[n++].cookie = e->cookie;
    }
    return n;
}

/* Lists the words that messages change. The list stays empty while the next poll has something else to do. */
static void list_words(struct tieline_interface *i)
{
    uint64_t count = 0;
    if (i->head != i->tail) return; /* polls carry out the operations */
    for (struct tieline_endpoint *e = i->endpoints; e; e = e->next)
        if (e->failed && !e->told) return;
    for (uint32_t n = 0; n < i->peer_count; n++) {
        struct peer *p = i->peers[n];
        struct ring *ring;
        uint64_t seen;
        uint32_t tail;
        if (!p) continue;
        if (count == 8 || !p->c.file || !p->arrived || p->ended || p->left) return;
        ring = MUTATED(WATCHES_THE_FREE_SLOTS) ? &p->c.file->empty : &p->c.file->full;
        seen = atomic_load_explicit(&ring->both, memory_order_acquire);
        memcpy(&tail, &seen, sizeof tail); /* the first half */
        if (ring == &p->c.file->full && tail != p->c.read) return;
        i->watch.words[count].at = (const uint64_t *)(const void *)((const uint8_t *)&ring->both + MUTATED(WATCH_WORD_ODD));
        i->watch.words[count++].seen = seen;
    }
    i->watch.count = count;
}

static const struct tieline_watch_list *watch_words(struct tieline_interface *i)
{
    i->watches = 1;
    i->watch.size = sizeof i->watch;
    return &i->watch;
}

static _Thread_local int opened_here; /* POLLED_BY_ITS_THREAD */

static int64_t poll_interface(struct tieline_interface *i, struct tieline_event *out, uint32_t capacity)
{
    uint32_t n = 0, most = capacity < EVENTS ? capacity : EVENTS;
    while (i->shown_count) { /* releases the payloads of the previous call */
        struct shown *s = &i->shown[--i->shown_count];
        give_back(s->peer, s->slot);
    }
    if (MUTATED(POLLED_BY_ITS_THREAD) && !opened_here) return 0;
    /* a poll that follows a list stands for up to TIELINE_WATCH_CALLS polls */
    if (i->armed || i->watch.count || i->polls % POLLS_PER_LOOK == 0) look_at_sockets(i);
    i->armed = 0;
    i->watch.count = 0;
    if (i->polls++ % 2) n = poll_peers(i, out, n, most); /* the order alternates, so neither uses up the other's room */
    n = poll_operations(i, out, n, most);
    n = poll_endpoints(i, out, n, most);
    if (i->polls % 2) n = poll_peers(i, out, n, most);
    if (MUTATED(ALLOCATION_PER_POLL)) i->leak = malloc(64);
    if (!n && i->watches && !i->watch.count) list_words(i);
    return n;
}

static int has_events(struct tieline_interface *i)
{
    if (has_completions(i)) return 1;
    for (uint32_t n = 0; n < i->peer_count; n++) {
        struct peer *p = i->peers[n];
        if (p && !p->left && p->c.file && (!p->arrived || p->ended || !is_empty(&p->c, &p->c.file->full))) return 1;
    }
    for (struct tieline_endpoint *e = i->endpoints; e; e = e->next)
        if ((e->failed && !e->told) || e->odd_again || (e->wants_room && !is_empty(&e->c, &e->c.file->empty))) return 1;
    return 0;
}

/* A writer writes the slot number and then reads `asleep`; here the order is reversed, so at least one side sees the other. */
static int32_t arm(struct tieline_interface *i)
{
    if (MUTATED(FLAG_BEHIND_THE_CHECK)) {
        if (has_events(i)) return 1;
        look_at_sockets(i); /* reads old doorbells, so that they do not wake */
    }
    for (uint32_t n = 0; n < i->peer_count; n++)
        if (i->peers[n] && i->peers[n]->c.file) atomic_store(&i->peers[n]->c.file->full.asleep, 1);
    for (struct tieline_endpoint *e = i->endpoints; e; e = e->next)
        if (e->wants_room && !MUTATED(ROOM_WAKES_NOBODY)) atomic_store(&e->c.file->empty.asleep, 1);
    i->armed = 1;
    atomic_thread_fence(memory_order_seq_cst);
    return !MUTATED(FLAG_BEHIND_THE_CHECK) && has_events(i);
}

static int32_t event_fd(struct tieline_interface *i) { return i->epoll; }

static void release(struct tieline_interface *i, uint64_t cookie)
{
    struct peer *p = i->peers[cookie >> 32]; /* the peer keeps its entry until all payloads are released */
    p->lent--;
    give_back(p, (uint32_t)cookie);
}

static int32_t hang_up(struct tieline_interface *i, uint64_t number)
{
    for (uint32_t n = 0; n < i->peer_count; n++) {
        struct peer *p = i->peers[n];
        if (!p || (p->number != number && !MUTATED(HANGS_UP_ALL)) || p->left) continue;
        if (!MUTATED(HUNG_UP_UNTOLD)) leave(&p->c, RECEIVER, HUNG_UP);
        p->left = !MUTATED(HUNG_UP_AND_HEARD); /* no further messages of the peer are delivered */
    }
    return TIELINE_OK;
}

/* ---- interface and endpoint ---- */

static void close_interface(struct tieline_interface *i)
{
    for (int n = 0; n < BACKLOG && i->listener >= 0 && accept_peer(i); n++)
        ; /* peers that have connected and were not read yet learn of an orderly close */
    for (uint32_t n = 0; n < i->peer_count; n++) {
        if (!i->peers[n]) continue;
        leave(&i->peers[n]->c, RECEIVER, CLOSED);
        free_peer(i->peers[n]);
    }
    if (i->listener >= 0) close(i->listener);
    if (i->epoll >= 0) close(i->epoll);
    if (i->wake >= 0) close(i->wake);
    free(i->peers);
    free(i);
}

static int here(struct address *a) /* writes this process's kernel and namespaces; returns 0, or -1 */
{
    struct stat network, processes;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : read(fd, a->boot, 36);
    if (fd >= 0) close(fd);
    if (len != 36 || stat("/proc/self/ns/net", &network) || stat("/proc/self/ns/pid", &processes)) return -1;
    a->network = network.st_ino, a->processes = processes.st_ino;
    return 0;
}

static int32_t open_interface(struct tieline_domain *d, const struct tieline_interface_params *in,
                              struct tieline_interface **out)
{
    struct tieline_interface_params params;
    struct tieline_interface *i;
    struct sockaddr_un name;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (params.module_len != 5 || memcmp(params.module, "slots", 5))
        return fail(TIELINE_NO_DEVICE, "the only module is `slots`");
    if (!(i = calloc(1, sizeof *i)) || !(i->peers = calloc(d->settings.peers, sizeof *i->peers))) {
        free(i);
        return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    }
    i->domain = d;
    i->address = (struct address){ .magic = "ringadr", .pid = getpid(), .table_fd = d->table_fd };
    memcpy(i->address.domain, d->table->domain, sizeof i->address.domain);
    i->listener = socket(AF_UNIX, SOCKETS, 0);
    i->epoll = epoll_create1(EPOLL_CLOEXEC);
    i->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (i->listener < 0 || i->epoll < 0 || i->wake < 0 || here(&i->address) ||
        getrandom(i->address.name, sizeof i->address.name, 0) != sizeof i->address.name ||
        bind(i->listener, (struct sockaddr *)&name, socket_name(&name, i->address.name)) || listen(i->listener, BACKLOG) ||
        watch(i, i->listener, NULL) || watch(i, i->wake, NULL)) {
        fail(TIELINE_IO, "no socket to listen on: %s", strerror(errno));
        close_interface(i);
        return TIELINE_IO;
    }
    opened_here = 1;
    *out = i;
    return TIELINE_OK;
}

static int64_t interface_address(struct tieline_interface *i, uint8_t *out, size_t capacity)
{
    return write_bytes(out, capacity, &i->address, sizeof i->address);
}

static int32_t is_reachable(struct tieline_interface *i, const uint8_t *bytes, size_t len, struct address *a)
{
    if (len != sizeof *a) return fail(TIELINE_UNREACHABLE, "an address of rings has %zu bytes, not %zu", sizeof *a, len);
    memcpy(a, bytes, len);
    if (memcmp(a->magic, "ringadr", 8)) return fail(TIELINE_UNREACHABLE, "that is no address of rings");
    if (memcmp(a->boot, i->address.boot, sizeof a->boot) && !MUTATED(FOREIGN_KERNEL_IS_REACHABLE))
        return fail(TIELINE_UNREACHABLE, "the peer runs under another kernel, and rings does not leave its own");
    if (a->network != i->address.network)
        return fail(TIELINE_UNREACHABLE, "the peer is in another network namespace: start both in one");
    if (a->processes != i->address.processes)
        return fail(TIELINE_UNREACHABLE, "the peer is in another namespace of process numbers: start both in one");
    return TIELINE_OK;
}

static int32_t reachable(struct tieline_interface *i, const uint8_t *address, size_t len)
{
    struct address a;
    return is_reachable(i, address, len, &a);
}

/* Passes the memory file to the peer. Returns 0, or a status. */
static int32_t send_greeting(struct tieline_endpoint *e, int file, const uint8_t *identity, size_t identity_len)
{
    struct greeting greeting = { .magic = "ringsV1", .slots = e->c.slots, .identity_len = (uint32_t)identity_len };
    union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int))]; } control = { .bytes = { 0 } };
    struct iovec iov = { &greeting, offsetof(struct greeting, identity) + identity_len };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS, rights->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(rights), &file, sizeof file);
    if (identity_len) memcpy(greeting.identity, identity, identity_len);
    if (MUTATED(IDENTITY_CUT_AT_255) && identity_len > 255)
        greeting.identity_len = 255, iov.iov_len = offsetof(struct greeting, identity) + 255;
    if (sendmsg(e->c.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return TIELINE_OK;
    return fail(errno == EAGAIN ? TIELINE_AGAIN : TIELINE_UNREACHABLE, "the peer takes no greeting: %s", strerror(errno));
}

static void close_endpoint(struct tieline_endpoint *e)
{
    struct tieline_interface *i = e->c.interface;
    struct tieline_endpoint **link = &i->endpoints;
    while (*link && *link != e) link = &(*link)->next;
    if (*link) *link = e->next;
    drop_operations(e);
    leave(&e->c, SENDER, CLOSED); /* the peer still reads the ring: it has the file or finds the file in the socket */
    if (e->c.file && !MUTATED(MAPPING_LEFT_AT_CLOSE)) munmap(e->c.file, file_bytes(e->c.slots));
    free(e);
}

static int32_t connect_endpoint(struct tieline_interface *i, const struct tieline_endpoint_params *in,
                                struct tieline_endpoint **out)
{
    struct tieline_endpoint_params params;
    struct tieline_endpoint *e;
    struct address address;
    struct sockaddr_un name;
    socklen_t name_len;
    int file = -1;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if ((status = is_reachable(i, params.address, params.address_len, &address))) return status; /* the text is set */
    if (params.identity_len > IDENTITY) return fail(TIELINE_TOO_LARGE, "the identity is longer than %d bytes", IDENTITY);
    if (!(e = calloc(1, sizeof *e))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    e->c = (struct connection){ .interface = i, .slots = i->domain->settings.slots, .fd = -1, .is_endpoint = 1 };
    e->address = address, e->cookie = params.cookie, e->polls = i->polls;
    while (e->free_slots < e->c.slots) e->free[e->free_slots] = e->c.slots - 1 - e->free_slots, e->free_slots++;
    name_len = socket_name(&name, address.name);
    e->c.fd = socket(AF_UNIX, SOCKETS, 0);
    if (e->c.fd < 0) status = fail(TIELINE_NO_MEMORY, "no socket: %s", strerror(errno));
    else if (connect(e->c.fd, (struct sockaddr *)&name, name_len)) /* does not wait for the peer to accept the connection */
        status = fail(errno == EAGAIN ? TIELINE_AGAIN : TIELINE_UNREACHABLE, "the peer is not there: %s", strerror(errno));
    else if (!is_same_user(e->c.fd)) status = fail(TIELINE_PERMISSION, "the peer belongs to another user");
    else if (!(e->c.file = new_file(file_bytes(e->c.slots), &file)))
        status = fail(TIELINE_NO_MEMORY, "no memory file: %s", strerror(errno));
    else if (watch(i, e->c.fd, &e->c)) status = fail(TIELINE_NO_MEMORY, "epoll: %s", strerror(errno));
    else status = send_greeting(e, file, params.identity, params.identity_len);
    if (MUTATED(CONNECT_WAITS) && !status) poll(&(struct pollfd){ .fd = e->c.fd, .events = POLLIN }, 1, 300);
    if (file >= 0) close(file);
    if (status) {
        close_endpoint(e);
        return status;
    }
    e->next = i->endpoints;
    i->endpoints = e;
    *out = e;
    return TIELINE_OK;
}

static int32_t memory_use(struct tieline_interface *i, struct tieline_memory_use *out)
{
    struct tieline_memory_use use = { .size = sizeof use,
                                      .base_bytes = sizeof *i + i->domain->settings.peers * sizeof *i->peers };
    for (struct tieline_endpoint *e = i->endpoints; e; e = e->next, use.peers++)
        use.peer_bytes += sizeof *e + sizeof(struct file), use.buffer_bytes += e->c.slots * sizeof(struct slot);
    use.peer_bytes += count_peers(i) * sizeof(struct peer), use.peers += count_peers(i);
    tieline_write_record(out, &use, sizeof use);
    return TIELINE_OK;
}

static const struct tieline_domain_ops domain_ops = {
    .size = sizeof domain_ops, .close = close_domain, .query_modules = query_modules, .open_interface = open_interface,
    .alloc = alloc, .register_ = register_memory, .deregister = deregister, .pack_key = pack_key, .revoke = revoke_region };
static const struct tieline_interface_ops interface_ops = {
    .size = sizeof interface_ops, .poll = poll_interface, .close = close_interface, .address = interface_address,
    .reachable = reachable, .connect = connect_endpoint, .arm = arm, .event_fd = event_fd, .release = release,
    .memory = memory_use, .hang_up = hang_up, .import_key = import_for_all, .drop_key = drop_for_all,
    .flush = flush_interface, .watch = watch_words };
static const struct tieline_endpoint_ops endpoint_ops = {
    .size = sizeof endpoint_ops, .am_short = am_short, .am_packed = am_packed, .am_zcopy = am_zcopy, .put = put, .get = get,
    .atomic = atomic_operation, .flush = flush, .fence = fence, .close = close_endpoint, .import_key = import_key,
    .drop_key = drop_key, .put_notify = put_notify, .key_pointer = key_pointer, .cancel = cancel, .limits = limits };

/* ---- the provider ---- */

static int32_t query_domains(struct tieline_state *state, struct tieline_domain_attr *out, size_t capacity, size_t *count)
{
    struct tieline_domain_attr attr = { .size = sizeof attr, .name = "rings", .caps = TIELINE_MEMORY_CAP_ALLOC,
                                        .max_key_len = sizeof(struct packed_key), .register_ns = 5000 };
    (void)state;
    *count = 1;
    if (capacity) tieline_write_record(out, &attr, sizeof attr);
    return TIELINE_OK;
}

static int32_t open_domain(struct tieline_state *state, const struct tieline_domain_params *in, struct tieline_domain **out)
{
    struct tieline_domain_params params;
    struct tieline_domain *d;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (params.name_len != 5 || memcmp(params.name, "rings", 5))
        return fail(TIELINE_NO_DEVICE, "the only domain is `rings`");
    if (!(d = calloc(1, sizeof *d))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    if (!(d->table = new_file(sizeof *d->table, &d->table_fd))) {
        free(d);
        return fail(TIELINE_NO_MEMORY, "no memory file for the table of regions: %s", strerror(errno));
    }
    d->settings = state->settings;
    pthread_mutex_init(&d->lock, NULL);
    if (getrandom(d->table->domain, 16, 0) != 16) {
        close_domain(d);
        return fail(TIELINE_IO, "no random bytes");
    }
    *out = d;
    return TIELINE_OK;
}

static int64_t last_error(struct tieline_state *state, uint8_t *out, size_t capacity)
{
    (void)state;
    return write_bytes(out, capacity, why, strlen(why));
}

static void quiesce(struct tieline_state *state) { free(state); }

#define TEXT(text) (const uint8_t *)(text), strlen(text)
#define HOST_HAS(host, slot) ((host)->size >= offsetof(struct tieline_host, slot) + sizeof (host)->slot && (host)->slot)

/* Reads the value of a variable; a host too old for variables leaves the default. */
static uint64_t setting(const struct tieline_host *host, const struct tieline_config_var *var, uint64_t or_else)
{
    struct tieline_config_value value = { .size = sizeof value };
    if (MUTATED(SETTINGS_IGNORED) || !HOST_HAS(host, config_get)) return or_else;
    return host->config_get(host->context, var->name, var->name_len, &value) ? or_else : value.number;
}

int32_t tieline_provider_v1(const struct tieline_host *host, struct tieline_provider_ops *out)
{
    const struct tieline_config_var ring_size = {
        .size = sizeof ring_size, .name = TEXT("TIELINE_RINGS_RING_SIZE"), .default_value = TEXT(DEFAULT_RING_SIZE),
        .doc = TEXT("Bytes of messages that are on their way to one peer, 4k for each."), .kind = TIELINE_CONFIG_SIZE,
        .least = LEAST_SLOTS * SLOT_BYTES, .most = MOST_SLOTS * SLOT_BYTES };
    const struct tieline_config_var peers = {
        .size = sizeof peers, .name = TEXT("TIELINE_RINGS_PEERS"), .default_value = TEXT("1024"),
        .doc = TEXT("The most peers whose messages an interface takes."), .kind = TIELINE_CONFIG_COUNT,
        .least = 1, .most = MOST_PEERS };
    const struct tieline_config_var variables[] = { ring_size, peers };
    struct tieline_state *state;
    int32_t status;
    if (!host || !out) return TIELINE_INVALID;
    if (HOST_HAS(host, config_declare)) { /* the host checks the values, and has the error text */
        status = host->config_declare(host->context, variables, sizeof variables / sizeof *variables);
        if (status) return status;
    }
    if (!(state = calloc(1, sizeof *state))) { /* an operator reads this text */
        struct tieline_async_event event = { .size = sizeof event, .kind = TIELINE_ASYNC_MESSAGE,
                                             .status = TIELINE_NO_MEMORY, .text = TEXT("malloc has no memory") };
        if (HOST_HAS(host, async_event)) host->async_event(host->context, &event);
        return TIELINE_NO_MEMORY;
    }
    state->settings.slots = (uint32_t)(setting(host, &ring_size, ODDLY(LEAST_LIMITS) ? 8 << 10 : 256 << 10) / SLOT_BYTES);
    state->settings.peers = (uint32_t)setting(host, &peers, 1024);
    struct tieline_provider_ops ops = {
        .abi_minor = TIELINE_ABI_MINOR, .state = state, .query_domains = query_domains, .open_domain = open_domain,
        .last_error = last_error, .quiesce = quiesce,
        .domain = &domain_ops, .interface = &interface_ops, .endpoint = &endpoint_ops };
    tieline_write_record(out, &ops, sizeof ops);
    out->size = sizeof ops;
    return TIELINE_OK;
}
