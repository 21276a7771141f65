/* A one-dimensional stencil: every rank puts its border cells directly into its neighbours' memory.
 *
 * tieline run -n 4 -- ./halo [STEPS]
 */
#include <inttypes.h>

#include "job.h"

enum { CELLS = 1000 };

/* Layout of a rank's memory in 8-byte words: the cells, then two ghost cells per side, then a counter per side of the borders received.
 * There is a ghost cell for even and one for odd steps, since a neighbour is at most one step ahead. */
enum { LEFT_GHOST = CELLS, RIGHT_GHOST = CELLS + 2, FROM_LEFT = CELLS + 4, FROM_RIGHT = CELLS + 5, WORDS = CELLS + 6 };

static struct rank me;

/* A neighbour: the offset of its ghost cell for us, and the counter that reports a new border to it. */
struct neighbour {
    struct tieline_endpoint *endpoint;
    struct tieline_key *key;
    size_t ghost, counter;
};

static struct neighbour neighbour(size_t rank, size_t ghost, size_t counter)
{
    struct neighbour found;
    found.endpoint = connect_to(&me, rank);
    found.key = key_of(&me, rank, found.endpoint);
    found.ghost = ghost;
    found.counter = counter;
    return found;
}

/* Posts again while the post returns TIELINE_AGAIN. */
static int32_t accepted(int32_t posted)
{
    if (posted == TIELINE_AGAIN) {
        check(tieline_worker_progress(me.worker));
        return 0;
    }
    check(posted);
    return 1;
}

/* Puts a border cell, then increments the counter; the fence orders the two. */
static void send_border(struct neighbour *to, size_t step, uint64_t value)
{
    uint64_t before;
    while (!accepted(tieline_put_bytes(to->key, (to->ghost + step % 2) * 8, &value, 8, NULL, NULL))) {
    }
    check(tieline_endpoint_fence(to->endpoint));
    while (!accepted(tieline_fetch(to->key, TIELINE_ATOMIC_ADD, 8, to->counter * 8, 1, 0, &before, NULL, NULL))) {
    }
}

struct count {
    uint64_t *word, least;
};

static int32_t has_come(void *user)
{
    struct count *count = (struct count *)user;
    return __atomic_load_n(count->word, __ATOMIC_ACQUIRE) >= count->least;
}

int main(int argc, char **argv)
{
    size_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 50, cell, step, side, turned;
    struct neighbour left, right;
    struct tieline_region *memory;
    uint64_t *words, expected;
    /* If put is emulated, the thread serves a rank that computes or waits in a barrier. */
    join(&me, TIELINE_CONTEXT_PROGRESS_THREAD);
    check(tieline_context_alloc(me.context, WORDS * 8, TIELINE_ALL, &memory));
    words = word_of(memory, 0);
    for (cell = 0; cell < CELLS; cell++) {
        words[cell] = me.place.rank * CELLS + cell;
    }
    publish_address(&me);
    publish_key(&me, memory);
    left = neighbour((me.place.rank + me.place.ranks - 1) % me.place.ranks, RIGHT_GHOST, FROM_RIGHT);
    right = neighbour((me.place.rank + 1) % me.place.ranks, LEFT_GHOST, FROM_LEFT);
    for (step = 1; step <= steps; step++) {
        uint64_t carried, next;
        send_border(&left, step, words[0]);
        send_border(&right, step, words[CELLS - 1]);
        for (side = FROM_LEFT; side <= FROM_RIGHT; side++) {
            struct count count;
            count.word = words + side;
            count.least = step;
            check(tieline_worker_wait_until(me.worker, has_come, &count, PATIENCE));
        }
        /* The stencil: every cell takes its left neighbour's value, so the whole line rotates by one. */
        carried = __atomic_load_n(words + LEFT_GHOST + step % 2, __ATOMIC_RELAXED);
        for (cell = 0; cell < CELLS; cell++) {
            next = words[cell];
            words[cell] = carried;
            carried = next;
        }
    }
    check(tieline_worker_flush(me.worker));
    turned = steps % (me.place.ranks * CELLS);
    expected = (me.place.rank * CELLS + me.place.ranks * CELLS - turned) % (me.place.ranks * CELLS);
    expect(words[0] == expected);
    if (me.place.rank == 0) {
        printf("%zu steps on %zu ranks verified\n", steps, me.place.ranks);
    }
    check(tieline_job_barrier(me.job, me.worker));
    check(tieline_key_drop(left.key));
    check(tieline_key_drop(right.key));
    check(tieline_endpoint_drop(left.endpoint));
    check(tieline_endpoint_drop(right.endpoint));
    check(tieline_worker_close_region(me.worker, memory, PATIENCE));
    leave(&me);
    return 0;
}
