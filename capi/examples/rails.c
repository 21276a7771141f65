/* Large puts and gets from rank 0 to rank 1, each verified. The program shows the bandwidth of several devices together, and the
   effect of losing a device.
 *
 * tieline run -n 2 -- ./rails [ROUNDS]
 *
 * A failed operation is reported and repeated; if the endpoint itself has failed, the two ranks reconnect.
 */
#include <inttypes.h>

#include "job.h"

enum { LEN = 1 << 20, ROUND = 1, END = 2, MOST_FAILURES = 100 };

static struct rank me;

/* A connection to the peer, and its memory. */
struct way {
    struct tieline_endpoint *endpoint;
    struct tieline_key *key;
};

static struct way connect_by_all(void)
{
    struct way way;
    struct tieline_key_info info;
    char path[512];
    size_t len = sizeof path;
    way.endpoint = connect_to(&me, 1);
    way.key = key_of(&me, 1, way.endpoint);
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    while (check(tieline_key_info(way.key, &info)) == TIELINE_OK && info.is_settling) {
        int32_t waited = tieline_worker_wait(me.worker, 10000000);
        expect(waited >= 0 || waited == TIELINE_TIMED_OUT);
    }
    check(tieline_endpoint_path(way.endpoint, path, &len));
    printf("%s\n", path);
    return way;
}

static void let_go(struct way *way)
{
    check(tieline_key_drop(way->key));
    check(tieline_endpoint_drop(way->endpoint));
}

static int32_t ended(int32_t posted, const uint64_t *request)
{
    return posted == TIELINE_PENDING ? tieline_worker_finish(me.worker, *request, TIELINE_FOREVER, NULL) : posted;
}

static int32_t tell(struct way *way, uint16_t id, uint64_t header)
{
    uint64_t request;
    int32_t sent;
    while ((sent = tieline_send(way->endpoint, id, header, NULL, 0, NULL, &request)) == TIELINE_AGAIN) {
        check(tieline_worker_progress(me.worker));
    }
    return ended(sent, &request);
}

/* Puts a pattern, gets it back, and notifies the peer. Returns TIELINE_OK or the status of the failure. */
static int32_t round_trip(struct way *way, uint64_t number, struct tieline_region *source, struct tieline_region *back)
{
    uint64_t request;
    int32_t status;
    memset(word_of(source, 0), (int)(number & 0xff), LEN);
    status = ended(tieline_put(way->key, 0, source, 0, LEN, NULL, &request), &request);
    if (status == TIELINE_OK) {
        status = ended(tieline_get(way->key, 0, back, 0, LEN, NULL, &request), &request);
    }
    if (status == TIELINE_OK) {
        expect(memcmp(word_of(source, 0), word_of(back, 0), LEN) == 0);
        status = tell(way, ROUND, number);
    }
    return status;
}

static void ask(struct tieline_region *source, uint64_t rounds)
{
    struct tieline_region *back;
    struct way way = connect_by_all();
    uint64_t done = 0, request;
    int failures = 0;
    check(tieline_context_alloc(me.context, LEN, TIELINE_ALL, &back));
    while (done < rounds) {
        if (round_trip(&way, done + 1, source, back) == TIELINE_OK) {
            done++;
            continue;
        }
        printf("failed: %s\n", tieline_error_text());
        expect(++failures < MOST_FAILURES);
        if (tieline_endpoint_error(way.endpoint, NULL) < 0) {
            let_go(&way);
            way = connect_by_all();
        }
    }
    printf("%" PRIu64 " rounds of %d bytes each way, %d failures\n", done, LEN, failures);
    check(tell(&way, END, done));
    check(ended(tieline_endpoint_flush_messages(way.endpoint, NULL, &request), &request));
    let_go(&way);
    check(tieline_worker_close_region(me.worker, back, PATIENCE));
}

struct heard {
    uint64_t rounds;
    int is_over;
};

static void on_round(void *user, const struct tieline_message *message)
{
    (void)message;
    ((struct heard *)user)->rounds++;
}

static void on_end(void *user, const struct tieline_message *message)
{
    struct heard *heard = (struct heard *)user;
    expect(message->header <= heard->rounds);
    heard->is_over = 1;
}

static void on_failure(void *user, uint32_t peer, const struct tieline_error *why)
{
    (void)user;
    printf("peer %" PRIu32 " is lost: %s: %s\n", peer, why->what, why->why);
}

static int32_t is_over(void *user)
{
    return ((struct heard *)user)->is_over;
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 50;
    struct heard heard = {0, 0};
    struct tieline_region *memory;
    join(&me, 0);
    check(tieline_worker_on_message(me.worker, ROUND, on_round, &heard));
    check(tieline_worker_on_message(me.worker, END, on_end, &heard));
    check(tieline_worker_on_peer_failure(me.worker, on_failure, NULL));
    check(tieline_context_alloc(me.context, LEN, TIELINE_ALL, &memory));
    publish_address(&me);
    publish_key(&me, memory);
    if (me.place.rank == 0) {
        ask(memory, rounds);
    } else {
        check(tieline_worker_wait_until(me.worker, is_over, &heard, TIELINE_FOREVER));
        printf("%" PRIu64 " rounds heard of\n", heard.rounds);
    }
    /* During the barrier, this rank serves the other rank's remaining operations. */
    check(tieline_job_barrier(me.job, me.worker));
    check(tieline_worker_close_region(me.worker, memory, PATIENCE));
    leave(&me);
    return 0;
}
