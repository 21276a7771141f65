/* A small message-passing runtime: tagged sends and receives of any length, from one rank or from any. Every byte is verified.
 *
 * tieline run -n 4 -- ./tagged
 *
 * A message has its tag in the header. An eager message is kept until a receive matches it. A rendezvous message is sent from memory with
 * a transient registration, and received directly into the memory of the receive.
 */
#include <inttypes.h>

#include "job.h"

/* A HELLO message carries the sender's rank: other messages identify their sender only by the peer number that the receiver's
   worker has assigned. */
enum { HELLO = 1, MESSAGE = 2, MOST_RANKS = 64, MOST_PEERS = 1024 };
enum { SMALL = 100, LARGE = 3 << 20, ROUNDS = 20, ANY = MOST_RANKS };

static struct rank me;
static struct tieline_endpoint *to_rank[MOST_RANKS];
static size_t rank_of_peer[MOST_PEERS];

/* Messages that have arrived and were not received, in order of arrival. */
struct arrival {
    struct arrival *next;
    size_t source, len;
    uint64_t tag;
    struct tieline_kept *kept;
    const void *bytes;
    struct tieline_announcement *announcement;
};

static struct arrival *first, **last = &first;

static uint32_t peer_of(const struct tieline_message *message)
{
    uint32_t peer;
    check(tieline_message_peer(message, &peer));
    expect(peer < MOST_PEERS);
    return peer;
}

static void on_hello(void *user, const struct tieline_message *message)
{
    (void)user;
    rank_of_peer[peer_of(message)] = (size_t)message->header;
}

static void on_message(void *user, const struct tieline_message *message)
{
    struct arrival *arrival = (struct arrival *)calloc(1, sizeof *arrival);
    (void)user;
    expect(arrival != NULL);
    arrival->source = rank_of_peer[peer_of(message)];
    arrival->tag = message->header;
    arrival->len = message->len;
    if (message->is_announced) {
        check(tieline_message_announcement(message, &arrival->announcement));
    } else {
        check(tieline_message_keep(message, &arrival->kept, &arrival->bytes));
    }
    *last = arrival;
    last = &arrival->next;
}

/* A send in progress; its memory belongs to the library until the send has completed. */
struct sending {
    uint64_t request;
    struct tieline_region *lent;
};

static struct sending begin_send(size_t rank, uint64_t tag, const void *bytes, size_t len)
{
    struct sending sending = {0, NULL};
    struct tieline_limits limits;
    int32_t sent;
    memset(&limits, 0, sizeof limits);
    limits.size = sizeof limits;
    if (!to_rank[rank]) {
        to_rank[rank] = connect_to(&me, rank);
        check(tieline_send(to_rank[rank], HELLO, me.place.rank, NULL, 0, NULL, NULL));
    }
    check(tieline_endpoint_limits(to_rank[rank], &limits));
    if (len > limits.max_message) {
        check(tieline_context_lend(me.context, (void *)(uintptr_t)bytes, len, &sending.lent));
    }
    do {
        struct tieline_piece piece;
        piece.region = sending.lent;
        piece.offset = 0;
        piece.len = len;
        sent = sending.lent ? tieline_send_pieces(to_rank[rank], MESSAGE, tag, &piece, 1, NULL, &sending.request)
                            : tieline_send(to_rank[rank], MESSAGE, tag, bytes, len, NULL, &sending.request);
        if (sent == TIELINE_AGAIN) {
            check(tieline_worker_progress(me.worker));
        }
    } while (sent == TIELINE_AGAIN);
    check(sent);
    return sending;
}

static void end_send(struct sending *sending)
{
    if (sending->request) {
        check(tieline_worker_finish(me.worker, sending->request, PATIENCE, NULL));
    }
    if (sending->lent) {
        check(tieline_worker_close_region(me.worker, sending->lent, PATIENCE));
    }
}

struct pattern {
    size_t source;
    uint64_t tag;
    struct arrival **found;
};

static int32_t matches(void *user)
{
    struct pattern *pattern = (struct pattern *)user;
    struct arrival **at;
    for (at = &first; *at; at = &(*at)->next) {
        if ((*at)->tag == pattern->tag && (pattern->source == ANY || (*at)->source == pattern->source)) {
            pattern->found = at;
            return 1;
        }
    }
    return 0;
}

/* Receives the first matching message into a buffer that must be large enough. Returns the message's length, and writes its sender.
   */
static size_t receive(size_t source, uint64_t tag, void *bytes, size_t room, size_t *from)
{
    struct pattern pattern = {source, tag, NULL};
    struct arrival *arrival;
    size_t len;
    check(tieline_worker_wait_until(me.worker, matches, &pattern, PATIENCE));
    arrival = *pattern.found;
    *pattern.found = arrival->next;
    if (!arrival->next) {
        last = pattern.found;
    }
    len = arrival->len;
    *from = arrival->source;
    expect(len <= room);
    if (arrival->announcement) {
        struct tieline_region *lent;
        uint64_t request;
        check(tieline_context_lend(me.context, bytes, room, &lent));
        finish(&me, tieline_announcement_take(arrival->announcement, lent, 0, len, NULL, &request), &request, NULL);
        check(tieline_worker_close_region(me.worker, lent, PATIENCE));
    } else {
        if (len > 0) {
            memcpy(bytes, arrival->bytes, len);
        }
        check(tieline_kept_drop(arrival->kept));
    }
    free(arrival);
    return len;
}

/* The byte at this position in a message of that rank. */
static unsigned char pattern_at(size_t rank, uint64_t tag, size_t at)
{
    return (unsigned char)(rank * 31 + tag * 7 + at % 251);
}

static void fill(unsigned char *bytes, size_t len, size_t rank, uint64_t tag)
{
    size_t at;
    for (at = 0; at < len; at++) {
        bytes[at] = pattern_at(rank, tag, at);
    }
}

static void look_at(const unsigned char *bytes, size_t len, size_t rank, uint64_t tag)
{
    size_t at;
    for (at = 0; at < len; at++) {
        expect(bytes[at] == pattern_at(rank, tag, at));
    }
}

/* Every rank sends to the next one and receives from the previous one, at one length; the later tag is received first. */
static void around(unsigned char *out, unsigned char *in, size_t len)
{
    size_t next = (me.place.rank + 1) % me.place.ranks, before = (me.place.rank + me.place.ranks - 1) % me.place.ranks, from;
    struct sending sends[2];
    uint64_t tag;
    fill(out, len, me.place.rank, 0);
    sends[0] = begin_send(next, 100, out, len);
    sends[1] = begin_send(next, 101, out, len);
    for (tag = 101; tag >= 100; tag--) {
        memset(in, 0, len);
        expect(receive(before, tag, in, len, &from) == len && from == before);
        look_at(in, len, before, 0);
    }
    end_send(&sends[0]);
    end_send(&sends[1]);
}

/* Every rank sends to rank 0, which receives in order of arrival; messages of one rank arrive in order. */
static void to_one(unsigned char *bytes)
{
    size_t n, from, counts[MOST_RANKS] = {0};
    if (me.place.rank > 0) {
        for (n = 0; n < ROUNDS; n++) {
            struct sending sending;
            fill(bytes, SMALL, me.place.rank, n);
            sending = begin_send(0, 7, bytes, SMALL);
            end_send(&sending);
        }
        return;
    }
    for (n = 0; n < ROUNDS * (me.place.ranks - 1); n++) {
        expect(receive(ANY, 7, bytes, SMALL, &from) == SMALL);
        look_at(bytes, SMALL, from, counts[from]++);
    }
    for (n = 1; n < me.place.ranks; n++) {
        expect(counts[n] == ROUNDS);
    }
}

int main(void)
{
    static const size_t lengths[] = {0, 1, SMALL, 5000, 70000, LARGE};
    unsigned char *out = (unsigned char *)malloc(LARGE), *in = (unsigned char *)malloc(LARGE);
    size_t n;
    join(&me, 0);
    expect(out && in && me.place.ranks <= MOST_RANKS);
    check(tieline_worker_on_message(me.worker, HELLO, on_hello, NULL));
    check(tieline_worker_on_message(me.worker, MESSAGE, on_message, NULL));
    publish_address(&me);
    for (n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        around(out, in, lengths[n]);
    }
    to_one(out);
    check(tieline_job_barrier(me.job, me.worker));
    expect(first == NULL);
    if (me.place.rank == 0) {
        printf("%zu ranks sent each other messages of up to %d bytes, every byte looked at\n", me.place.ranks, LARGE);
    }
    for (n = 0; n < MOST_RANKS; n++) {
        if (to_rank[n]) {
            check(tieline_endpoint_drop(to_rank[n]));
        }
    }
    leave(&me);
    free(out);
    free(in);
    return 0;
}
