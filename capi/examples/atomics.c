/* Every atomic operation, by all ranks concurrently on the same words of rank 0: no update is lost.
 *
 * tieline run -n 4 -- ./atomics
 */
#include <inttypes.h>

#include "job.h"

enum { ROUNDS = 20 };

/* The offset of each word; the two halves of `SUMS` are 32-bit words. */
enum { SUM = 0, BITS = 8, KEPT = 16, PARITY = 24, LEAST = 32, MOST = 40, TOKEN = 48, TICKETS = 56, SUMS = 64 };

static struct rank me;
static struct tieline_key *words;

static void post(uint32_t op, uint64_t at, uint64_t operand)
{
    uint64_t request;
    finish(&me, tieline_atomic(words, op, 8, at, operand, NULL, &request), &request, NULL);
}

static uint64_t fetch(uint32_t op, uint32_t width, uint64_t at, uint64_t operand, uint64_t compare)
{
    uint64_t request, before;
    finish(&me, tieline_fetch(words, op, width, at, operand, compare, &before, NULL, &request), &request, &before);
    return before;
}

/* Adds the tokens that the ranks hold at the end. */
static void add_token(void *to, size_t rank, const void *bytes, size_t len)
{
    uint64_t token;
    (void)rank;
    expect(len == sizeof token);
    memcpy(&token, bytes, sizeof token);
    *(uint64_t *)to += token;
}

int main(void)
{
    struct tieline_region *memory;
    struct tieline_endpoint *home;
    uint64_t rank, ranks, token, bit, round, held = 0;
    join(&me, 0);
    rank = me.place.rank;
    ranks = me.place.ranks;
    check(tieline_context_alloc(me.context, 72, TIELINE_ALL, &memory));
    if (rank == 0) {
        *word_of(memory, KEPT / 8) = UINT64_MAX;
        *word_of(memory, LEAST / 8) = UINT64_MAX;
    }
    publish_address(&me);
    publish_key(&me, memory);
    home = connect_to(&me, 0);
    words = key_of(&me, 0, home);
    token = rank + 1; /* swapped in and out: no token is lost or duplicated */
    bit = UINT64_C(1) << (rank % 64);
    for (round = 0; round < ROUNDS; round++) {
        uint64_t number = round * ranks + rank, seen = 0, before, half;
        post(TIELINE_ATOMIC_ADD, SUM, number);
        post(TIELINE_ATOMIC_OR, BITS, bit);
        post(TIELINE_ATOMIC_AND, KEPT, ~bit);
        post(TIELINE_ATOMIC_XOR, PARITY, bit);
        post(TIELINE_ATOMIC_MIN, LEAST, number + 5);
        post(TIELINE_ATOMIC_MAX, MOST, number);
        token = fetch(TIELINE_ATOMIC_SWAP, 8, TOKEN, token, 0);
        for (half = SUMS; half <= SUMS + 4; half += 4) {
            expect(fetch(TIELINE_ATOMIC_ADD, 4, half, 3, 0) % 3 == 0);
        }
        while ((before = fetch(TIELINE_ATOMIC_COMPARE_SWAP, 8, TICKETS, seen + 1, seen)) != seen) {
            seen = before;
        }
    }
    /* During the barrier, rank 0 serves the other ranks' remaining operations. */
    check(tieline_job_barrier(me.job, me.worker));
    check(tieline_job_exchange(me.job, &token, sizeof token, add_token, &held));
    if (rank == 0) {
        uint64_t all = ROUNDS * ranks, bits = 0, r;
        const uint32_t *sums = (const uint32_t *)word_of(memory, SUMS / 8);
        for (r = 0; r < ranks; r++) {
            bits |= UINT64_C(1) << (r % 64);
        }
        expect(*word_of(memory, SUM / 8) == all * (all - 1) / 2);
        expect(*word_of(memory, BITS / 8) == bits);
        expect(*word_of(memory, KEPT / 8) == ~bits);
        expect(*word_of(memory, PARITY / 8) == 0);
        expect(*word_of(memory, LEAST / 8) == 5);
        expect(*word_of(memory, MOST / 8) == all - 1);
        expect(*word_of(memory, TICKETS / 8) == all);
        expect(sums[0] == 3 * all && sums[1] == 3 * all);
        expect(held + *word_of(memory, TOKEN / 8) == ranks * (ranks + 1) / 2);
        printf("%" PRIu64 " atomics by %" PRIu64 " ranks, none lost\n", 10 * all, ranks);
    }
    check(tieline_job_barrier(me.job, me.worker));
    check(tieline_key_drop(words));
    check(tieline_endpoint_drop(home));
    check(tieline_worker_close_region(me.worker, memory, PATIENCE));
    leave(&me);
    return 0;
}
