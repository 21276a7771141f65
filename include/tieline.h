/*
 * The C library of Tieline. docs/c.md gives the rules, each behind an example.
 *
 * Every call returns TIELINE_OK, TIELINE_PENDING, a number that is not negative, or a status below 0; then tieline_last_error
 * and tieline_error_text have its words in this thread. Records begin with their size. Outputs are zeroed first. A text or bytes
 * of unknown length go where the caller has room, whose length is said and heard by `len`.
 *
 * Made by `cargo xtask header` from capi/src/abi. Do not edit.
 */
#ifndef TIELINE_H
#define TIELINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Statuses: those of the provider ABI ---- */

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

/* ---- Numbers, records and functions ---- */

/*
 * Status: an operation, an endpoint, a question or a worker has ended because its time was up (tieline_error.kind says what became of
 * it). TIELINE_TIMED_OUT is the end of a wait alone: what was waited for goes on.
 */
#define TIELINE_EXPIRED -100

/* A thread of the library serves what peers ask of this context's memory while the application computes. */
#define TIELINE_CONTEXT_PROGRESS_THREAD 1

/* Promises peers that all workers make progress all the time (TIELINE_POLLS_OFTEN). */
#define TIELINE_CONTEXT_POLLS_OFTEN 2

/* The caller carries the datagrams that form connections (tieline_worker_set_out_of_band). */
#define TIELINE_CONTEXT_OUT_OF_BAND 4

/* What was found and is used, as `tieline info` prints it. */
#define TIELINE_REPORT_TABLE 0

/* Why each provider and module is used or not. */
#define TIELINE_REPORT_WHY 1

/* All of it for a program. */
#define TIELINE_REPORT_JSON 2

/* Without end, for a time. */
#define TIELINE_FOREVER (-1)

/* Peers may get. */
#define TIELINE_READ 1

/* Peers may put. */
#define TIELINE_WRITE 2

/* Peers may do atomics. */
#define TIELINE_ATOMIC 4

/* Peers may do all three. */
#define TIELINE_ALL 7

/*
 * No right, but a promise: nobody looks at the memory to see whether a put has arrived, before a completion, a notification or a
 * message has said so. A device may then let writes of peers pass each other on the bus.
 */
#define TIELINE_RELAXED_ORDERING 8

/*
 * No right either: the memory need not be mapped with these rights yet, because it is reserved now and committed later. Until then
 * accesses of peers fail with TIELINE_PERMISSION, and nothing else does.
 */
#define TIELINE_COMMITTED_LATER 16

/* The end of an operation is told by a number: tieline_worker_finish, _test, _forget. */
#define TIELINE_TELL_REQUEST 0

/* By tieline_worker_take_completed, with `user`; also of what is done at once. */
#define TIELINE_TELL_TRACKED 1

/* By `counter`; also of what is done at once. */
#define TIELINE_TELL_COUNTED 2

/* A put is complete when its bytes may be used again; a flush says when they are at the target. */
#define TIELINE_HOW_LOCAL 1

/* The peer's handler of notifications runs with `word` when the bytes of this put, and of those before, are there. */
#define TIELINE_HOW_NOTIFY 2

/* What was posted is completed first. */
#define TIELINE_CLOSE_FLUSH 0

/* What is pending ends at once, as canceled. */
#define TIELINE_CLOSE_CANCEL 1

/* Of a failure: this call will never succeed as it is, and the object is as it was. */
#define TIELINE_DO_CORRECT 0

/* Nothing was done: make progress, and call again. */
#define TIELINE_DO_RETRY 1

/* The endpoint has ended, or did not come about: the same may succeed over a new one. */
#define TIELINE_DO_RECONNECT 2

/* The peer is gone, or another one is in its place: exchange addresses again. */
#define TIELINE_DO_EXCHANGE 3

/* A setting, what is installed or what is permitted has to change: `tieline info --why`. */
#define TIELINE_DO_CONFIGURE 4

/* A bounded resource of this process ran out: let go of some. */
#define TIELINE_DO_RELEASE 5

/* The context is of no use for this any more: open another one. */
#define TIELINE_DO_REOPEN 6

/* Of an operation that failed: it was refused, the target's memory is as it was, and the connection stands. */
#define TIELINE_OP_REFUSED 7

/* It was lost with its connection: it may have happened, or not, or may happen still. */
#define TIELINE_OP_UNKNOWN 8

/* This process gave it up. */
#define TIELINE_OP_CANCELED 9

/* Nothing was looked at: it goes on, if it has not ended. */
#define TIELINE_OP_PENDING 10

/* The library panicked: what was called is of no use any more. Report it. */
#define TIELINE_PANICKED 11

/* Of tieline_worker_wait: something happened. */
#define TIELINE_MOVED 1

/* Nothing has happened, and the time is not up: wait again. */
#define TIELINE_ROUSED 2

/* An atomic: addition, wrapping. */
#define TIELINE_ATOMIC_ADD 0

/* Bitwise and. */
#define TIELINE_ATOMIC_AND 1

/* Bitwise or. */
#define TIELINE_ATOMIC_OR 2

/* Bitwise exclusive or. */
#define TIELINE_ATOMIC_XOR 3

/* Exchange. */
#define TIELINE_ATOMIC_SWAP 4

/* Stores if the word is what it was taken for. */
#define TIELINE_ATOMIC_COMPARE_SWAP 5

/* Unsigned minimum. */
#define TIELINE_ATOMIC_MIN 6

/* Unsigned maximum. */
#define TIELINE_ATOMIC_MAX 7

/* A message that is longer than is sent at once, whose bytes are with the sender. */
struct tieline_announcement;

/* What a program opens first. */
struct tieline_context;

/* Counts operations of one worker that have ended. */
struct tieline_counter;

/* The way to one peer, of one worker. */
struct tieline_endpoint;

/* The processes that one launcher started, as one of them sees them. Usable from every thread. */
struct tieline_job;

/* A message that a handler has kept. */
struct tieline_kept;

/* A peer's region, as an endpoint reaches it. */
struct tieline_key;

/* A question for the worker of a name, on its way. */
struct tieline_name_call;

/* A peer's memory, mapped in this process. */
struct tieline_pointer;

/* Memory that operations and peers use. It belongs to its context, and any thread may use it. */
struct tieline_region;

/* Wakes a worker that sleeps: from any thread, and from a signal handler. */
struct tieline_waker;

/* A progress engine, which one thread is in at a time. */
struct tieline_worker;

/* A failure in words, and what can be done about it. */
struct tieline_error {
    /* Bytes of this record; set it before the call. */
    size_t size;
    /* TIELINE_*, below 0; 0 where nothing has failed yet. */
    int32_t status;
    /* What can be done: TIELINE_DO_*, or what became of an operation: TIELINE_OP_*. */
    uint32_t kind;
    /* What happened. Never null; it lasts until the next call that fails in this thread. */
    const char *what;
    /* Why; empty where the status says it all. */
    const char *why;
    /* What to do; empty where there is nothing to advise. */
    const char *fix;
    /* The setting that is to blame, by its name; null where none is. */
    const char *setting;
};

/* One variable and its value, before the environment and files. */
struct tieline_setting {
    /* TIELINE_*. */
    const char *name;
    /* As in the environment. */
    const char *value;
};

/* How to open a context; zeros: as environment and files say. */
struct tieline_context_params {
    /* Bytes of this record. */
    size_t size;
    /* Variables, which beat the environment and the files. */
    const struct tieline_setting *settings;
    /* How many. */
    size_t settings_count;
    /* TIELINE_CONTEXT_*. */
    uint64_t flags;
};

/*
 * How the end of an operation is told. Null, or all zeros: by the number that the call gives, or by nobody where it is not asked for
 * (its failure is told by the endpoint's next flush).
 */
struct tieline_how {
    /* Bytes of this record. */
    size_t size;
    /* TIELINE_TELL_*. */
    uint32_t tell;
    /* TIELINE_HOW_*. */
    uint32_t flags;
    /* TIELINE_TELL_TRACKED: the word that its end is told with. */
    uint64_t user;
    /* TIELINE_TELL_COUNTED: where. */
    const struct tieline_counter *counter;
    /* TIELINE_HOW_NOTIFY: the word that the peer is told, behind the bytes of a put. */
    uint32_t word;
    /* Zero. */
    uint32_t reserved;
};

/* A piece of a region. */
struct tieline_piece {
    /* Whose. */
    const struct tieline_region *region;
    /* From here. */
    size_t offset;
    /* So many bytes. */
    size_t len;
};

/* What becomes known of an endpoint's end. */
typedef void (*tieline_endpoint_failure_fn)(void *user,
                                            struct tieline_endpoint *endpoint,
                                            const struct tieline_error *why);

/*
 * A message, for the length of the handler's call. The handler may copy it; after the call the record and its copies are refused with
 * TIELINE_INVALID, and `payload` may not be read.
 */
struct tieline_message {
    /* Bytes of this record. */
    size_t size;
    /* The header that it was sent with. */
    uint64_t header;
    /* Its bytes, for the length of the call; null where it is announced. */
    const void *payload;
    /* How long it is, whether its bytes are here or announced. */
    size_t len;
    /* The id that it was sent with. */
    uint32_t id;
    /*
     * Whether it is announced: not 0, it is longer than is sent at once, its bytes are still with the sender, and it is refused unless
     * the handler asks for them.
     */
    uint32_t is_announced;
    /* The library's: the number of the handler. */
    const void *reserved;
    /* The library's: the number of the message among those of the handler; 0 between two messages. */
    const void *reserved_worker;
};

/* What to do with a message, in the thread that makes progress. It must not throw. */
typedef void (*tieline_message_fn)(void *user, const struct tieline_message *message);

/* What to do when a peer's put has told its word. */
typedef void (*tieline_notification_fn)(void *user, uint32_t peer, uint32_t word);

/* What to do when a peer has failed. */
typedef void (*tieline_peer_failure_fn)(void *user, uint32_t peer, const struct tieline_error *why);

/* What to do when a peer has left. */
typedef void (*tieline_peer_left_fn)(void *user, uint32_t peer);

/* Blocks of a region at equal distances. */
struct tieline_blocks {
    /* Bytes of this record. */
    size_t size;
    /* Where the first one begins in its region. */
    uint64_t offset;
    /* How long each is. */
    size_t block;
    /* From the beginning of one to that of the next. */
    size_t stride;
    /* How many there are. */
    size_t count;
};

/* What an endpoint carries. */
struct tieline_limits {
    /* Bytes of this record; set it before the call. */
    size_t size;
    /* The longest message that is carried at once; longer ones are announced. */
    size_t max_message;
    /* The longest one that the transport copies within the call. */
    size_t max_short;
    /* The longest one that tieline_send_pieces has taken from where its pieces lie; 0: all are copied. */
    size_t max_gathered;
    /* Operations that may be pending at a time. */
    size_t max_pending;
    /* Bytes of pending operations above which a call says TIELINE_AGAIN. */
    size_t max_queued_bytes;
};

/* What a key leads to. */
struct tieline_key_info {
    /* Bytes of this record; set it before the call. */
    size_t size;
    /* The region's length. */
    uint64_t len;
    /* Not 0: puts and gets end while the target computes. */
    uint32_t reaches_passive_target;
    /* Not 0: a better way may still be found. */
    uint32_t is_settling;
    /* The longest put in one operation; longer ones are cut and end as one. 0: all go by messages. */
    size_t max_put;
    /* The longest get. */
    size_t max_get;
    /* Pieces of local memory in one operation. */
    size_t max_pieces;
};

/* What a counter has counted. */
struct tieline_counted {
    /* Bytes of this record; set it before the call. */
    size_t size;
    /* Operations that have ended well. */
    uint64_t done;
    /* Those that have failed, were canceled, or ended with their endpoint. */
    uint64_t failed;
    /* Those that have not ended. */
    uint64_t pending;
    /* The status of the first that failed; 0 where none has. */
    int32_t first_failure;
    /* What became of it: TIELINE_OP_*. */
    uint32_t first_kind;
};

/* An operation that has ended. */
struct tieline_completed {
    /* The word that it was tracked with. */
    uint64_t user;
    /* The value of a fetching atomic; 0 of others. */
    uint64_t value;
    /* TIELINE_OK, or how it failed. */
    int32_t status;
    /* What became of one that failed: TIELINE_OP_*. */
    uint32_t kind;
};

/* A worker's counters, from when it was opened. */
struct tieline_counters {
    /* Bytes of this record; set it before the call. */
    size_t size;
    /* Messages with an id that has no handler, and notifications where nothing handles any: dropped. */
    uint64_t unknown_ids;
    /* Malformed messages of the library's own protocols, and answers to what has ended meanwhile: dropped. */
    uint64_t malformed;
    /* Messages by which peers asked for puts, gets and atomics that no module does for them, or that are quicker so. */
    uint64_t emulated;
    /* Pieces of peers' large puts and gets that this worker copied for them. */
    uint64_t assisted_chunks;
    /* Connections that were formed with peers, by modules that connect to an endpoint. */
    uint64_t connections;
    /* Connections that such modules failed to form. */
    uint64_t failed_connections;
    /* Messages of wire-up that were sent again because no answer came. */
    uint64_t wireup_retransmissions;
    /* Requests for a connection that were rejected. */
    uint64_t wireup_rejections;
};

/* The library's, to be called by the caller's exchange, with what a rank gave. */
typedef void (*tieline_take_fn)(void *to, size_t rank, const void *bytes, size_t len);

/*
 * The caller's own exchange, in the place of the launcher's: every function returns TIELINE_OK or a status below 0. They are called in the
 * thread of the call; tieline_job_barrier with a worker calls barrier, or allgather, in a thread of the library's.
 */
struct tieline_exchange {
    /* Bytes of this record. */
    size_t size;
    /* This process's number, from 0. */
    size_t rank;
    /* How many processes there are, 16777216 at most. */
    size_t ranks;
    /* This process's number among those of its host. */
    size_t local_rank;
    /* How many those are; 0: it is not known, which is taken for 1. */
    size_t local_ranks;
    /* The first argument of the functions. */
    void *user;
    /*
     * Hands `mine`, `len` bytes, to everybody, and has everybody's handed to `take` in any order, each once: a call of
     * take(to, rank, bytes, len) for each rank, inside of this one. `to` is a number: bytes that come later go nowhere.
     */
    int32_t (*allgather)(void *user, const void *mine, size_t len, tieline_take_fn take, void *to);
    /* Leaves bytes for whoever looks them up. */
    int32_t (*publish)(void *user, uint32_t key, const void *bytes, size_t len);
    /* Waits until `rank` has published `key`, and hands its bytes to `take` once. */
    int32_t (*lookup)(void *user, size_t rank, uint32_t key, tieline_take_fn take, void *to);
    /* Returns when every process has called it; null: an allgather of no bytes does it. */
    int32_t (*barrier)(void *user);
};

/* A process's place in its job. */
struct tieline_job_place {
    /* Bytes of this record; set it before the call. */
    size_t size;
    /* This process's number, from 0. */
    size_t rank;
    /* How many processes there are. */
    size_t ranks;
    /* This process's number among those of its host. */
    size_t local_rank;
    /* How many those are. */
    size_t local_ranks;
};

/*
 * Hands a datagram over to the worker that calls itself `to`; returns not 0 where it was taken. It may be run by any call of the
 * worker, and must not call back.
 */
typedef int32_t (*tieline_datagram_fn)(void *user,
                                       const void *to,
                                       size_t to_len,
                                       const void *datagram,
                                       size_t len);

/* What failed last in this thread, in words. They last until the next call of this thread that fails. */
int32_t tieline_last_error(struct tieline_error *out);

/* The same in one line, "what: why; what to do": never null, empty where nothing has failed yet. */
const char *tieline_error_text(void);

/* What a status means, in a few words: never null. */
const char *tieline_status_text(int32_t status);

/* Opens a context: finds providers, ranks them and composes paths. `params` may be null. */
int32_t tieline_context_open(const struct tieline_context_params *params,
                             struct tieline_context **context);

/* Lets go of a context. What was opened in it stays, and keeps what it needs. */
int32_t tieline_context_close(struct tieline_context *context);

/*
 * What was found, what is used, and why everything else is not: TIELINE_REPORT_*, a text with its zero. `len` says how much room
 * there is, and hears how long the text is without its zero; TIELINE_TOO_LARGE where there is no room for all.
 */
int32_t tieline_context_report(const struct tieline_context *context,
                               uint32_t which,
                               char *text,
                               size_t *len);

/* Opens a worker. It belongs to no thread: any may use it, one at a time, and what belongs to it goes with it. */
int32_t tieline_worker_open(const struct tieline_context *context,
                            struct tieline_worker **worker);

/*
 * Delivers everything that is pending and what peers are owed, at most so long (below 0: without end), and closes the worker: its handle ends, also
 * where something could not be delivered, which the returned status and the thread's last error tell. Only TIELINE_BUSY (in a
 * handler, or another thread is in a call) and TIELINE_INVALID leave it as it was.
 */
int32_t tieline_worker_close(struct tieline_worker *worker,
                             int64_t timeout_ns);

/*
 * Lets go of a worker at once: what is pending ends, and may be lost. A handler may do so, and is then the last one: what else has come
 * is told to nobody.
 */
int32_t tieline_worker_drop(struct tieline_worker *worker);

/*
 * The bytes that lead a peer here. Carry them by a channel that only the job can read: where no secret is set (TIELINE_SECRET) whoever has them
 * may connect. `len` says how much room there is, and hears how many they are; TIELINE_TOO_LARGE where there is no room for all.
 */
int32_t tieline_worker_address(const struct tieline_worker *worker,
                               void *address,
                               size_t *len);

/* Moves everything on that can be moved on and runs handlers. Returns how many events there were, or a failure; 0 in a handler. */
int32_t tieline_worker_progress(const struct tieline_worker *worker);

/*
 * Makes progress until `condition` returns something else than 0, at most so long (below 0: without end): TIELINE_TIMED_OUT when the
 * time is up. It is looked at between events, may look at anything and post; only what waits may not stand in it.
 */
int32_t tieline_worker_wait_until(const struct tieline_worker *worker,
                                  int32_t (*condition)(void *user),
                                  void *user,
                                  int64_t timeout_ns);

/* How many operations are pending. */
int32_t tieline_worker_pending(const struct tieline_worker *worker, size_t *pending);

/* An endpoint to the worker with this address. Its connection is made by the first operation. */
int32_t tieline_worker_connect(const struct tieline_worker *worker,
                               const void *address,
                               size_t len,
                               struct tieline_endpoint **endpoint);

/* Lets go of an endpoint: what it had queued is still sent, what was posted ends as canceled, and its keys are of no use any more. */
int32_t tieline_endpoint_drop(struct tieline_endpoint *endpoint);

/*
 * Sends a message of any length: `id` chooses the handler at the peer, which is handed `header` and the payload. The payload is
 * copied. TIELINE_OK: it is under way. TIELINE_PENDING: it is queued, or too long to be sent at once and announced. TIELINE_AGAIN:
 * nothing was sent, make progress and try again. `how` and `request` may be null.
 */
int32_t tieline_send(const struct tieline_endpoint *endpoint,
                     uint16_t id,
                     uint64_t header,
                     const void *payload,
                     size_t len,
                     const struct tieline_how *how,
                     uint64_t *request);

/*
 * Sends a message gathered from pieces of regions, which must not change until it is done. What is too long to be sent at once is
 * announced; one piece is read by the peer from where it lies.
 */
int32_t tieline_send_pieces(const struct tieline_endpoint *endpoint,
                            uint16_t id,
                            uint64_t header,
                            const struct tieline_piece *piece,
                            size_t count,
                            const struct tieline_how *how,
                            uint64_t *request);

/*
 * Completes when every put, get and atomic posted before is complete at the target, and every message posted before is in the
 * transport's hands. TIELINE_BUSY in a handler.
 */
int32_t tieline_endpoint_flush(const struct tieline_endpoint *endpoint,
                               const struct tieline_how *how,
                               uint64_t *request);

/* Completes when the peer's handlers have run for every message posted before: a round trip. */
int32_t tieline_endpoint_flush_messages(const struct tieline_endpoint *endpoint,
                                        const struct tieline_how *how,
                                        uint64_t *request);

/* Orders every put, get and atomic posted before ahead of those posted after. It waits for nothing. */
int32_t tieline_endpoint_fence(const struct tieline_endpoint *endpoint);

/* Closes the connection, as an operation: TIELINE_CLOSE_*. The handle stays until it is dropped. */
int32_t tieline_endpoint_close(const struct tieline_endpoint *endpoint,
                               uint32_t which,
                               const struct tieline_how *how,
                               uint64_t *request);

/* Keeps a word of the caller's with the endpoint. */
int32_t tieline_endpoint_set_user(const struct tieline_endpoint *endpoint, uint64_t user);

/* The word that was kept last; 0 at first. */
int32_t tieline_endpoint_user(const struct tieline_endpoint *endpoint, uint64_t *user);

/* The number of the peer here, which messages and notifications from there have too. */
int32_t tieline_endpoint_peer(const struct tieline_endpoint *endpoint, uint32_t *peer);

/* What was composed for this peer, in a line with its zero; `len` as for tieline_context_report. */
int32_t tieline_endpoint_path(const struct tieline_endpoint *endpoint, char *text, size_t *len);

/*
 * Whether the endpoint has ended: its status is then below 0, and `why` (which may be null) is written as by tieline_last_error, with words
 * that last until the next call that fails in this thread. TIELINE_OK while it has not.
 */
int32_t tieline_endpoint_error(const struct tieline_endpoint *endpoint,
                               struct tieline_error *why);

/*
 * Registers what to do when an endpoint has failed: once for each, inside of a call that makes progress, with the reason. Its
 * operations have ended by then.
 */
int32_t tieline_worker_on_endpoint_failure(const struct tieline_worker *worker,
                                           tieline_endpoint_failure_fn handler,
                                           void *user);

/*
 * Registers what to do with messages of one id, below 0xf000. It takes the place of the one before it; from inside of a handler when
 * that progress call has ended. A null handler drops what comes.
 */
int32_t tieline_worker_on_message(const struct tieline_worker *worker,
                                  uint16_t id,
                                  tieline_message_fn handler,
                                  void *user);

/* Who sent a message: the number of that worker here, which an endpoint to it has too. */
int32_t tieline_message_peer(const struct tieline_message *arrived, uint32_t *peer);

/* Keeps a message beyond its handler: where the transport lends its buffers, nothing is copied. Its bytes stay until it is dropped. */
int32_t tieline_message_keep(const struct tieline_message *arrived,
                             struct tieline_kept **kept,
                             const void **payload);

/* Lets go of a message that was kept. */
int32_t tieline_kept_drop(struct tieline_kept *kept);

/*
 * What is to be taken of a message that is announced, or refused: once, and to be asked for in its handler; TIELINE_INVALID of one that is not
 * announced. It may be kept for any time.
 */
int32_t tieline_message_announcement(const struct tieline_message *arrived,
                                     struct tieline_announcement **announcement);

/*
 * Takes the first `len` bytes of an announced message into a part of a region: TIELINE_OK or TIELINE_PENDING, and the handle has ended. With
 * any failure it has not: take it again, or refuse it.
 */
int32_t tieline_announcement_take(struct tieline_announcement *announcement,
                                  const struct tieline_region *local,
                                  size_t offset,
                                  size_t len,
                                  const struct tieline_how *how,
                                  uint64_t *request);

/* Refuses an announced message: its sender hears it. */
int32_t tieline_announcement_refuse(struct tieline_announcement *announcement);

/* The endpoint back to who sent a message, where the caller holds one that leads there; null where not. */
int32_t tieline_message_endpoint(const struct tieline_message *arrived,
                                 struct tieline_endpoint **endpoint);

/* Registers what to do when a peer's put with TIELINE_HOW_NOTIFY has come: its bytes, and those of its puts before, are there. */
int32_t tieline_worker_on_notification(const struct tieline_worker *worker,
                                       tieline_notification_fn handler,
                                       void *user);

/* Registers what to do when a peer is gone that has written to us or that we have a connection to: once, with the first reason. */
int32_t tieline_worker_on_peer_failure(const struct tieline_worker *worker,
                                       tieline_peer_failure_fn handler,
                                       void *user);

/* Registers what to do when a peer has left in good order. */
int32_t tieline_worker_on_peer_left(const struct tieline_worker *worker,
                                    tieline_peer_left_fn handler,
                                    void *user);

/* An endpoint that leads to a peer that has written to us, by its number: one that is held still, or one of the worker's own. */
int32_t tieline_worker_endpoint_to(const struct tieline_worker *worker,
                                   uint32_t peer,
                                   struct tieline_endpoint **endpoint);

/* An endpoint to a peer that is held and has not failed; null where there is none. */
int32_t tieline_worker_known_endpoint(const struct tieline_worker *worker,
                                      uint32_t peer,
                                      struct tieline_endpoint **endpoint);

/* Allocates memory, zeroed and shared from birth: peers of this host load and store it. `rights` are TIELINE_READ and so on. */
int32_t tieline_context_alloc(const struct tieline_context *context,
                              size_t len,
                              uint64_t rights,
                              struct tieline_region **region);

/*
 * Registers memory of the caller's, to be reached by peers. All of it has to be mapped with the rights that peers get
 * (TIELINE_PERMISSION), unless TIELINE_COMMITTED_LATER is among them. It stays as it is until tieline_region_close has returned TIELINE_OK:
 * dropping the region is not enough.
 */
int32_t tieline_context_register(const struct tieline_context *context,
                                 void *memory,
                                 size_t len,
                                 uint64_t rights,
                                 struct tieline_region **region);

/*
 * Lends memory of the caller's to operations as their local side: no key, and no registration but where a device needs one,
 * for as long as an operation lasts. When all of them have ended well the bytes may be used again; to free them, close the region first.
 */
int32_t tieline_context_lend(const struct tieline_context *context,
                             void *memory,
                             size_t len,
                             struct tieline_region **region);

/* Where a region lies, and how long it is. Either place may be null. */
int32_t tieline_region_memory(const struct tieline_region *region, void **memory, size_t *len);

/* The bytes by which a peer reaches a region; `len` as for tieline_worker_address. */
int32_t tieline_region_key(const struct tieline_region *region, void *key, size_t *len);

/*
 * Closes a region: TIELINE_OK says that nobody touches its memory any more. TIELINE_BUSY while an operation or a peer may, and
 * the handle stays: make progress, and close it again. With any other failure the memory has to stay as it is for the rest of the process.
 */
int32_t tieline_region_close(struct tieline_region *region);

/* Lets go of a region: what is pending goes on. Memory of the caller's may then be touched to the end of the process. */
int32_t tieline_region_drop(struct tieline_region *region);

/* Makes a peer's key usable on an endpoint: the bytes of the peer's tieline_region_key. Each call reads them anew. */
int32_t tieline_endpoint_import_key(const struct tieline_endpoint *endpoint,
                                    const void *key,
                                    size_t len,
                                    struct tieline_key **imported);

/* Lets go of a key. */
int32_t tieline_key_drop(struct tieline_key *key);

/* Writes bytes that lie anywhere to the peer's region at `offset`; they are free again when the call returns. */
int32_t tieline_put_bytes(const struct tieline_key *key,
                          uint64_t offset,
                          const void *data,
                          size_t len,
                          const struct tieline_how *how,
                          uint64_t *request);

/* Writes a part of a region to the peer's region at `offset`. TIELINE_OK, or the operation's end: it is visible there. */
int32_t tieline_put(const struct tieline_key *key,
                    uint64_t offset,
                    const struct tieline_region *local,
                    size_t local_offset,
                    size_t len,
                    const struct tieline_how *how,
                    uint64_t *request);

/* Reads the peer's region at `offset` into a part of a region. */
int32_t tieline_get(const struct tieline_key *key,
                    uint64_t offset,
                    const struct tieline_region *local,
                    size_t local_offset,
                    size_t len,
                    const struct tieline_how *how,
                    uint64_t *request);

/* Writes pieces of regions, one behind the other, to the peer's region at `offset`. */
int32_t tieline_put_pieces(const struct tieline_key *key,
                           uint64_t offset,
                           const struct tieline_piece *piece,
                           size_t count,
                           const struct tieline_how *how,
                           uint64_t *request);

/* Reads the peer's region at `offset` into pieces of regions, one behind the other. */
int32_t tieline_get_pieces(const struct tieline_key *key,
                           uint64_t offset,
                           const struct tieline_piece *piece,
                           size_t count,
                           const struct tieline_how *how,
                           uint64_t *request);

/*
 * Writes blocks of a region, one behind the other, to blocks of the peer's region. TIELINE_AGAIN: not all of it was posted, and what
 * was goes on; post all of it again.
 */
int32_t tieline_put_strided(const struct tieline_key *key,
                            const struct tieline_blocks *to,
                            const struct tieline_region *local,
                            const struct tieline_blocks *from,
                            const struct tieline_how *how,
                            uint64_t *request);

/* Reads blocks of the peer's region into blocks of a region. */
int32_t tieline_get_strided(const struct tieline_key *key,
                            const struct tieline_blocks *from,
                            const struct tieline_region *local,
                            const struct tieline_blocks *to,
                            const struct tieline_how *how,
                            uint64_t *request);

/* What an endpoint carries. It opens the connection for messages. */
int32_t tieline_endpoint_limits(const struct tieline_endpoint *endpoint,
                                struct tieline_limits *limits);

/* What a key leads to, and how. */
int32_t tieline_key_info(const struct tieline_key *key, struct tieline_key_info *info);

/*
 * Changes the word of `width` bytes (4 or 8) at `offset`, a multiple of them, of the peer's region; tells nobody what was there. Not
 * TIELINE_ATOMIC_COMPARE_SWAP.
 */
int32_t tieline_atomic(const struct tieline_key *key,
                       uint32_t op,
                       uint32_t width,
                       uint64_t offset,
                       uint64_t operand,
                       const struct tieline_how *how,
                       uint64_t *request);

/*
 * The same, and brings the value from before: into `value` where the call returns TIELINE_OK, else with the operation's end.
 * TIELINE_ATOMIC_COMPARE_SWAP stores `operand` if the word equals `compare`, which nothing else looks at.
 */
int32_t tieline_fetch(const struct tieline_key *key,
                      uint32_t op,
                      uint32_t width,
                      uint64_t offset,
                      uint64_t operand,
                      uint64_t compare,
                      uint64_t *value,
                      const struct tieline_how *how,
                      uint64_t *request);

/*
 * Maps a key's memory here, for loads and stores: of peers of this host, where a provider does so (TIELINE_UNSUPPORTED where not). Nobody
 * checks what goes through it. The mapping stays until tieline_pointer_drop.
 */
int32_t tieline_key_pointer(const struct tieline_key *key,
                            struct tieline_pointer **pointer,
                            void **memory,
                            size_t *len);

/* Lets go of a mapping: its memory is nobody's any more. */
int32_t tieline_pointer_drop(struct tieline_pointer *pointer);

/* A name of this worker, in 48 bytes at most, for channels that carry no more; `len` as for tieline_worker_address. Keep it as secret as the address. */
int32_t tieline_worker_name(const struct tieline_worker *worker,
                            void *name,
                            size_t *len);

/* An endpoint to the worker of this name: makes progress until its address is there, at most TIELINE_CONNECT_TIMEOUT. TIELINE_BUSY in a handler. */
int32_t tieline_worker_connect_by_name(const struct tieline_worker *worker,
                                       const void *name,
                                       size_t len,
                                       struct tieline_endpoint **endpoint);

/* The same without waiting: asks the worker of this name. tieline_name_call_test goes on with it. */
int32_t tieline_worker_ask_name(const struct tieline_worker *worker,
                                const void *name,
                                size_t len,
                                struct tieline_name_call **call);

/*
 * Goes on with the question: nothing else does. TIELINE_PENDING: call again, with progress between. TIELINE_OK: there is the endpoint. A failure
 * says why there is none. Either is told once; the handle stays until it is dropped.
 */
int32_t tieline_name_call_test(const struct tieline_name_call *call,
                               struct tieline_endpoint **endpoint);

/* Gives the question up, or lets go of one that was answered. */
int32_t tieline_name_call_drop(struct tieline_name_call *call);

/* Eight bytes that stand for a region's key: whoever has them and an endpoint to a worker of this context is given the key. */
int32_t tieline_region_handle(const struct tieline_region *region,
                              uint64_t *handle);

/*
 * The key that a handle of the peer's stands for. TIELINE_OK: it was known, and is there. TIELINE_PENDING: its owner is asked; when
 * that operation has ended well, call again.
 */
int32_t tieline_endpoint_key_by_handle(const struct tieline_endpoint *endpoint,
                                       uint64_t handle,
                                       const struct tieline_how *how,
                                       struct tieline_key **key,
                                       uint64_t *request);

/*
 * Waits for a pending operation, at most so long (below 0: without end), and writes its value, which only a fetching atomic has, where `value` is not
 * null. Its number is nobody's any more, but after TIELINE_TIMED_OUT and after TIELINE_BUSY in a handler: then it goes on.
 */
int32_t tieline_worker_finish(const struct tieline_worker *worker,
                              uint64_t request,
                              int64_t timeout_ns,
                              uint64_t *value);

/* Whether a pending operation has ended: TIELINE_PENDING while it has not. Otherwise as tieline_worker_finish; it makes no progress. */
int32_t tieline_worker_test(const struct tieline_worker *worker,
                            uint64_t request,
                            uint64_t *value);

/* Asks no more for a pending operation, which goes on; should it fail, the endpoint's next flush says so. */
int32_t tieline_worker_forget(const struct tieline_worker *worker,
                              uint64_t request);

/* Gives a pending operation up. TIELINE_OK says that it is being given up, and not yet that it was: finish it to hear that. */
int32_t tieline_worker_cancel(const struct tieline_worker *worker,
                              uint64_t request);

/* Has the end of a pending operation told with `user`, by tieline_worker_take_completed. Its number is nobody's any more. */
int32_t tieline_worker_track(const struct tieline_worker *worker,
                             uint64_t request,
                             uint64_t user);

/* Opens a counter: operations are counted by it that are posted with TIELINE_TELL_COUNTED. */
int32_t tieline_worker_counter(const struct tieline_worker *worker,
                               struct tieline_counter **counter);

/* What it has counted so far. */
int32_t tieline_counter_read(const struct tieline_counter *counter,
                             struct tieline_counted *counted);

/* Lets go of a counter: what it counts goes on. */
int32_t tieline_counter_drop(struct tieline_counter *counter);

/*
 * Takes operations out that were tracked and have ended, in the order in which they did: at most `most`, into a list whose
 * elements have `each` bytes (sizeof *list), and says how many. It makes no progress. Of those that failed, each says its status; the thread's last
 * error has the words of the last one.
 */
int32_t tieline_worker_take_completed(const struct tieline_worker *worker,
                                      struct tieline_completed *list,
                                      size_t each,
                                      size_t most,
                                      size_t *taken);

/*
 * Begins a flush of every endpoint of a worker: the counter counts them, and has none pending any more when everything that is posted
 * now is complete.
 */
int32_t tieline_worker_begin_flush(const struct tieline_worker *worker,
                                   const struct tieline_counter *counter);

/* Waits until everything that is posted on every endpoint now is complete. TIELINE_BUSY in a handler. */
int32_t tieline_worker_flush(const struct tieline_worker *worker);

/*
 * Makes progress; where there was none to make, sleeps until there may be some, at most so long (below 0: without end).
 * TIELINE_MOVED: something happened, or has ended and was not taken, or somebody woke the worker. TIELINE_ROUSED: nothing has, wait again. TIELINE_TIMED_OUT:
 * the time is up.
 */
int32_t tieline_worker_wait(const struct tieline_worker *worker,
                            int64_t timeout_ns);

/*
 * tieline_worker_wait for several workers of one thread: makes progress on all, and where there was none to make, sleeps until there may be some
 * for one of them. It opens a descriptor for the call: a loop that waits often keeps an epoll of its own over their descriptors.
 */
int32_t tieline_workers_wait(const struct tieline_worker *const *workers,
                             size_t count,
                             int64_t timeout_ns);

/*
 * Makes progress until an aligned word of 64 bits of a region, which peers write, is one for which `holds` returns something else
 * than 0; writes the word where `word` is not null.
 */
int32_t tieline_worker_wait_word(const struct tieline_worker *worker,
                                 const struct tieline_region *region,
                                 size_t offset,
                                 int32_t (*holds)(void *user, uint64_t word),
                                 void *user,
                                 int64_t timeout_ns,
                                 uint64_t *word);

/*
 * A descriptor for poll and epoll: readable when there may be something to do, provided that tieline_worker_arm returned TIELINE_OK before.
 * It stays readable until the worker has made progress (level-triggered), belongs to the library, and is one and the same for the worker's
 * life: capi/examples/event_loop.c. Time limits of the library's own make it readable as well, that of a silent peer among them.
 */
int32_t tieline_worker_fd(const struct tieline_worker *worker,
                          int32_t *fd);

/*
 * Prepares for one sleep on the descriptor: TIELINE_OK where that is safe, TIELINE_PENDING where there is something to do right now. Call it
 * before each sleep, behind the last progress.
 */
int32_t tieline_worker_arm(const struct tieline_worker *worker);

/* Opens a waker, which belongs to no thread. */
int32_t tieline_worker_waker(const struct tieline_worker *worker, struct tieline_waker **waker);

/*
 * Ends the wait that the worker is in, or makes the next one return at once. Any thread and a signal handler may call it: it allocates nothing,
 * and TIELINE_INVALID for a handle that leads to no waker leaves no words with the thread.
 */
int32_t tieline_waker_wake(const struct tieline_waker *waker);

/* Lets go of a waker. No signal handler may do so. */
int32_t tieline_waker_drop(struct tieline_waker *waker);

/* Closes a region as tieline_region_close does, and makes progress until nothing uses it any more or the time is up: TIELINE_BUSY then. */
int32_t tieline_worker_close_region(const struct tieline_worker *worker,
                                    struct tieline_region *region,
                                    int64_t timeout_ns);

/*
 * The path that puts and gets with this key take now, in a line with its zero: `shm/ring`, `shm-cma/copy`, or `emulated over
 * shm/ring`. They wait for one whose connection is being formed. `len` as for tieline_context_report.
 */
int32_t tieline_key_path(const struct tieline_key *key,
                         char *text,
                         size_t *len);

/*
 * The worker's state as JSON with its zero: each endpoint with its queue and with the reason why it waits, connections that are being formed, open
 * interfaces, counters. The call looks at every endpoint: it is not for every round of a loop. `len` as for tieline_context_report.
 */
int32_t tieline_worker_status(const struct tieline_worker *worker,
                              char *text,
                              size_t *len);

/* Writes the worker's counters. */
int32_t tieline_worker_counters(const struct tieline_worker *worker,
                                struct tieline_counters *counters);

/*
 * Joins the job that the environment names (tieline run, mpirun, srun, a rendezvous); alone it is rank 0 of 1. With `own`, which
 * may be null, the caller's exchange takes the place of all of them.
 */
int32_t tieline_job_open(const struct tieline_exchange *own,
                         struct tieline_job **job);

/* Leaves the job. A handler may do so: the call around it, if it is one of the job's, goes on to its end. */
int32_t tieline_job_close(struct tieline_job *job);

/* Who this process is in its job. */
int32_t tieline_job_place(const struct tieline_job *job, struct tieline_job_place *place);

/* How long one exchange or lookup of the launcher's may take; TIELINE_BUSY while another call of the job is under way. */
int32_t tieline_job_set_deadline(struct tieline_job *job,
                                 uint64_t deadline_ns);

/* Leaves bytes for whoever looks them up by this process's rank and `key`. Nobody waits for anybody. */
int32_t tieline_job_publish(const struct tieline_job *job,
                            uint32_t key,
                            const void *data,
                            size_t len);

/* What `rank` has published as `key`; waits for it. `len` as for tieline_worker_address. */
int32_t tieline_job_lookup(const struct tieline_job *job,
                           size_t rank,
                           uint32_t key,
                           void *data,
                           size_t *len);

/* Hands `mine` to every process, and calls `take` with everybody's, in the order of their ranks. Every process calls it, equally often. */
int32_t tieline_job_exchange(const struct tieline_job *job,
                             const void *mine,
                             size_t len,
                             tieline_take_fn take,
                             void *to);

/*
 * Returns when every process has called it. Where `worker` is not null it makes progress meanwhile, and sleeps while
 * there is nothing to do: for a process that peers may still need something of.
 * TIELINE_BUSY in a handler of that worker.
 */
int32_t tieline_job_barrier(const struct tieline_job *job,
                            const struct tieline_worker *worker);

/*
 * Lets the caller carry the few datagrams that form connections: `address` is how it names this worker to itself, in at most 4096 bytes. The context was
 * opened with TIELINE_CONTEXT_OUT_OF_BAND; call it before tieline_worker_address.
 */
int32_t tieline_worker_set_out_of_band(const struct tieline_worker *worker,
                                       const void *address,
                                       size_t len,
                                       tieline_datagram_fn send,
                                       void *user);

/* Takes a datagram that a peer's function was given for this worker. */
int32_t tieline_worker_deliver(const struct tieline_worker *worker,
                               const void *datagram,
                               size_t len);

#ifdef __cplusplus
}
#endif

#endif /* TIELINE_H */
