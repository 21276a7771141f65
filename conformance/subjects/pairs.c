/*
 * A provider in C that connects to endpoints, for the processes of one host.
 *
 *     cc -std=c11 -Wall -Wextra -Werror -shared -fPIC -I include -o libtieline_pairs.so conformance/subjects/pairs.c
 *
 * An endpoint has two sockets with separate names in the abstract namespace (SOCK_SEQPACKET): one listens, the other connects to
 * the peer's listener. So each of two peers sends over a connection that it has made itself. It may send before the other one
 * has called connect (the kernel keeps the packets), and identifies a peer by the name of the connecting socket.
 *
 * Messages are packets. Put, get and atomics are requests, which the target's poll carries out on the memory of its domain and
 * answers; the answer completes the operation by an event. A post that finds no room returns AGAIN. An answer without room waits
 * in a bounded queue, and a message that was packed before the room was used up in a buffer of the endpoint. A close sends a last
 * packet, BYE: a connection that ends without it has lost its process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "tieline_provider.h"

/*
 * Mutations: common mistakes in such a provider that docs/abi.md or docs/writing-a-provider.md forbid. -DMUTATION=NAME selects
 * one; a suite that passes it has a gap. -DODD=NAME selects an unusual but correct behaviour.
 */
#define MUTATIONS(M) \
    M(REVOKE_UNHEEDED, "A revoked key works until the region is deregistered.") \
    M(REVOKED_ONCE, "A second revoke of the same region is refused.") \
    M(FOREIGN_KEY_TAKEN, "Only slot and generation of a key are compared: a key of another domain may match.") \
    M(RANGE_WRAPS, "The sum of offset and length is compared with the region's length, and wraps.") \
    M(LAST_BYTE_REFUSED, "The last byte of a region cannot be accessed.") \
    M(MINIMUM_SIGNED, "Minimum of 64 bits compares signed numbers.") \
    M(ATOMIC_IN_TWO_STEPS, "Atomics read, change and write, so that another interface's change in between is lost.") \
    M(ATOMIC_BY_WRITE_RIGHT, "Atomics require the right to write.") \
    M(NO_WAKE_FOR_ROOM, "Packets that wait for room in a socket are not sent when there is room: there is no wake-up.") \
    M(LAST_PIECE_DROPPED, "With max_iov pieces the last one is not sent.") \
    M(GET_CHECKED_ON_ARRIVAL, "A get whose answer has to wait is checked on arrival, and reads without a check when there is room.") \
    M(NO_TIMER, "There is no wake-up for the connect timeout, nor for the retry of a full listener.") \
    M(STRANGER_ADMITTED, "The first process to connect is accepted as the peer.") \
    M(EDGE_TRIGGERED, "Packets that a poll leaves in a socket neither wake nor are read before more arrive.") \
    M(EARLY_MESSAGES_LOST, "Messages that the peer sent before connect was called here are dropped.") \
    M(REFUSED_NEVER_ENDS, "An endpoint whose connection was refused never fails.") \
    M(PIECES_FROM_START, "Every piece of a get is filled with the first bytes of the answer.") \
    M(RESULT_WRITTEN_LATE, "The fetched value is also written through op->result when the answer comes.") \
    M(PLACE_LEAKS, "A failed operation keeps its slot in the window: once all are used the endpoint returns AGAIN for ever.") \
    M(PEER_OF_NEWEST, "All messages of an interface carry the cookie of its newest endpoint.") \
    M(RANGE_ENDS_CONNECTION, "An operation outside of the region ends the connection.") \
    M(SCRATCH_SHARED, "All interfaces of the process receive into the same buffers.") \
    M(PAYLOADS_SHARE_BUFFERS, "The ninth message of one poll overwrites the payload of the first.") \
    M(DEATH_IN_GOOD_ORDER, "The death of a peer's process looks like an orderly close.") \
    M(LOST_AT_CAPACITY, "A poll that has filled its events reads one packet more, and loses it.") \
    M(END_OVERTAKES, "The end of the peer is reported before its last messages, which are lost.") \
    M(FAILS_TWICE, "ENDPOINT_FAILED comes twice.") \
    M(SILENT_AT_DEATH, "The operations of a failed endpoint never complete.") \
    M(ARM_FORGETS_ENDED, "arm does not check endpoints whose end no socket will report again.") \
    M(ENDED_IS_AGAIN, "Posting to a failed endpoint returns AGAIN.") \
    M(PACKER_HOLDS_INTERFACE, "While a packer runs, every endpoint of the interface returns AGAIN.") \
    M(OVERTAKES_PACKED, "A later message overtakes a packed one that waits for room.") \
    M(LONGEST_REFUSED, "am_short refuses a payload of exactly max_short.") \
    M(EMPTY_MESSAGE_LOST, "A message without payload is sent by am_zcopy and never delivered.") \
    M(HEADER_CUT, "am_zcopy sends only the lower half of the header.") \
    M(PIECES_READ_LATE, "am_zcopy returns OK without room, and reads the pieces when there is room.") \
    M(PACKS_OVER_PAYLOAD, "am_packed packs into the buffer of a message that the last poll has delivered.") \
    M(PACKERS_ERROR_CHANGED, "The packer's own error is not returned unchanged.") \
    M(AGAIN_AFTER_PACKING, "am_packed returns AGAIN for lack of room after it has called the packer.") \
    M(LEAKS_PER_GET, "Every get leaks 256 bytes.") \
    M(HINTS_REFUSED, "An unknown hint in the flags of put and get is refused.") \
    M(FLUSH_HIDES_FAILURE, "flush of a failed endpoint returns OK.") \
    M(FLUSH_FOR_GETS_ONLY, "flush returns OK immediately if no get is in flight.") \
    M(FENCE_IDLE, "fence does nothing: an earlier get may be carried out after a later put.") \
    M(KEY_LEAKS, "drop_key frees nothing.") \
    M(LENGTH_CUT, "Slots that write bytes return the number of bytes written, not the whole length.") \
    M(CONNECT_TAKES_UNKNOWN, "An unknown field behind connect's parameters is ignored.") \
    M(COMPLETES_AFTER_CLOSE, "An operation that was pending when its endpoint was closed still completes, as CANCELED.") \
    M(LISTENER_LEAKS, "The descriptor of an endpoint that was never connected stays open.") \
    M(CLOSES_WITHOUT_WORD, "A closed endpoint looks to its peer as if its process had died.") \
    M(CLOSE_DROPS_PACKED, "A packed message that waits for room is dropped by the close of its endpoint.") \
    M(HOST_SIZE_UNREAD, "A slot of the host's table is called without a check of the table's size.") \
    M(CLOSE_HURRIES, "The interface's close does not wait for accepted packets that are not sent.") \
    M(CLOSE_WAITS_FOR_EVER, "The interface's close waits without limit for a peer that does not poll.") \
    M(UNREACHABLE_WITHOUT_WORDS, "reachable refuses without its own text in last_error.") \
    M(RECORD_WRITTEN_WHOLE, "memory writes its whole record, even if the caller's is shorter.") \
    M(REGISTERS_UNLOCKED, "Two threads that register at the same time may get the same slot.") \
    M(GENERATION_REUSED, "A region in the slot of a former one has the same key.") \
    M(ALLOC_NOT_ZEROED, "alloc reuses freed memory without zeroing it.") \
    M(RIGHTS_AS_HINTS, "An unknown right in the upper half is ignored, as if it were a hint.") \
    M(BUSY_IGNORED, "deregister and revoke return OK during a peer's access.") \
    M(ALLOC_LEAKS, "deregister does not return memory of alloc to the system.") \
    M(SETTING_FROM_ENVIRONMENT, "Settings are read from the environment, and not through the host.") \
    M(SETTING_UNDECLARED, "Settings are read and not declared.") \
    M(SETTING_OF_ANOTHER, "The length of a packet is the value of the window.") \
    M(BAD_SETTING_DEFAULTS, "A value that the host refuses is replaced by the default.") \
    M(ERROR_OF_ALL_THREADS, "last_error is that of the thread that failed last.") \
    M(STATE_SHARED, "All contexts of a process share one state: the last one's settings hold for all.") \
    M(CREDIT_TWICE, "The end of a get frees two slots of the window.") \
    M(ANSWER_DROPPED, "An answer that finds no room in the socket is dropped.") \
    M(KEY_OF_NEWEST, "A key is compared with the domain of the interface's newest endpoint.") \
    M(TWINS_CONFUSED, "The cookie of a message is looked up by the peer's domain: with two connections to it the newest is used.") \
    M(ENDS_WITH_TWIN, "When the peer closes one connection, all others to its domain end as well.") \
    M(HALF_CLOSE_IGNORED, "The peer's shutdown of sending is ignored, and its shutdown of receiving too once it has been read empty.") \
    M(BYE_OVERTAKES, "The last packet of a closed endpoint overtakes accepted packets that wait for room.") \
    M(READS_NOT_WHILE_ANSWERS_WAIT, "A peer's packets are not read while an answer to it waits for room.") \
    M(ROOM_WATCHED_ONCE, "Room in a socket causes only one wake-up in the life of an endpoint.") \
    M(TIMER_OF_NEWEST, "Only the newest waiting endpoint retries a full listener.") \
    M(NEW_NAME_AT_CONNECT, "An endpoint gets its name at connect: its earlier address reaches nothing.") \
    M(COOKIE_OF_32_BITS, "Only 32 bits of an endpoint's cookie are kept.") \
    M(WORDS_IN_ENDPOINT, "The text of ENDPOINT_FAILED lies in the endpoint, and is freed with it.") \
    M(FLUSH_CLEANS_OTHERS, "A completed flush counts for all endpoints of the interface.") \
    M(FLUSH_CLEANS_LATER, "A completed flush also counts for later operations.") \
    M(ENDPOINTS_RECYCLED, "A new endpoint reuses a closed one with its backlog.") \
    M(PENDING_END_WELL, "Operations pending when the peer closes end with status 0.") \
    M(EVENT_FD_EACH_TIME, "event_fd returns a new descriptor each time.") \
    M(STRANGER_LEAKS, "The descriptor of a refused connection stays open.") \
    M(CLOSED_BEFORE_CONNECT_LOSES, "Messages of a peer that closed before connect was called here are lost.") \
    M(KEYS_CACHED, "A key that is imported twice on an endpoint is one handle, and gone after one drop.") \
    M(DONE_AND_COMPLETES, "am_zcopy returns OK, and a completion follows.") \
    M(ANSWERS_TO_NEWEST, "Answers are sent over the newest endpoint of the interface.") \
    M(IMPORT_REJECTED_EARLY, "Before connect, import_key returns KEY_REJECTED and not AGAIN.") \
    M(POST_REFUSED_EARLY, "Before connect, data calls return INVALID and not AGAIN.") \
    M(NOISE_CONNECTS, "connect accepts bytes of any length as an address.") \
    M(ADDRESS_OVERREAD, "connect reads a whole address, even if the given one is shorter.") \
    M(ENDPOINT_ADDRESS_WHOLE, "The whole address of an endpoint is written, even beyond the capacity.") \
    M(MISCOUNTED_ENDS, "Closing an endpoint that has reported its failure counts that failure again.") \
    M(TWICE_WHEN_FULL, "An atomic whose answer finds no room is carried out again when there is room.") \
    M(BUFFERS_OF_A_THREAD, "ANY_THREAD is claimed, and poll uses buffers of the thread that opened the interface.") \
    M(KEYS_OF_A_THREAD, "ANY_THREAD is claimed, and a key is known only to the thread that imported it.") \
    M(NO_REGION_REFUSED, "TAKES_REGIONS is claimed, and a piece that lies in no region is refused.") \
    M(MORE_WAITS_FOR_A_POST, "Operations with OP_MORE wait for the next put or get: neither flush nor poll sends them.") \
    M(MORE_NOT_BY_POLL, "Operations with OP_MORE wait for the next data call: poll does not send them.") \
    M(UNKNOWN_OUTCOME_OF_A_CALL, "Posting to a failed endpoint returns OUTCOME_UNKNOWN, which is a status of completions.") \
    M(ATOMIC_DECLINED, "An atomic that finds no slot returns DECLINED.") \
    M(PENDING_WITHOUT_COOKIE, "am_short returns PENDING for some headers.") \
    M(COMPLETES_WITH_AGAIN, "Operations pending when their endpoint fails end with AGAIN.") \
    M(EVENT_OF_A_LATER_MINOR, "A connected endpoint reports an event of a kind that does not exist.") \
    M(EVENT_FLAG_OF_A_LATER_MINOR, "Messages carry a flag that does not exist.") \
    M(DMABUF_CLOSED, "register closes the descriptor of a DMA buffer that it refuses.") \
    M(DMABUF_AS_HOST, "A DMA buffer is registered as if its address were the processor's memory.") \
    M(DMABUF_LOOKED_AT, "The descriptor of a DMA buffer is used although no flag announces it.") \
    M(DEVICE_REFUSED_SILENTLY, "Memory of a device is refused without an error text.")
#define ODDITIES(M) \
    M(AGAIN_OFTEN, "Every second data call returns AGAIN.") \
    M(LATE_AND_OUT_OF_ORDER, "Completions come one poll later than possible, in reverse order.") \
    M(LEAST_LIMITS, "The smallest limits that a module may have, unless they are set: 8 and 64 bytes, one piece, one operation in flight.") \
    M(CLAIMS_MORE, "ANY_THREAD and TAKES_REGIONS are claimed: no state is bound to a thread, and a piece lies in the region that it names.") \
    M(TELLS_LATE, "Operations with OP_MORE go out with the next data call without it, or with the next poll.")

#ifndef MUTATION
#define MUTATION NONE
#endif
#ifndef ODD
#define ODD NONE
#endif
#define JOIN(a, b) a##b
#define JOINED(a, b) JOIN(a, b)
#define MUTATION_NAME(name, what) MUTATION_##name,
#define ODD_NAME(name, what) ODD_##name,
enum { MUTATION_NONE, MUTATIONS(MUTATION_NAME) MUTATION_COUNT };
enum { ODD_NONE, ODDITIES(ODD_NAME) ODD_COUNT };
static const int mutation = JOINED(MUTATION_, MUTATION), odd = JOINED(ODD_, ODD);
#define MUTATED(name) (mutation == MUTATION_##name)
#define IS_ODD(name) (odd == ODD_##name)

TIELINE_PROVIDER_NOTE("pairs", "0.1.0", 0);

#define RIGHTS (TIELINE_ACCESS_REMOTE_READ | TIELINE_ACCESS_REMOTE_WRITE | TIELINE_ACCESS_REMOTE_ATOMIC)
#define CAPS (TIELINE_CAP_AM_SHORT | TIELINE_CAP_AM_PACKED | TIELINE_CAP_AM_ZCOPY | TIELINE_CAP_PUT | TIELINE_CAP_GET | \
              TIELINE_CAP_REMOTE_COMPLETION | TIELINE_CAP_PEER_FAILURE | TIELINE_CAP_EVENT_FD | TIELINE_CAP_NEEDS_POLL | \
              TIELINE_CAP_LOCAL_ONLY | TIELINE_CAP_CHECKS_KEYS | TIELINE_CAP_SLOW_POLL)
#define RETRY UINT64_C(5000000) /* ns until a connect to a full listener is retried */

enum {
    REGIONS = 4096,  /* of a domain */
    OPS = 256,       /* the maximum number of requests of one peer in flight, and the maximum of the setting WINDOW */
    PIECES = 16,     /* max_iov */
    LONGEST = 32768, /* payload of a packet: the maximum of the setting PACKET, which every side can receive */
    BUFFER = LONGEST + 128,
    BATCH = 32,      /* events of one poll */
    BACKLOG = 8,
};

/* ---- objects ---- */

enum { PACKET, WINDOW, PATIENCE, ATOMICS, CLOSE_TIMEOUT, VARIABLES };
struct tieline_state { const struct tieline_host *host; uint64_t values[VARIABLES]; };

struct place { char magic[8]; uint8_t boot[16]; uint64_t device, inode; }; /* a kernel, and one of its network namespaces */
struct address { struct place place; uint8_t name[16], domain[16]; };      /* an endpoint's: its name is random */

struct tieline_region {
    uint8_t *base;
    size_t len;
    uint64_t access, generation, secret;
    uint32_t busy; /* accesses that have passed the check and have not ended */
    uint8_t used, refused, owned;
};
struct tieline_domain { /* used from any thread */
    struct tieline_state *state;
    uint8_t id[16];
    pthread_mutex_t lock;
    uint64_t generations; /* never reused */
    struct tieline_region regions[REGIONS];
};
struct tieline_key { uint8_t domain[16]; uint64_t slot, generation, secret; }; /* as pack_key writes it */

enum { MESSAGE = 1, PUT, GET, ATOMIC, FLUSH, REPLY, BYE, HELD /* LATE_AND_OUT_OF_ORDER: answered, and not reported */ };
struct frame { /* the head of a packet, of which a packet has the first bytes that its kind needs */
    uint32_t kind, id;     /* a message's id, or the index of the operation */
    uint64_t header;       /* a message's header, or in a reply the fetched value */
    uint64_t serial;       /* the number of the operation */
    int32_t status;
    uint16_t op, width;
    struct tieline_key key;
    uint64_t offset, len, operand, compare;
};
enum { MESSAGE_HEAD = offsetof(struct frame, serial), REPLY_HEAD = offsetof(struct frame, key),
       REQUEST_HEAD = sizeof(struct frame) };

struct operation { /* an operation that waits for its reply */
    uint32_t kind, pieces; /* kind 0: free */
    uint64_t cookie, serial, fetch;
    size_t len;
    uint64_t *result;               /* RESULT_WRITTEN_LATE */
    struct tieline_event event;     /* HELD */
    struct tieline_iov iov[PIECES]; /* of a get */
};

enum { FRESH, CONNECTING, OPEN, LEAVING, ENDED };
enum { EMPTY, PACKING, FULL };
enum { INWARD, OUTWARD, LISTENER }; /* the socket of an endpoint, in the low bits of epoll's pointer */
struct tieline_endpoint {
    struct tieline_interface *interface;
    struct tieline_endpoint *next;
    uint64_t cookie, deadline;
    struct address own, peer;
    int listener, out, in;
    int phase, refused, told, watched, bye; /* refused: only the peer's earlier packets are left; watched: for room in `out` */
    int broken;                    /* `out` has no other end any more: only reading is left */
    int32_t status;                /* ENDED: why */
    const char *words;
    char text[80];                 /* WORDS_IN_ENDPOINT */
    struct tieline_key cached;     /* KEYS_CACHED */
    int is_cached;
    uint64_t serial, window, open, gets, fence; /* fence: gets that must be answered before the next post */
    uint64_t calls;
    int dirty;                     /* operations were posted that no flush has covered */
    uint32_t first, replies;       /* the queue of answers */
    struct frame answers[OPS];
    int stash;                     /* the state and the length of a packed message */
    size_t stashed;
    uint8_t *packed;
    int more, flushing;            /* the kind of the call that needs room */
    uint32_t kept;                 /* TELLS_LATE: waiting operations with OP_MORE */
    struct { struct frame f; struct tieline_iov iov[PIECES]; uint32_t count; } waiting[8];
    uint32_t late;                 /* PIECES_READ_LATE: the number of pieces to read when there is room */
    struct tieline_iov pieces[PIECES];
    struct operation operations[]; /* the operations of a window, followed by the bytes of `packed` */
};
struct tieline_interface { /* one thread at a time */
    struct tieline_domain *domain;
    struct place place;
    int epoll, timer;
    struct tieline_endpoint *endpoints, *leaving;
    uint64_t peers, held, untold; /* operations that are HELD, endpoints whose end is not reported yet */
    uint64_t ghosts, ghost; /* COMPLETES_AFTER_CLOSE, DONE_AND_COMPLETES */
    struct tieline_endpoint *spare; /* ENDPOINTS_RECYCLED */
    int again;              /* AGAIN_OFTEN: arm asks for progress */
    int packing;            /* running packers */
    uint8_t *arena;         /* the payloads of one poll */
};
struct batch { struct tieline_event *events; uint32_t count, capacity; };

static _Thread_local const char *why = "";
static _Thread_local int opened_here; /* BUFFERS_OF_A_THREAD */
static const char *volatile why_of_all = ""; /* ERROR_OF_ALL_THREADS */

static int32_t fail(int32_t status, const char *text) { why = why_of_all = text; return status; }
static int32_t unknown(int32_t status) /* for the fields of a record that this file does not know */
{
    return fail(status ? status : TIELINE_UNSUPPORTED_PARAM, "a parameter, a right or a flag that pairs does not know");
}
static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static int randomly(void *bytes, size_t len) { return getrandom(bytes, len, 0) == (ssize_t)len; }
static size_t longest(const struct tieline_interface *i) { return i->domain->state->values[PACKET]; }
static size_t longest_short(const struct tieline_interface *i) { return IS_ODD(LEAST_LIMITS) ? 8 : longest(i); }
static size_t longest_rma(const struct tieline_interface *i) { return IS_ODD(LEAST_LIMITS) ? 8 : longest(i); }
static size_t most_pieces(void) { return IS_ODD(LEAST_LIMITS) ? 1 : PIECES; }

/* ---- memory accessible to peers ---- */

static const char *words_of(int32_t status) /* the text of a failed operation */
{
    switch (status) {
    case TIELINE_KEY_REJECTED: return "the peer has no region with this key, or the region does not grant this";
    case TIELINE_OUT_OF_RANGE: return "the range lies outside of the peer's region";
    case TIELINE_MISALIGNED: return "the address at the peer is no multiple of the width";
    default: return "the peer could not carry it out";
    }
}

/* Between these two calls the region's memory stays: deregister and revoke return AGAIN. */
static int32_t begin_access(struct tieline_domain *d, const struct frame *f, uint64_t right, struct tieline_region **out)
{
    const struct tieline_key *k = &f->key;
    struct tieline_region *r = k->slot < REGIONS ? &d->regions[k->slot] : NULL;
    int32_t status = TIELINE_OK;
    pthread_mutex_lock(&d->lock);
    if (!r || !r->used || (r->refused && !MUTATED(REVOKE_UNHEEDED)) || k->generation != r->generation ||
        (!MUTATED(FOREIGN_KEY_TAKEN) && (memcmp(k->domain, d->id, sizeof d->id) || k->secret != r->secret)) || !(r->access & right))
        status = TIELINE_KEY_REJECTED;
    else if (MUTATED(RANGE_WRAPS) ? f->offset + f->len > r->len
                                  : f->offset > r->len || f->len + MUTATED(LAST_BYTE_REFUSED) > r->len - f->offset)
        status = TIELINE_OUT_OF_RANGE;
    else
        r->busy++, *out = r;
    pthread_mutex_unlock(&d->lock);
    return status;
}

static void end_access(struct tieline_domain *d, struct tieline_region *r)
{
    pthread_mutex_lock(&d->lock);
    r->busy--;
    pthread_mutex_unlock(&d->lock);
}

static int32_t carry_out_put(struct tieline_domain *d, const struct frame *f, const uint8_t *data)
{
    struct tieline_region *r;
    int32_t status = begin_access(d, f, TIELINE_ACCESS_REMOTE_WRITE, &r);
    if (status) return status;
    if (f->len) memcpy(r->base + f->offset, data, f->len);
    end_access(d, r);
    return TIELINE_OK;
}

static void two_steps(void) /* ATOMIC_IN_TWO_STEPS: at times another thread runs in between, even on a busy machine */
{
    static _Thread_local unsigned calls;
    if (++calls % 64 == 0) sched_yield();
}

#define CHANGE(type, at, f, old) do { \
        type operand_ = (type)(f)->operand, old_ = __atomic_load_n((type *)(at), __ATOMIC_SEQ_CST), new_ = 0; \
        do { \
            switch ((f)->op) { \
            case TIELINE_ATOMIC_ADD: new_ = (type)(old_ + operand_); break; \
            case TIELINE_ATOMIC_AND: new_ = old_ & operand_; break; \
            case TIELINE_ATOMIC_OR: new_ = old_ | operand_; break; \
            case TIELINE_ATOMIC_XOR: new_ = old_ ^ operand_; break; \
            case TIELINE_ATOMIC_SWAP: new_ = operand_; break; \
            case TIELINE_ATOMIC_COMPARE_SWAP: new_ = old_ == (type)(f)->compare ? operand_ : old_; break; \
            case TIELINE_ATOMIC_MIN: \
                new_ = operand_ < old_ ? operand_ : old_; \
                if (MUTATED(MINIMUM_SIGNED) && sizeof(type) == 8) new_ = (int64_t)operand_ < (int64_t)old_ ? operand_ : old_; \
                break; \
            default: new_ = operand_ > old_ ? operand_ : old_; break; \
            } \
            if (MUTATED(ATOMIC_IN_TWO_STEPS)) { two_steps(); *(volatile type *)(at) = new_; break; } \
        } while (!__atomic_compare_exchange_n((type *)(at), &old_, new_, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)); \
        (old) = old_; \
    } while (0)

static int32_t carry_out_atomic(struct tieline_domain *d, struct frame *f)
{
    struct tieline_region *r;
    uint64_t right = MUTATED(ATOMIC_BY_WRITE_RIGHT) ? TIELINE_ACCESS_REMOTE_WRITE : TIELINE_ACCESS_REMOTE_ATOMIC;
    int32_t status = begin_access(d, f, right, &r);
    uint8_t *at;
    if (status) return status;
    at = r->base + f->offset;
    if ((uintptr_t)at % f->width) status = TIELINE_MISALIGNED;
    else if (f->width == 4) CHANGE(uint32_t, at, f, f->header);
    else CHANGE(uint64_t, at, f, f->header);
    end_access(d, r);
    return status;
}

/* ---- sockets ---- */

static socklen_t name_socket(struct sockaddr_un *to, const uint8_t name[16], const char *side)
{
    int at = snprintf(to->sun_path + 1, sizeof to->sun_path - 1, "tieline-pairs-");
    to->sun_family = AF_UNIX, to->sun_path[0] = 0;
    for (int n = 0; n < 16; n++) at += snprintf(to->sun_path + 1 + at, 3, "%02x", name[n]);
    at += snprintf(to->sun_path + 1 + at, 5, "%s", side);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)at);
}

static int new_socket(const uint8_t name[16], const char *side)
{
    struct sockaddr_un at;
    socklen_t len = name_socket(&at, name, side);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, len)) close(fd), fd = -1;
    return fd;
}

static int watch(struct tieline_endpoint *e, int change, int fd, int which, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.u64 = (uint64_t)(uintptr_t)e | (uint64_t)which };
    return epoll_ctl(e->interface->epoll, change, fd, &event);
}

/* A forked child may have the socket open, too: closing alone would end it neither for epoll nor for the peer. */
static void drop_socket(struct tieline_endpoint *e, int *fd)
{
    if (*fd < 0) return;
    epoll_ctl(e->interface->epoll, EPOLL_CTL_DEL, *fd, NULL);
    shutdown(*fd, SHUT_RDWR);
    close(*fd);
    *fd = -1;
}

static void drop_sockets(struct tieline_endpoint *e)
{
    drop_socket(e, &e->listener);
    drop_socket(e, &e->in);
    drop_socket(e, &e->out);
}

static void want_room(struct tieline_endpoint *e, int wanted) /* wakes a sleeping worker when there is room again */
{
    if (MUTATED(NO_WAKE_FOR_ROOM) || e->watched == wanted || e->out < 0) return;
    e->watched = wanted || (e->watched && MUTATED(ROOM_WATCHED_ONCE));
    watch(e, EPOLL_CTL_MOD, e->out, OUTWARD, wanted ? EPOLLOUT : 0);
}

/* Sends a packet whole or not at all. The next poll reports a broken connection, after it has read the earlier packets. */
static int32_t transmit(struct tieline_endpoint *e, const void *head, size_t head_len, const struct tieline_iov *iov, size_t count)
{
    struct iovec parts[PIECES + 1] = { { (void *)head, head_len } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = count + 1 - (MUTATED(LAST_PIECE_DROPPED) && count == PIECES) };
    ssize_t sent;
    for (size_t n = 0; n < count; n++) parts[n + 1] = (struct iovec){ iov[n].base, iov[n].len };
    do sent = sendmsg(e->out, &message, MSG_NOSIGNAL | MSG_DONTWAIT); while (sent < 0 && errno == EINTR);
    if (sent >= 0) return TIELINE_OK;
    if (errno == EMSGSIZE) return TIELINE_TOO_LARGE;
    if (errno == EFAULT) return TIELINE_IO;
    want_room(e, 1);
    return TIELINE_AGAIN;
}

static void end(struct tieline_endpoint *e, int32_t status, const char *words)
{
    if (e->phase == ENDED) return;
    drop_sockets(e);
    e->phase = ENDED, e->status = status, e->words = words;
    if (MUTATED(WORDS_IN_ENDPOINT)) snprintf(e->text, sizeof e->text, "%s", words), e->words = e->text;
    e->replies = 0, e->stash = e->stash == PACKING ? PACKING : EMPTY;
    e->interface->untold++;
}

/* ---- answers, and the waiting message ---- */

static int32_t send_answer(struct tieline_endpoint *e, const struct frame *f)
{
    struct tieline_domain *d = e->interface->domain;
    struct frame reply = { .kind = REPLY, .id = f->id, .header = f->header, .serial = f->serial, .status = f->status };
    struct tieline_region *r = NULL;
    struct tieline_iov piece = { .len = f->len };
    int32_t status;
    if (f->op & 0x8000 && f->kind == ATOMIC) { /* TWICE_WHEN_FULL */
        struct frame again = *f;
        again.op &= 0x7fff;
        carry_out_atomic(d, &again);
    }
    if (f->kind != GET) return transmit(e, &reply, REPLY_HEAD, NULL, 0);
    if (MUTATED(GET_CHECKED_ON_ARRIVAL) && f->operand) {
        piece.base = (uint8_t *)(uintptr_t)f->operand;
        return transmit(e, &reply, REPLY_HEAD, &piece, 1);
    }
    reply.status = begin_access(d, f, TIELINE_ACCESS_REMOTE_READ, &r); /* not on arrival: the key may be revoked since */
    if (reply.status) return transmit(e, &reply, REPLY_HEAD, NULL, 0);
    piece.base = r->base + f->offset;
    status = transmit(e, &reply, REPLY_HEAD, &piece, 1);
    end_access(d, r);
    if (status == TIELINE_OK || status == TIELINE_AGAIN) return status;
    reply.status = status; /* the memory is not registered any more */
    return transmit(e, &reply, REPLY_HEAD, NULL, 0);
}

static int tells_late(void) { return IS_ODD(TELLS_LATE) || MUTATED(MORE_WAITS_FOR_A_POST) || MUTATED(MORE_NOT_BY_POLL); }

static int32_t send_kept(struct tieline_endpoint *e) /* operations with OP_MORE */
{
    uint32_t n = 0;
    int32_t status = TIELINE_OK;
    while (n < e->kept && !(status = transmit(e, &e->waiting[n].f, REQUEST_HEAD, e->waiting[n].iov, e->waiting[n].count))) n++;
    e->kept -= n;
    memmove(e->waiting, &e->waiting[n], e->kept * sizeof *e->waiting);
    return status;
}

/* Sends the backlog: 1 if nothing is left. */
static int push(struct tieline_endpoint *e)
{
    if (e->phase != OPEN && e->phase != LEAVING) return 0;
    if (MUTATED(BYE_OVERTAKES) && e->bye) {
        struct frame bye = { .kind = BYE };
        if (transmit(e, &bye, MESSAGE_HEAD, NULL, 0) == TIELINE_AGAIN) return 0;
        e->bye = 0;
    }
    for (; e->replies; e->first = (e->first + 1) % OPS, e->replies--)
        if (send_answer(e, &e->answers[e->first]) == TIELINE_AGAIN && !MUTATED(ANSWER_DROPPED)) {
            e->answers[e->first].op |= 0x8000 * MUTATED(TWICE_WHEN_FULL);
            return 0;
        }
    if (e->stash == FULL) {
        for (size_t n = 0, at = MESSAGE_HEAD; n < e->late; at += e->pieces[n++].len)
            memcpy(e->packed + at, e->pieces[n].base, e->pieces[n].len);
        if (transmit(e, e->packed, e->stashed, NULL, 0) == TIELINE_AGAIN) return 0;
        e->stash = EMPTY, e->late = 0;
    }
    if (e->bye) {
        struct frame bye = { .kind = BYE };
        if (transmit(e, &bye, MESSAGE_HEAD, NULL, 0) == TIELINE_AGAIN) return 0;
        e->bye = 0;
    }
    want_room(e, 0);
    return 1;
}

static int answer(struct tieline_endpoint *e, const struct frame *f)
{
    if (e->replies == OPS) return 0; /* the maximum number that a peer may have in flight */
    e->answers[(e->first + e->replies++) % OPS] = *f;
    push(e);
    return 1;
}

/* ---- connecting ---- */

static int is_waiting(const struct tieline_endpoint *e) /* for either half of the connection */
{
    return (e->phase == CONNECTING && !e->refused) || (e->phase == OPEN && e->in < 0);
}

static void set_timer(struct tieline_interface *i)
{
    struct itimerspec at = { .it_value.tv_nsec = 0 };
    uint64_t first = UINT64_MAX;
    for (struct tieline_endpoint *e = i->endpoints; e; e = e->next) {
        if (!is_waiting(e)) continue;
        if (e->deadline < first) first = e->deadline;
        if (e->phase == CONNECTING && now() + RETRY < first) first = now() + RETRY;
        if (MUTATED(TIMER_OF_NEWEST)) break;
    }
    if (first != UINT64_MAX && !MUTATED(NO_TIMER))
        at.it_value = (struct timespec){ (time_t)(first / 1000000000u), (long)(first % 1000000000u) };
    timerfd_settime(i->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void admit(struct tieline_endpoint *e) /* of the connecting peers, the one that this endpoint has connected to */
{
    struct sockaddr_un peer, from;
    socklen_t peer_len = name_socket(&peer, e->peer.name, "-out"), len;
    while (e->listener >= 0 && e->in < 0) {
        int fd = accept4(e->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) return;
        len = sizeof from;
        if (!MUTATED(STRANGER_ADMITTED) &&
            (getpeername(fd, (struct sockaddr *)&from, &len) || len != peer_len || memcmp(&from, &peer, len))) {
            if (MUTATED(STRANGER_LEAKS)) shutdown(fd, SHUT_RDWR);
            else close(fd);
            continue;
        }
        e->in = fd;
        if (watch(e, EPOLL_CTL_ADD, fd, INWARD, MUTATED(EDGE_TRIGGERED) ? EPOLLIN | (uint32_t)EPOLLET : EPOLLIN)) {
            end(e, TIELINE_NO_MEMORY, "epoll takes no more sockets");
            return;
        }
        while (MUTATED(EARLY_MESSAGES_LOST) && recv(fd, e->packed, 1, MSG_DONTWAIT) > 0) continue;
        drop_socket(e, &e->listener);
        set_timer(e->interface);
    }
}

static void try_connect(struct tieline_endpoint *e)
{
    struct sockaddr_un to;
    socklen_t len = name_socket(&to, e->peer.name, "-in");
    if (!connect(e->out, (struct sockaddr *)&to, len)) {
        e->phase = OPEN;
        if (watch(e, EPOLL_CTL_ADD, e->out, OUTWARD, 0)) end(e, TIELINE_NO_MEMORY, "epoll takes no more sockets");
        push(e);
    } else if (errno != EAGAIN && errno != EINTR) {
        e->refused = 1;
        if (!MUTATED(CLOSED_BEFORE_CONNECT_LOSES)) admit(e); /* the peer may have sent messages and closed: they come first */
        if (e->in < 0 && !MUTATED(REFUSED_NEVER_ENDS))
            end(e, TIELINE_UNREACHABLE, "nobody listens at the peer's address: its endpoint is closed");
    }
}

static void tick(struct tieline_interface *i)
{
    uint64_t count, time = now();
    if (read(i->timer, &count, sizeof count) < 0) return;
    for (struct tieline_endpoint *e = i->endpoints; e; e = e->next) {
        if (e->phase == CONNECTING && !e->refused) try_connect(e);
        if (MUTATED(TIMER_OF_NEWEST) && is_waiting(e)) break;
        if (is_waiting(e) && time >= e->deadline)
            end(e, TIELINE_TIMED_OUT, "the peer has not connected its endpoint within TIELINE_PAIRS_PATIENCE");
    }
    set_timer(i);
}

/* ---- poll ---- */

static void emit(struct batch *b, struct tieline_event event) { b->events[b->count++] = event; }

static int finish(struct tieline_endpoint *e, struct batch *b, const struct frame *f, const uint8_t *data, size_t len)
{
    struct operation *o = f->id < e->window ? &e->operations[f->id] : NULL;
    struct tieline_event event = { .kind = TIELINE_EVENT_COMPLETION, .status = f->status };
    if (!o || !o->kind || o->kind == HELD || o->serial != f->serial || f->status > 0) return 0;
    if (o->kind == GET && f->status == TIELINE_OK) {
        if (len != o->len) return 0;
        for (uint32_t n = 0; n < o->pieces; data += MUTATED(PIECES_FROM_START) ? 0 * o->iov[n++].len : o->iov[n++].len)
            if (o->iov[n].len) memcpy(o->iov[n].base, data, o->iov[n].len);
    }
    if (o->kind == GET) e->gets--, e->fence -= e->fence > 0;
    if (o->kind == FLUSH && (e->serial == o->serial || MUTATED(FLUSH_CLEANS_LATER))) e->dirty = 0;
    for (struct tieline_endpoint *other = e->interface->endpoints; other && MUTATED(FLUSH_CLEANS_OTHERS); other = other->next)
        if (o->kind == FLUSH) other->dirty = 0;
    if (f->status) event.data = (const uint8_t *)words_of(f->status), event.len = strlen(words_of(f->status));
    else if (o->fetch) event.header = f->header;
    if (MUTATED(RESULT_WRITTEN_LATE) && o->kind == ATOMIC && o->fetch && o->result) *o->result = f->header;
    event.cookie = o->cookie;
    if (IS_ODD(LATE_AND_OUT_OF_ORDER)) {
        o->kind = HELD, o->event = event, e->interface->held++;
        return 1;
    }
    if (MUTATED(CREDIT_TWICE) && o->kind == GET && e->open > 1) e->open--;
    o->kind = 0, e->open -= !(MUTATED(PLACE_LEAKS) && f->status);
    emit(b, event);
    return 1;
}

static void tell_held(struct tieline_interface *i, struct batch *b) /* in the next poll, the last first */
{
    for (struct tieline_endpoint *e = i->endpoints; e && i->held; e = e->next)
        for (uint64_t n = e->window; n-- > 0 && b->count < b->capacity;) {
            struct operation *o = &e->operations[n];
            if (o->kind != HELD) continue;
            emit(b, o->event);
            o->kind = 0, e->open--, i->held--;
        }
}

static int handle(struct tieline_endpoint *e, struct batch *b, const uint8_t *packet, size_t len) /* 0: a protocol error */
{
    struct tieline_domain *d = e->interface->domain;
    struct frame f = { .kind = 0 };
    memcpy(&f, packet, len < sizeof f ? len : sizeof f);
    if (len < MESSAGE_HEAD) return 0;
    if (f.kind == MESSAGE) {
        uint64_t peer = MUTATED(PEER_OF_NEWEST) ? e->interface->endpoints->cookie : e->cookie;
        for (struct tieline_endpoint *twin = e->interface->endpoints; twin && MUTATED(TWINS_CONFUSED); twin = twin->next)
            if (!memcmp(twin->peer.domain, e->peer.domain, sizeof e->peer.domain)) { peer = twin->cookie; break; }
        emit(b, (struct tieline_event){ .kind = TIELINE_EVENT_MESSAGE, .id = f.id, .peer = peer, .header = f.header,
                                        .flags = MUTATED(EVENT_FLAG_OF_A_LATER_MINOR) ? 0x100 : 0,
                                        .data = packet + MESSAGE_HEAD, .len = len - MESSAGE_HEAD });
        if (MUTATED(EVENT_OF_A_LATER_MINOR) && b->count < b->capacity && !e->told++) emit(b, (struct tieline_event){ .kind = 64, .cookie = e->cookie });
        return 1;
    }
    if (f.kind == BYE) {
        for (struct tieline_endpoint *twin = e->interface->endpoints; twin && MUTATED(ENDS_WITH_TWIN); twin = twin->next)
            if (twin != e && twin->phase == OPEN && !memcmp(twin->peer.domain, e->peer.domain, sizeof e->peer.domain))
                end(twin, TIELINE_CLOSED, "the peer has closed its endpoint");
        end(e, TIELINE_CLOSED, "the peer has closed its endpoint");
        return 1;
    }
    if (f.kind == REPLY) return len >= REPLY_HEAD && finish(e, b, &f, packet + REPLY_HEAD, len - REPLY_HEAD);
    if (len < REQUEST_HEAD || f.len > LONGEST || len - REQUEST_HEAD != (f.kind == PUT ? f.len : 0)) return 0;
    f.header = 0, f.status = TIELINE_OK;
    switch (f.kind) {
    case PUT: f.status = carry_out_put(d, &f, packet + REQUEST_HEAD); break;
    case ATOMIC:
        if (f.op > TIELINE_ATOMIC_MAX || (f.width != 4 && f.width != 8) || f.len != f.width) return 0;
        f.status = carry_out_atomic(d, &f);
        break;
    case GET:
        f.operand = 0;
        if (MUTATED(GET_CHECKED_ON_ARRIVAL)) {
            struct tieline_region *r;
            if (!begin_access(d, &f, TIELINE_ACCESS_REMOTE_READ, &r)) f.operand = (uintptr_t)(r->base + f.offset), end_access(d, r);
        }
        break;
    case FLUSH: break;
    default: return 0;
    }
    if (MUTATED(RANGE_ENDS_CONNECTION) && f.status == TIELINE_OUT_OF_RANGE) return 0;
    return answer(MUTATED(ANSWERS_TO_NEWEST) ? e->interface->endpoints : e, &f);
}

static void receive(struct tieline_endpoint *e, struct batch *b, uint32_t reads)
{
    for (uint32_t n = 0; n < reads && b->count < b->capacity && e->in >= 0; n++) {
        if (MUTATED(READS_NOT_WHILE_ANSWERS_WAIT) && e->replies) return;
        static uint8_t scratch[BATCH * BUFFER];
        uint8_t *arena = MUTATED(SCRATCH_SHARED) ? scratch : e->interface->arena;
        size_t place = MUTATED(PAYLOADS_SHARE_BUFFERS) ? b->count % 8 : b->count; /* the buffer of the event that it may become */
        uint8_t *buffer = arena + place * BUFFER;
        ssize_t len = recv(e->in, buffer, BUFFER, MSG_DONTWAIT | MSG_TRUNC);
        if (len < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (len <= 0 && MUTATED(HALF_CLOSE_IGNORED)) {
            drop_socket(e, &e->in);
            return;
        }
        if (len <= 0)
            end(e, MUTATED(DEATH_IN_GOOD_ORDER) ? TIELINE_CLOSED : TIELINE_PEER_FAILED,
                "the peer's process has ended without closing its endpoint");
        else if (len > BUFFER || !handle(e, b, buffer, (size_t)len))
            end(e, TIELINE_BAD_DATA, "the peer has sent what is no packet");
    }
    if (MUTATED(LOST_AT_CAPACITY) && b->count && b->count == b->capacity && e->in >= 0) recv(e->in, e->packed, 1, MSG_DONTWAIT);
}

static void forget(struct tieline_endpoint **list, struct tieline_endpoint *e)
{
    while (*list != e) list = &(*list)->next;
    *list = e->next;
}

static void release(struct tieline_endpoint *e)
{
    struct tieline_interface *i = e->interface;
    if (MUTATED(WORDS_IN_ENDPOINT)) explicit_bzero(e->text, sizeof e->text); /* free leaves it or not */
    if (MUTATED(ENDPOINTS_RECYCLED) && !i->spare) i->spare = e;
    else free(e);
}

static void leave(struct tieline_endpoint *e) /* the final cleanup of a closed endpoint */
{
    forget(&e->interface->leaving, e);
    drop_sockets(e);
    release(e);
}

static void outward(struct tieline_endpoint *e, uint32_t events)
{
    struct frame last = { .kind = 0 };
    if (!(events & (EPOLLHUP | EPOLLERR))) {
        if (push(e) && e->phase == LEAVING) leave(e);
        return;
    }
    if (e->phase == LEAVING) { leave(e); return; }
    if (e->phase != OPEN) return;
    admit(e);
    if ((e->in >= 0 || MUTATED(HALF_CLOSE_IGNORED)) && !MUTATED(END_OVERTAKES)) { /* packets before the end are read first */
        epoll_ctl(e->interface->epoll, EPOLL_CTL_DEL, e->out, NULL);
        e->broken = 1;
        return;
    }
    for (int n = 0; n < 2; n++) /* the first result may be the error of a reset */
        if (recv(e->out, &last, sizeof last, MSG_DONTWAIT) > 0 && last.kind == BYE) {
            end(e, TIELINE_CLOSED, "the peer has closed its endpoint");
            return;
        }
    end(e, TIELINE_PEER_FAILED, "the peer's process has ended before it connected its endpoint");
}

static void tell(struct tieline_interface *i, struct batch *b) /* of ended endpoints: their operations, then the end */
{
    for (struct tieline_endpoint *e = i->endpoints; e && i->untold; e = e->next) {
        if (e->phase != ENDED || e->told > MUTATED(FAILS_TWICE) || (e->told && b->count)) continue;
        for (uint64_t n = 0; n < e->window; n++) {
            struct operation *o = &e->operations[n];
            if (!o->kind || o->kind == HELD || MUTATED(SILENT_AT_DEATH)) continue;
            if (b->count == b->capacity) return;
            emit(b, (struct tieline_event){ .kind = TIELINE_EVENT_COMPLETION, .cookie = o->cookie,
                                            .status = MUTATED(PENDING_END_WELL) && e->status == TIELINE_CLOSED ? 0 : MUTATED(COMPLETES_WITH_AGAIN) ? TIELINE_AGAIN : e->status,
                                            .data = (const uint8_t *)e->words, .len = strlen(e->words) });
            o->kind = 0, e->open--;
        }
        if (b->count == b->capacity) return;
        emit(b, (struct tieline_event){ .kind = TIELINE_EVENT_ENDPOINT_FAILED, .status = e->status, .cookie = e->cookie,
                                        .data = (const uint8_t *)e->words, .len = strlen(e->words) });
        if (MUTATED(FAILS_TWICE) && e->told++ == 0) continue;
        e->told = 1 + MUTATED(FAILS_TWICE), i->untold--;
    }
}

static int64_t poll(struct tieline_interface *i, struct tieline_event *events, uint32_t capacity)
{
    struct batch b = { events, 0, capacity < BATCH ? capacity : BATCH };
    struct epoll_event ready[BATCH];
    uint32_t room;
    int count;
    i->again = 0;
    if (MUTATED(BUFFERS_OF_A_THREAD) && !opened_here) return 0;
    if (i->ghosts && b.capacity) {
        emit(&b, (struct tieline_event){ .kind = TIELINE_EVENT_COMPLETION, .cookie = i->ghost,
                                         .status = MUTATED(DONE_AND_COMPLETES) ? TIELINE_OK : TIELINE_CANCELED });
        i->ghosts = 0;
    }
    for (struct tieline_endpoint *e = i->endpoints; e && !MUTATED(MORE_NOT_BY_POLL) && !MUTATED(MORE_WAITS_FOR_A_POST); e = e->next)
        if (e->kept && e->phase == OPEN) send_kept(e);
    tell_held(i, &b);
    tell(i, &b);
    room = b.capacity - b.count; /* shared by all ready sockets; epoll starts with the others next time */
    count = epoll_wait(i->epoll, ready, room ? (int)room : 1, 0);
    for (int n = 0; n < count; n++) {
        struct tieline_endpoint *e = (void *)(uintptr_t)(ready[n].data.u64 & ~UINT64_C(3));
        if (!e) tick(i);
        else if (e->phase == ENDED) continue;
        else if ((ready[n].data.u64 & 3) == INWARD) receive(e, &b, room / (uint32_t)count);
        else if ((ready[n].data.u64 & 3) == OUTWARD) outward(e, ready[n].events);
        else admit(e);
    }
    tell(i, &b);
    return b.count;
}

static int32_t arm(struct tieline_interface *i)
{
    struct epoll_event ready;
    for (struct tieline_endpoint *e = i->endpoints; e; e = e->next)
        if (e->kept && e->phase == OPEN && IS_ODD(TELLS_LATE)) return 1;
    if ((i->untold > 0 && !MUTATED(ARM_FORGETS_ENDED)) || i->held > 0 || i->again) return 1;
    return epoll_wait(i->epoll, &ready, 1, 0) > 0; /* 0: the next event makes the descriptor readable */
}

static int32_t event_fd(struct tieline_interface *i) { return MUTATED(EVENT_FD_EACH_TIME) ? dup(i->epoll) : i->epoll; }

/* ---- posting ---- */

static int32_t postable(struct tieline_endpoint *e)
{
    if (e->phase == ENDED) return MUTATED(ENDED_IS_AGAIN) ? TIELINE_AGAIN : MUTATED(UNKNOWN_OUTCOME_OF_A_CALL) ? TIELINE_OUTCOME_UNKNOWN : e->status;
    if (MUTATED(PACKER_HOLDS_INTERFACE) && e->interface->packing) return TIELINE_AGAIN;
    if (MUTATED(POST_REFUSED_EARLY) && e->phase == FRESH) return TIELINE_INVALID;
    if (e->phase != OPEN || e->fence) return TIELINE_AGAIN;
    if (e->kept && !e->more && !(MUTATED(MORE_WAITS_FOR_A_POST) && e->flushing) && send_kept(e)) return TIELINE_AGAIN;
    if (IS_ODD(AGAIN_OFTEN) && ++e->calls % 2) { e->interface->again = 1; return TIELINE_AGAIN; }
    if (MUTATED(OVERTAKES_PACKED)) return TIELINE_OK;
    if (e->stash == FULL) push(e);
    return e->stash == FULL ? TIELINE_AGAIN : TIELINE_OK; /* order: the packed message was accepted before */
}

static int32_t sum(const struct tieline_iov *iov, size_t count, size_t most, size_t *len)
{
    *len = 0;
    if (count > most_pieces()) return TIELINE_TOO_LARGE;
    for (size_t n = 0; n < count; *len += iov[n++].len)
        if (iov[n].len > most - *len) return TIELINE_TOO_LARGE;
    return TIELINE_OK;
}

static int32_t send_message(struct tieline_endpoint *e, uint32_t id, uint64_t header, const struct tieline_iov *iov, size_t count)
{
    struct frame f = { .kind = MESSAGE, .id = id, .header = header };
    int32_t status = postable(e);
    if (!status) status = transmit(e, &f, MESSAGE_HEAD, iov, count);
    if (!status) e->serial++, e->dirty = 1;
    return status;
}

static int32_t am_short(struct tieline_endpoint *e, uint32_t id, uint64_t header, const uint8_t *payload, size_t len)
{
    struct tieline_iov piece = { .base = (uint8_t *)payload, .len = len };
    if (len > longest_short(e->interface) - MUTATED(LONGEST_REFUSED)) return TIELINE_TOO_LARGE;
    if (MUTATED(PENDING_WITHOUT_COOKIE) && header == 77) return send_message(e, id, header, &piece, len > 0) ? TIELINE_AGAIN : TIELINE_PENDING;
    return send_message(e, id, header, &piece, len > 0);
}

static int32_t am_zcopy(struct tieline_endpoint *e, uint32_t id, uint64_t header, const struct tieline_iov *iov, size_t count,
                        uint64_t cookie)
{
    size_t len;
    int32_t status = sum(iov, count, longest(e->interface), &len);
    (void)cookie; /* the kernel has copied the message when the call returns: no completion follows */
    if (status) return status;
    if (MUTATED(DONE_AND_COMPLETES)) e->interface->ghosts = 1, e->interface->ghost = cookie;
    if (MUTATED(EMPTY_MESSAGE_LOST) && !len && e->phase == OPEN) return TIELINE_OK;
    status = send_message(e, id, MUTATED(HEADER_CUT) ? (uint32_t)header : header, iov, count);
    if (MUTATED(PIECES_READ_LATE) && status == TIELINE_AGAIN && e->phase == OPEN && e->stash == EMPTY && !e->fence) {
        struct frame f = { .kind = MESSAGE, .id = id, .header = header };
        memcpy(e->packed, &f, MESSAGE_HEAD);
        e->stash = FULL, e->stashed = MESSAGE_HEAD + len, e->serial++, e->dirty = 1, e->late = (uint32_t)count;
        memcpy(e->pieces, iov, count * sizeof *iov);
        return TIELINE_OK;
    }
    return status;
}

static int64_t am_packed(struct tieline_endpoint *e, uint32_t id, uint64_t header, tieline_pack_fn pack, void *argument, size_t most)
{
    struct frame f = { .kind = MESSAGE, .id = id, .header = header };
    uint8_t *into;
    int32_t status;
    int64_t len;
    if (most > longest(e->interface)) return TIELINE_TOO_LARGE;
    if ((status = postable(e))) return status;
    if (e->stash != EMPTY) return TIELINE_AGAIN; /* a packer of this endpoint is running, and the buffer is in use */
    e->stash = PACKING, e->interface->packing++;
    into = MUTATED(PACKS_OVER_PAYLOAD) ? e->interface->arena + MESSAGE_HEAD : e->packed + MESSAGE_HEAD;
    len = pack(argument, into, most); /* the packer may send, post and poll */
    if (into != e->packed + MESSAGE_HEAD && len > 0 && (size_t)len <= most) memcpy(e->packed + MESSAGE_HEAD, into, (size_t)len);
    e->stash = EMPTY, e->interface->packing--;
    if (len < 0) return MUTATED(PACKERS_ERROR_CHANGED) ? TIELINE_CANCELED : len;
    if ((size_t)len > most) return TIELINE_INVALID;
    if (e->phase == ENDED) return e->status;
    memcpy(e->packed, &f, MESSAGE_HEAD);
    e->stashed = MESSAGE_HEAD + (size_t)len, e->stash = FULL, e->serial++, e->dirty = 1;
    if (MUTATED(AGAIN_AFTER_PACKING) && !push(e)) { e->stash = EMPTY; return TIELINE_AGAIN; }
    push(e); /* without room poll sends the message, which is accepted because it was packed */
    return len;
}

static int32_t post(struct tieline_endpoint *e, struct frame *f, const struct tieline_iov *iov, size_t count, uint64_t cookie)
{
    struct operation *o = e->operations;
    int32_t status = postable(e);
    if (status) return status;
    if (e->open == e->window) return MUTATED(ATOMIC_DECLINED) && f->kind == ATOMIC ? TIELINE_DECLINED : TIELINE_AGAIN;
    while (o->kind) o++;
    f->id = (uint32_t)(o - e->operations), f->serial = e->serial + 1;
    if (e->more && e->kept < 8) {
        e->waiting[e->kept].f = *f, e->waiting[e->kept].count = f->kind == PUT ? (uint32_t)count : 0;
        memcpy(e->waiting[e->kept++].iov, iov, count * sizeof *iov);
    } else if ((e->kept && (status = send_kept(e))) || (status = transmit(e, f, REQUEST_HEAD, iov, f->kind == PUT ? count : 0)))
        return status;
    o->kind = f->kind, o->cookie = cookie, o->serial = ++e->serial, o->len = f->len, o->fetch = 0, o->pieces = 0;
    if (f->kind == GET) {
        o->pieces = (uint32_t)count, e->gets++;
        memcpy(o->iov, iov, count * sizeof *iov);
        if (MUTATED(LEAKS_PER_GET)) { void *volatile lost = calloc(1, 256); (void)lost; }
    }
    e->open++, e->dirty = 1;
    return TIELINE_PENDING;
}

static _Thread_local const struct tieline_key *imported_here; /* KEYS_OF_A_THREAD: the last one */

static int32_t post_rma(struct tieline_endpoint *e, const struct tieline_rma *op, uint32_t kind)
{
    struct frame f = { .kind = kind, .offset = op->offset, .len = op->len };
    size_t len;
    int32_t status;
    if (MUTATED(HINTS_REFUSED) && op->flags & ~TIELINE_OP_REMOTE_COMPLETION) return TIELINE_UNSUPPORTED_PARAM;
    if (tieline_not_understood(op->flags, TIELINE_OP_REMOTE_COMPLETION)) return TIELINE_UNSUPPORTED_PARAM;
    if ((status = sum(op->iov, op->iov_count, longest_rma(e->interface), &len))) return status;
    if (len != op->len) return TIELINE_INVALID;
    for (size_t n = 0; n < op->iov_count; n++) {
        const struct tieline_region *r = op->iov[n].region; /* null: the piece may be any memory */
        if (!r && op->iov[n].len && MUTATED(NO_REGION_REFUSED)) return TIELINE_INVALID;
        if (r && ((size_t)(op->iov[n].base - r->base) > r->len || op->iov[n].len > r->len - (size_t)(op->iov[n].base - r->base)))
            return TIELINE_INVALID;
    }
    if (MUTATED(KEYS_OF_A_THREAD) && !imported_here) return TIELINE_KEY_REJECTED;
    f.key = *op->key;
    e->more = tells_late() && op->flags & TIELINE_OP_MORE;
    status = post(e, &f, op->iov, op->iov_count, op->cookie);
    e->more = 0;
    return status;
}
static int32_t put(struct tieline_endpoint *e, const struct tieline_rma *op) { return post_rma(e, op, PUT); }
static int32_t get(struct tieline_endpoint *e, const struct tieline_rma *op) { return post_rma(e, op, GET); }

static int32_t atomic(struct tieline_endpoint *e, const struct tieline_atomic *op)
{
    struct frame f = { .kind = ATOMIC, .op = (uint16_t)op->op, .width = (uint16_t)op->width, .offset = op->offset,
                       .len = op->width, .operand = op->operand, .compare = op->compare };
    int32_t status;
    if (tieline_not_understood(op->flags, TIELINE_OP_FETCH | TIELINE_OP_REMOTE_COMPLETION)) return TIELINE_UNSUPPORTED_PARAM;
    if (!e->interface->domain->state->values[ATOMICS] || op->op > TIELINE_ATOMIC_MAX || (op->width != 4 && op->width != 8))
        return TIELINE_UNSUPPORTED;
    if (op->offset % op->width) return TIELINE_MISALIGNED;
    f.key = *op->key;
    status = post(e, &f, NULL, 0, op->cookie);
    if (status == TIELINE_PENDING) {
        e->operations[f.id].fetch = op->flags & TIELINE_OP_FETCH;
        e->operations[f.id].result = op->result;
    }
    return status;
}

/* Posts an empty request: the peer answers in order, so it has carried out and delivered all earlier ones. */
static int32_t flush(struct tieline_endpoint *e, uint64_t cookie)
{
    struct frame f = { .kind = FLUSH };
    int32_t status;
    if (e->phase == ENDED) return MUTATED(FLUSH_HIDES_FAILURE) ? TIELINE_OK : e->status;
    if (!e->dirty || (MUTATED(FLUSH_FOR_GETS_ONLY) && !e->gets)) return TIELINE_OK;
    e->flushing = 1;
    status = post(e, &f, NULL, 0, cookie);
    e->flushing = 0;
    return status;
}

/* Requests are carried out on arrival, except for gets whose answer finds no room: the fence waits for those. */
static int32_t fence(struct tieline_endpoint *e)
{
    if (e->phase == ENDED) return e->status;
    if (e->kept && send_kept(e)) return TIELINE_AGAIN;
    e->fence = MUTATED(FENCE_IDLE) ? 0 : e->gets;
    return TIELINE_OK;
}

static int32_t import_key(struct tieline_endpoint *e, const struct tieline_import_params *in, struct tieline_key **out)
{
    struct tieline_import_params params;
    struct tieline_key *k;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (e->phase == FRESH) return fail(MUTATED(IMPORT_REJECTED_EARLY) ? TIELINE_KEY_REJECTED : TIELINE_AGAIN, "the endpoint is not connected: whose key this should be is not known");
    if (params.len != sizeof *k) return fail(TIELINE_KEY_REJECTED, "a key of pairs has 40 bytes");
    if (memcmp(params.bytes, (MUTATED(KEY_OF_NEWEST) ? e->interface->endpoints : e)->peer.domain, sizeof e->peer.domain) && !MUTATED(FOREIGN_KEY_TAKEN))
        return fail(TIELINE_KEY_REJECTED, "the key is none of the peer's domain");
    if (!(k = malloc(sizeof *k))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    memcpy(k, params.bytes, sizeof *k); /* the peer checks the rest at every operation, because it knows its regions */
    imported_here = k;
    if (MUTATED(KEYS_CACHED)) {
        if (!e->is_cached || !memcmp(&e->cached, k, sizeof *k)) {
            e->cached = *k, e->is_cached = 1;
            free(k);
            k = &e->cached;
        }
    }
    *out = k;
    return TIELINE_OK;
}

static void drop_key(struct tieline_endpoint *e, struct tieline_key *k)
{
    if (&e->cached == k) memset(k, 0, sizeof *k), e->is_cached = 0;
    else if (!MUTATED(KEY_LEAKS)) free(k);
}

/* ---- endpoints ---- */

static int32_t new_endpoint(struct tieline_interface *i, const struct tieline_endpoint_params *in, struct tieline_endpoint **out)
{
    struct tieline_endpoint_params params;
    struct tieline_endpoint *e;
    uint64_t window = i->domain->state->values[WINDOW];
    size_t size = sizeof *e + window * sizeof(struct operation) + MESSAGE_HEAD + longest(i);
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (params.address_len || params.identity_len)
        return fail(TIELINE_INVALID, "an endpoint of pairs is made without address and identity: connect takes the address");
    if (i->spare) {
        struct tieline_endpoint fresh = { .first = 0 };
        e = i->spare, i->spare = NULL;
        memcpy(e, &fresh, offsetof(struct tieline_endpoint, open)); /* the queues stay */
    } else if (!(e = calloc(1, size))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    e->interface = i, e->cookie = MUTATED(COOKIE_OF_32_BITS) ? (uint32_t)params.cookie : params.cookie, e->window = window;
    e->packed = (uint8_t *)&e->operations[window];
    e->own.place = i->place;
    memcpy(e->own.domain, i->domain->id, sizeof e->own.domain);
    e->listener = e->out = e->in = -1;
    if (randomly(e->own.name, sizeof e->own.name)) {
        e->listener = new_socket(e->own.name, "-in");
        e->out = new_socket(e->own.name, "-out");
    }
    if (e->listener < 0 || e->out < 0 || listen(e->listener, BACKLOG)) {
        drop_sockets(e);
        free(e);
        return fail(TIELINE_NO_MEMORY, "no socket for the endpoint: too many open files");
    }
    e->next = i->endpoints, i->endpoints = e, i->peers++;
    *out = e;
    return TIELINE_OK;
}

static int64_t copy_out(const void *from, size_t len, uint8_t *out, size_t capacity)
{
    if (capacity) memcpy(out, from, len < capacity ? len : capacity);
    if (MUTATED(LENGTH_CUT) && capacity < len) return (int64_t)capacity;
    return (int64_t)len; /* the whole length, even if it did not fit */
}

static int64_t endpoint_address(struct tieline_endpoint *e, uint8_t *out, size_t capacity)
{
    return copy_out(&e->own, sizeof e->own, out, MUTATED(ENDPOINT_ADDRESS_WHOLE) && capacity ? sizeof e->own : capacity);
}

static const char *elsewhere(const struct tieline_interface *i, const struct place *p) /* why the place cannot be reached */
{
    if (memcmp(p->magic, i->place.magic, sizeof p->magic)) return "the address is no address of pairs";
    if (memcmp(p->boot, i->place.boot, sizeof p->boot)) return "pairs reaches processes under the same kernel only";
    if (p->device != i->place.device || p->inode != i->place.inode)
        return "the peer is in another network namespace: pairs needs the same one";
    return NULL;
}

static int32_t connect_endpoint(struct tieline_endpoint *e, const struct tieline_connect_params *in)
{
    struct tieline_connect_params params;
    struct address to = { .place = e->interface->place };
    const char *no;
    int32_t status = MUTATED(CONNECT_TAKES_UNKNOWN) ? (params = *in, TIELINE_OK) : tieline_read_params(&params, sizeof params, in);
    uint64_t patience = e->interface->domain->state->values[PATIENCE], time = now();
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (e->phase != FRESH) return fail(TIELINE_INVALID, "the endpoint has been connected before");
    if (MUTATED(NOISE_CONNECTS) && params.address_len < sizeof to) memcpy(&to.name, params.address, params.address_len < 32 ? params.address_len : 32);
    else if (params.address_len != sizeof to && !(MUTATED(ADDRESS_OVERREAD) && params.address_len))
        return fail(TIELINE_UNREACHABLE, "the address is no address of pairs");
    else memcpy(&to, params.address, sizeof to);
    if ((no = elsewhere(e->interface, &to.place))) return fail(TIELINE_UNREACHABLE, no);
    if (watch(e, EPOLL_CTL_ADD, e->listener, LISTENER, EPOLLIN)) return fail(TIELINE_NO_MEMORY, "epoll takes no more sockets");
    e->peer = to, e->phase = CONNECTING;
    if (MUTATED(NEW_NAME_AT_CONNECT) && randomly(e->own.name, sizeof e->own.name)) {
        drop_sockets(e);
        e->listener = new_socket(e->own.name, "-in"), e->out = new_socket(e->own.name, "-out");
        if (listen(e->listener, BACKLOG) || watch(e, EPOLL_CTL_ADD, e->listener, LISTENER, EPOLLIN)) return TIELINE_IO;
    }
    e->deadline = patience > UINT64_MAX - time ? UINT64_MAX : time + patience;
    try_connect(e);
    set_timer(e->interface);
    return TIELINE_OK;
}

static void close_endpoint(struct tieline_endpoint *e)
{
    struct tieline_interface *i = e->interface;
    struct frame bye = { .kind = BYE };
    int fd;
    forget(&i->endpoints, e);
    i->peers--;
    i->untold -= e->phase == ENDED && (e->told <= MUTATED(FAILS_TWICE) || MUTATED(MISCOUNTED_ENDS));
    for (uint64_t n = 0; n < e->window && MUTATED(COMPLETES_AFTER_CLOSE); n++)
        if (e->operations[n].kind) i->ghosts = 1, i->ghost = e->operations[n].cookie;
    for (uint64_t n = 0; n < e->window; n++) i->held -= e->operations[n].kind == HELD;
    if (e->listener >= 0) { /* peers that have connected and were not accepted learn of an orderly close */
        shutdown(e->listener, SHUT_RD);
        while ((fd = accept4(e->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
            send(fd, &bye, MESSAGE_HEAD, MSG_NOSIGNAL | MSG_DONTWAIT);
            close(fd);
        }
    }
    if (MUTATED(LISTENER_LEAKS) && e->phase == FRESH) e->listener = -1;
    drop_socket(e, &e->listener);
    drop_socket(e, &e->in);
    if (e->phase == OPEN && !e->broken) {
        e->phase = LEAVING, e->bye = !MUTATED(CLOSES_WITHOUT_WORD);
        e->next = i->leaving, i->leaving = e;
        if (MUTATED(CLOSE_DROPS_PACKED)) e->stash = EMPTY;
        if (push(e)) leave(e); /* otherwise poll sends the rest, or the interface's close does */
    } else {
        drop_sockets(e);
        release(e);
    }
    set_timer(i);
}

/* ---- the interface ---- */

static int find_place(struct place *p)
{
    char text[64];
    struct stat names;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC), digits = 0;
    ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof text);
    if (fd >= 0) close(fd);
    *p = (struct place){ .magic = "pairs:1" };
    for (ssize_t n = 0; n < len && digits < 32; n++) {
        const char *hex = "0123456789abcdef", *digit = text[n] ? strchr(hex, text[n]) : NULL;
        if (digit) p->boot[digits / 2] |= (uint8_t)((digit - hex) << (digits % 2 ? 0 : 4)), digits++;
    }
    if (digits != 32 || stat("/proc/self/ns/net", &names)) return 0;
    p->device = names.st_dev, p->inode = names.st_ino;
    return 1;
}

static uint8_t *new_pages(const struct tieline_host *h, size_t len) /* accounted to the context if the core supports that */
{
    if (MUTATED(HOST_SIZE_UNREAD) || h->size >= offsetof(struct tieline_host, pages_free) + sizeof h->pages_free)
        return h->pages_alloc(h->context, len);
    return calloc(1, len);
}

static void free_pages(const struct tieline_host *h, uint8_t *pages, size_t len)
{
    if (!pages) return;
    if (h->size >= offsetof(struct tieline_host, pages_free) + sizeof h->pages_free) h->pages_free(h->context, pages, len);
    else free(pages);
}

static void close_interface(struct tieline_interface *i)
{
    uint64_t wait = i->domain->state->values[CLOSE_TIMEOUT], time = now(), until = wait > UINT64_MAX - time ? UINT64_MAX : time + wait;
    struct epoll_event ready[BATCH];
    /* Accepted packets: a peer that polls makes room for them. */
    while (i->leaving && !MUTATED(CLOSE_HURRIES) && ((time = now()) < until || MUTATED(CLOSE_WAITS_FOR_EVER))) {
        uint64_t left = time < until ? (until - time) / 1000000 + 1 : 1000;
        int count = epoll_wait(i->epoll, ready, BATCH, left > 1000 ? 1000 : (int)left);
        for (int n = 0; n < count; n++) {
            struct tieline_endpoint *e = (void *)(uintptr_t)(ready[n].data.u64 & ~UINT64_C(3));
            if (e) outward(e, ready[n].events);
        }
    }
    while (i->leaving) leave(i->leaving);
    free(i->spare);
    if (i->epoll >= 0) close(i->epoll);
    if (i->timer >= 0) close(i->timer);
    free_pages(i->domain->state->host, i->arena, (size_t)BATCH * BUFFER);
    free(i);
}

static int32_t open_interface(struct tieline_domain *d, const struct tieline_interface_params *in, struct tieline_interface **out)
{
    struct tieline_interface_params params;
    struct tieline_interface *i;
    struct epoll_event event = { .events = EPOLLIN };
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (params.module_len != 4 || memcmp(params.module, "pair", 4)) return fail(TIELINE_NO_DEVICE, "the only module is `pair`");
    if (!(i = calloc(1, sizeof *i))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    i->domain = d;
    i->epoll = epoll_create1(EPOLL_CLOEXEC);
    i->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    i->arena = new_pages(d->state->host, (size_t)BATCH * BUFFER);
    if (i->epoll < 0 || i->timer < 0 || epoll_ctl(i->epoll, EPOLL_CTL_ADD, i->timer, &event))
        status = fail(TIELINE_NO_MEMORY, "no descriptor for epoll and a timer: too many open files");
    else if (!i->arena) status = fail(TIELINE_NO_MEMORY, "no memory for the buffers of messages");
    else if (!find_place(&i->place)) status = fail(TIELINE_IO, "/proc does not say which kernel and network namespace this is");
    if (status) { close_interface(i); return status; }
    opened_here = 1;
    *out = i;
    return TIELINE_OK;
}

static int64_t interface_address(struct tieline_interface *i, uint8_t *out, size_t capacity)
{
    return copy_out(&i->place, sizeof i->place, out, capacity);
}

static int32_t reachable(struct tieline_interface *i, const uint8_t *address, size_t len)
{
    struct place p;
    const char *no = "the address is no address of pairs";
    if (len == sizeof p) memcpy(&p, address, len), no = elsewhere(i, &p);
    if (!no) return TIELINE_OK;
    if (MUTATED(UNREACHABLE_WITHOUT_WORDS)) return TIELINE_UNREACHABLE;
    return fail(TIELINE_UNREACHABLE, no);
}

static int32_t memory(struct tieline_interface *i, struct tieline_memory_use *out)
{
    struct tieline_memory_use use = { .size = sizeof use, .base_bytes = sizeof *i, .peers = i->peers,
                                      .buffer_bytes = (uint64_t)BATCH * BUFFER };
    use.peer_bytes = i->peers * (sizeof(struct tieline_endpoint) + i->domain->state->values[WINDOW] * sizeof(struct operation) +
                                 MESSAGE_HEAD + longest(i));
    if (MUTATED(RECORD_WRITTEN_WHOLE)) use.size = out->size, *out = use;
    tieline_write_record(out, &use, sizeof use);
    return TIELINE_OK;
}

/* ---- the domain ---- */

static int32_t new_region(struct tieline_domain *d, uint8_t *base, size_t len, uint64_t access, uint8_t owned,
                          struct tieline_memory_region *out)
{
    struct tieline_region *r = NULL;
    uint64_t secret;
    if (!randomly(&secret, sizeof secret)) return fail(TIELINE_IO, "the kernel gives no random numbers");
    if (!MUTATED(REGISTERS_UNLOCKED)) pthread_mutex_lock(&d->lock);
    for (size_t n = 0; n < REGIONS && !r; n++)
        if (!d->regions[n].used) r = &d->regions[n];
    if (r) {
        struct tieline_region before = *r;
        *r = (struct tieline_region){ .base = base, .len = len, .access = access, .generation = ++d->generations,
                                      .secret = secret, .used = 1, .owned = owned };
        if (MUTATED(GENERATION_REUSED) && before.generation) r->generation = before.generation, r->secret = before.secret;
    }
    if (!MUTATED(REGISTERS_UNLOCKED)) pthread_mutex_unlock(&d->lock);
    if (!r) return fail(TIELINE_NO_MEMORY, "all 4096 regions are in use");
    struct tieline_memory_region region = { .size = sizeof region, .handle = r, .base = base, .len = len };
    tieline_write_record(out, &region, sizeof region);
    return TIELINE_OK;
}

static int32_t alloc(struct tieline_domain *d, const struct tieline_alloc_params *in, struct tieline_memory_region *out)
{
    struct tieline_alloc_params params;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), len;
    void *base;
    if (status || tieline_not_understood(params.flags, 0) || params.access & ~RIGHTS) return unknown(status);
    if (params.kind != TIELINE_MEMORY_KIND_HOST)
        return fail(TIELINE_UNSUPPORTED, "pairs has the processor's memory only");
    if (!params.len) return fail(TIELINE_INVALID, "memory of no bytes");
    len = (params.len + page - 1) / page * page;
    for (size_t n = 0; n < REGIONS && MUTATED(ALLOC_NOT_ZEROED); n++)
        if (d->regions[n].owned && !d->regions[n].used && d->regions[n].len == len) {
            d->regions[n].owned = 0;
            return new_region(d, d->regions[n].base, len, params.access, 1, out);
        }
    base = len < params.len ? MAP_FAILED : mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return fail(TIELINE_NO_MEMORY, "mmap has no memory");
    if ((status = new_region(d, base, len, params.access, 1, out))) munmap(base, len);
    return status;
}

static int32_t register_memory(struct tieline_domain *d, const struct tieline_register_params *in, struct tieline_memory_region *out)
{
    struct tieline_register_params params;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, TIELINE_REGISTER_DMABUF) ||
        params.access & ~RIGHTS & (MUTATED(RIGHTS_AS_HINTS) ? UINT64_C(0xffffffff) : UINT64_MAX))
        return unknown(status);
    if (MUTATED(DMABUF_AS_HOST)) params.flags = 0;
    if (MUTATED(DMABUF_CLOSED) && params.flags & TIELINE_REGISTER_DMABUF) close(params.dmabuf);
    if (MUTATED(DMABUF_LOOKED_AT) && params.dmabuf) return fail(TIELINE_UNSUPPORTED, "pairs has no DMA buffers");
    if (MUTATED(DEVICE_REFUSED_SILENTLY) && params.kind) return TIELINE_UNSUPPORTED;
    if (params.kind != TIELINE_MEMORY_KIND_HOST || params.flags & TIELINE_REGISTER_DMABUF)
        return fail(TIELINE_UNSUPPORTED, "pairs registers the processor's memory only, by its address");
    return new_region(d, params.base, params.len, params.access, 0, out);
}

static int32_t revoke_region(struct tieline_domain *d, struct tieline_region *r)
{
    int32_t status;
    pthread_mutex_lock(&d->lock);
    r->refused = 1;
    status = r->busy && !MUTATED(BUSY_IGNORED) ? TIELINE_AGAIN : TIELINE_OK;
    pthread_mutex_unlock(&d->lock);
    return status == TIELINE_AGAIN ? fail(status, "a peer's access is not through") : status;
}

static int32_t revoke_or_refuse(struct tieline_domain *d, struct tieline_region *r)
{
    if (MUTATED(REVOKED_ONCE) && r->refused) return fail(TIELINE_INVALID, "the region is revoked already");
    return revoke_region(d, r);
}

static int32_t deregister(struct tieline_domain *d, struct tieline_region *r)
{
    int32_t status = revoke_region(d, r);
    if (status) return status;
    if (r->owned && !MUTATED(ALLOC_LEAKS) && !MUTATED(ALLOC_NOT_ZEROED)) munmap(r->base, r->len);
    pthread_mutex_lock(&d->lock);
    r->used = 0;
    pthread_mutex_unlock(&d->lock);
    return TIELINE_OK;
}

static int64_t pack_key(struct tieline_domain *d, const struct tieline_key_params *in, uint8_t *out, size_t capacity)
{
    struct tieline_key_params params;
    struct tieline_region *r;
    struct tieline_key k;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0) || params.access & ~RIGHTS) return unknown(status);
    if (params.offset || params.len || params.access)
        return fail(TIELINE_UNSUPPORTED, "keys of pairs lead to whole regions, with all their rights");
    r = params.region;
    k = (struct tieline_key){ .slot = (uint64_t)(r - d->regions), .generation = r->generation, .secret = r->secret };
    memcpy(k.domain, d->id, sizeof k.domain);
    return copy_out(&k, sizeof k, out, capacity);
}

static int32_t query_modules(struct tieline_domain *d, struct tieline_module_attr *out, size_t capacity, size_t *count)
{
    const uint64_t *values = d->state->values;
    struct tieline_cost small = { 1000, 2000, 0 }, bulk = { 2000, 4000, 2e9 }, rma = { 1500, 6000, 1e9 };
    uint64_t more = (MUTATED(BUFFERS_OF_A_THREAD) || MUTATED(KEYS_OF_A_THREAD) || IS_ODD(CLAIMS_MORE) ? TIELINE_CAP_ANY_THREAD : 0) |
                    (MUTATED(NO_REGION_REFUSED) || IS_ODD(CLAIMS_MORE) ? TIELINE_CAP_TAKES_REGIONS : 0);
    uint32_t masks = values[ATOMICS] ? (2u << TIELINE_ATOMIC_MAX) - 1 : 0;
    struct tieline_module_attr attr = {
        .size = sizeof attr, .name = "pair", .role = TIELINE_ROLE_DATA, .connects = TIELINE_CONNECTS_TO_ENDPOINT,
        .caps = CAPS | (masks ? TIELINE_CAP_ATOMICS : 0) | more, .priority = 1, .max_iov = (uint32_t)most_pieces(),
        .max_short = IS_ODD(LEAST_LIMITS) ? 8 : values[PACKET], .max_packed = values[PACKET], .max_zcopy = values[PACKET],
        .max_put = IS_ODD(LEAST_LIMITS) ? 8 : values[PACKET], .max_get = IS_ODD(LEAST_LIMITS) ? 8 : values[PACKET],
        .atomic_post32 = masks, .atomic_post64 = masks, .atomic_fetch32 = masks, .atomic_fetch64 = masks,
        .cost = { small, bulk, rma, rma, rma },
        .max_address_len = sizeof(struct place), .max_endpoint_address_len = sizeof(struct address),
    };
    *count = 1;
    if (capacity) tieline_write_record(out, &attr, sizeof attr);
    return TIELINE_OK;
}

static void close_domain(struct tieline_domain *d)
{
    for (size_t n = 0; n < REGIONS; n++)
        if (d->regions[n].used && d->regions[n].owned) munmap(d->regions[n].base, d->regions[n].len);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static const struct tieline_domain_ops domain_ops = {
    .size = sizeof domain_ops, .close = close_domain, .query_modules = query_modules, .open_interface = open_interface,
    .alloc = alloc, .register_ = register_memory, .deregister = deregister, .pack_key = pack_key, .revoke = revoke_or_refuse };
static const struct tieline_interface_ops interface_ops = {
    .size = sizeof interface_ops, .poll = poll, .close = close_interface, .address = interface_address,
    .reachable = reachable, .connect = new_endpoint, .arm = arm, .event_fd = event_fd, .memory = memory };
static const struct tieline_endpoint_ops endpoint_ops = {
    .size = sizeof endpoint_ops, .am_short = am_short, .am_packed = am_packed, .am_zcopy = am_zcopy, .put = put, .get = get,
    .atomic = atomic, .flush = flush, .fence = fence, .close = close_endpoint, .import_key = import_key, .drop_key = drop_key,
    .address = endpoint_address, .connect = connect_endpoint };

/* ---- the provider ---- */

static int32_t query_domains(struct tieline_state *state, struct tieline_domain_attr *out, size_t capacity, size_t *count)
{
    struct tieline_domain_attr attr = { .size = sizeof attr, .name = "pairs", .register_ns = 500,
                                        .caps = TIELINE_MEMORY_CAP_ALLOC | TIELINE_MEMORY_CAP_REGISTER,
                                        .max_key_len = sizeof(struct tieline_key) };
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
    if (params.name_len != 5 || memcmp(params.name, "pairs", 5)) return fail(TIELINE_NO_DEVICE, "the only domain is `pairs`");
    if (!(d = calloc(1, sizeof *d))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    if (!randomly(d->id, sizeof d->id)) { free(d); return fail(TIELINE_IO, "the kernel gives no random numbers"); }
    d->state = state;
    pthread_mutex_init(&d->lock, NULL);
    *out = d;
    return TIELINE_OK;
}

#define TEXT(literal) (const uint8_t *)(literal), sizeof(literal) - 1
#define HOST_HAS(host, slot) ((host)->size >= offsetof(struct tieline_host, slot) + sizeof (host)->slot && (host)->slot)

static const struct tieline_config_var variables[VARIABLES] = {
    [PACKET] = { sizeof *variables, TEXT("TIELINE_PAIRS_PACKET"), TEXT("8k"), TEXT("Longest message, put and get of pairs."),
                 TIELINE_CONFIG_SIZE, 0, 64, LONGEST, NULL, 0 },
    [WINDOW] = { sizeof *variables, TEXT("TIELINE_PAIRS_WINDOW"), TEXT("64"),
                 TEXT("Most puts, gets, atomics and flushes that one endpoint of pairs has under way."),
                 TIELINE_CONFIG_COUNT, 0, 1, OPS, NULL, 0 },
    [PATIENCE] = { sizeof *variables, TEXT("TIELINE_PAIRS_PATIENCE"), TEXT("30s"),
                   TEXT("How long an endpoint of pairs waits for its peer to connect."), TIELINE_CONFIG_DURATION, 0, 1000000, 0, NULL, 0 },
    [ATOMICS] = { sizeof *variables, TEXT("TIELINE_PAIRS_ATOMICS"), TEXT("on"), TEXT("Whether pairs does atomics itself."),
                  TIELINE_CONFIG_BOOL, 0, 0, 0, NULL, 0 },
    [CLOSE_TIMEOUT] = { sizeof *variables, TEXT("TIELINE_CLOSE_TIMEOUT"), TEXT("1s"), TEXT("The core's."),
                        TIELINE_CONFIG_DURATION, 0, 0, 0, NULL, 0 },
};
/* The values with a host too old for variables. */
static const uint64_t defaults[VARIABLES] = { 8192, 64, UINT64_C(30000000000), 1, UINT64_C(1000000000) };

/* The host checks the values; if it refuses one, it has the error text. */
static int32_t settings(const struct tieline_host *h, uint64_t *values)
{
    int32_t status = TIELINE_OK;
    if (HOST_HAS(h, config_declare) && !MUTATED(SETTING_UNDECLARED))
        status = h->config_declare(h->context, variables, VARIABLES);
    if (status && !MUTATED(BAD_SETTING_DEFAULTS)) return status;
    for (int n = 0; n < VARIABLES; n++) {
        struct tieline_config_value value = { .size = sizeof value };
        const struct tieline_config_var *of = &variables[MUTATED(SETTING_OF_ANOTHER) && n == PACKET ? WINDOW : n];
        const char *text = MUTATED(SETTING_FROM_ENVIRONMENT) ? getenv((const char *)of->name) : NULL;
        values[n] = defaults[n];
        if (MUTATED(SETTING_FROM_ENVIRONMENT)) {
            if (text) values[n] = strtoull(text, NULL, 10);
        } else if (HOST_HAS(h, config_get) && !h->config_get(h->context, of->name, of->name_len, &value)) {
            int least = IS_ODD(LEAST_LIMITS) && value.is_default && (n == PACKET || n == WINDOW);
            values[n] = least ? variables[n].least : value.number;
        }
    }
    return TIELINE_OK;
}

static int64_t last_error(struct tieline_state *state, uint8_t *out, size_t capacity)
{
    const char *text = MUTATED(ERROR_OF_ALL_THREADS) ? why_of_all : why;
    (void)state;
    return copy_out(text, strlen(text), out, capacity);
}

static void quiesce(struct tieline_state *state) { if (!MUTATED(STATE_SHARED)) free(state); }

int32_t tieline_provider_v1(const struct tieline_host *host, struct tieline_provider_ops *out)
{
    struct tieline_provider_ops ops = {
        .abi_minor = TIELINE_ABI_MINOR, .query_domains = query_domains, .open_domain = open_domain,
        .last_error = last_error, .quiesce = quiesce, .domain = &domain_ops, .interface = &interface_ops, .endpoint = &endpoint_ops };
    static struct tieline_state shared; /* STATE_SHARED */
    int32_t status;
    if (!host || !out) return TIELINE_INVALID;
    if (!(ops.state = MUTATED(STATE_SHARED) ? &shared : calloc(1, sizeof *ops.state))) return TIELINE_NO_MEMORY;
    ops.state->host = host;
    status = settings(host, ops.state->values);
    if (status) { quiesce(ops.state); return status; }
    tieline_write_record(out, &ops, sizeof ops);
    out->size = sizeof ops;
    return TIELINE_OK;
}
