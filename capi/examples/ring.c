/* A token travels round a ring of N processes; each adds its rank. After a hundred rounds rank 0 checks the sum.
 *
 * tieline run -n 8 -- ./ring
 */
#include <inttypes.h>

#include "job.h"

enum { TOKEN = 1, ROUNDS = 100 };

struct token {
    int is_here;
    uint64_t value;
};

static void on_token(void *user, const struct tieline_message *message)
{
    struct token *token = (struct token *)user;
    token->value = message->header;
    token->is_here = 1;
}

static int32_t is_here(void *user)
{
    return ((struct token *)user)->is_here;
}

static uint64_t receive(struct rank *me, struct token *token)
{
    check(tieline_worker_wait_until(me->worker, is_here, token, PATIENCE));
    token->is_here = 0;
    return token->value;
}

static void pass_on(struct rank *me, struct tieline_endpoint *next, uint64_t value)
{
    uint64_t request;
    finish(me, tieline_send(next, TOKEN, value, NULL, 0, NULL, &request), &request, NULL);
}

int main(void)
{
    struct rank me;
    struct token token = {0, 0};
    struct tieline_endpoint *next;
    uint64_t value = 0;
    int round;
    join(&me, 0);
    check(tieline_worker_on_message(me.worker, TOKEN, on_token, &token));
    publish_address(&me);
    next = connect_to(&me, (me.place.rank + 1) % me.place.ranks);
    for (round = 0; round < ROUNDS; round++) {
        if (me.place.rank == 0) {
            pass_on(&me, next, value);
            value = receive(&me, &token);
        } else {
            pass_on(&me, next, receive(&me, &token) + me.place.rank);
        }
    }
    if (me.place.rank == 0) {
        expect(value == (uint64_t)ROUNDS * me.place.ranks * (me.place.ranks - 1) / 2);
        printf("%d rounds through %zu processes: sum %" PRIu64 "\n", ROUNDS, me.place.ranks, value);
    }
    check(tieline_job_barrier(me.job, me.worker));
    check(tieline_endpoint_drop(next));
    leave(&me);
    return 0;
}
