/* Threads that send: first, each thread has a worker of its own; then all threads share one worker and a lock. Rank 1 receives,
   and checks that no message is lost.
 *
 * tieline run -n 2 -- ./threads
 */
#include <inttypes.h>
#include <pthread.h>

#include "job.h"

enum { MESSAGE = 1, THREADS = 4, EACH = 5000 };

static struct rank me;

struct shared {
    struct tieline_worker *worker;
    struct tieline_endpoint *there;
    pthread_mutex_t lock;
};

/* Posts one message; if the queue is full, makes progress on the endpoint's worker and posts again. The thread holds the lock
   during each call, but not while it waits. */
static void send_one(struct tieline_worker *worker, struct tieline_endpoint *there, uint64_t header, pthread_mutex_t *lock)
{
    int32_t sent;
    do {
        if (lock) {
            expect(pthread_mutex_lock(lock) == 0);
        }
        sent = tieline_send(there, MESSAGE, header, "8 bytes.", 8, NULL, NULL);
        if (sent == TIELINE_AGAIN) {
            check(tieline_worker_progress(worker));
        }
        if (lock) {
            expect(pthread_mutex_unlock(lock) == 0);
        }
    } while (sent == TIELINE_AGAIN);
    check(sent);
}

static void *with_its_own_worker(void *unused)
{
    struct rank own = me;
    struct tieline_endpoint *there;
    uint64_t n;
    (void)unused;
    check(tieline_worker_open(me.context, &own.worker));
    there = connect_to(&own, 1);
    for (n = 0; n < EACH; n++) {
        send_one(own.worker, there, n, NULL);
    }
    check(tieline_worker_flush(own.worker));
    check(tieline_endpoint_drop(there));
    check(tieline_worker_close(own.worker, PATIENCE));
    return NULL;
}

static void *behind_a_lock(void *user)
{
    struct shared *shared = (struct shared *)user;
    uint64_t n;
    for (n = 0; n < EACH; n++) {
        send_one(shared->worker, shared->there, n, &shared->lock);
    }
    return NULL;
}

static void in_threads(void *(*body)(void *), void *user)
{
    pthread_t threads[THREADS];
    int n;
    for (n = 0; n < THREADS; n++) {
        expect(pthread_create(&threads[n], NULL, body, user) == 0);
    }
    for (n = 0; n < THREADS; n++) {
        expect(pthread_join(threads[n], NULL) == 0);
    }
}

static void on_message(void *user, const struct tieline_message *message)
{
    expect(message->len == 8 && memcmp(message->payload, "8 bytes.", 8) == 0);
    ++*(uint64_t *)user;
}

static int32_t has_all(void *user)
{
    return *(uint64_t *)user == 2 * THREADS * EACH;
}

int main(void)
{
    uint64_t heard = 0;
    join(&me, 0);
    check(tieline_worker_on_message(me.worker, MESSAGE, on_message, &heard));
    publish_address(&me);
    if (me.place.rank == 0) {
        struct shared shared;
        in_threads(with_its_own_worker, NULL);
        shared.worker = me.worker;
        shared.there = connect_to(&me, 1);
        expect(pthread_mutex_init(&shared.lock, NULL) == 0);
        in_threads(behind_a_lock, &shared);
        check(tieline_worker_flush(me.worker));
        check(tieline_endpoint_drop(shared.there));
        expect(pthread_mutex_destroy(&shared.lock) == 0);
    } else {
        check(tieline_worker_wait_until(me.worker, has_all, &heard, TIELINE_FOREVER));
        printf("%" PRIu64 " messages of %d threads, in two ways, none lost\n", heard, THREADS);
    }
    check(tieline_job_barrier(me.job, me.worker));
    leave(&me);
    return 0;
}
