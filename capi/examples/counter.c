/* A distributed counter: every rank adds to one word of rank 0, and no increment is lost.
 *
 * tieline run -n 4 -- ./counter [INCREMENTS]
 */
#include <inttypes.h>

#include "job.h"

struct count {
    uint64_t *word;
    uint64_t expected;
};

static int32_t is_complete(void *user)
{
    struct count *count = (struct count *)user;
    return __atomic_load_n(count->word, __ATOMIC_ACQUIRE) >= count->expected;
}

int main(int argc, char **argv)
{
    uint64_t increments = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    struct rank me;
    struct tieline_region *memory;
    struct tieline_endpoint *home;
    struct tieline_key *counter;
    uint64_t n, request, before, last = 0;
    join(&me, 0);
    check(tieline_context_alloc(me.context, 8, TIELINE_ALL, &memory));
    publish_address(&me);
    publish_key(&me, memory);
    home = connect_to(&me, 0);
    counter = key_of(&me, 0, home);
    for (n = 0; n < increments; n++) {
        finish(&me, tieline_fetch(counter, TIELINE_ATOMIC_ADD, 8, 0, 1, 0, &before, NULL, &request), &request, &before);
        /* Each rank sees the counter only increase. */
        expect(n == 0 || before > last);
        last = before;
    }
    if (me.place.rank == 0) {
        struct count count = {word_of(memory, 0), increments * me.place.ranks};
        check(tieline_worker_wait_until(me.worker, is_complete, &count, PATIENCE));
        printf("%" PRIu64 " increments by %zu ranks, none lost\n", *count.word, me.place.ranks);
        expect(*count.word == count.expected);
    }
    check(tieline_job_barrier(me.job, me.worker));
    check(tieline_key_drop(counter));
    check(tieline_endpoint_drop(home));
    check(tieline_worker_close_region(me.worker, memory, PATIENCE));
    leave(&me);
    return 0;
}
