/* Every rank greets the next one and waits for its own greeting.
 *
 * tieline run -n 4 -- ./hello
 *
 * cc hello.c $(pkg-config --cflags --libs tieline)
 */
#include <inttypes.h>

#include "job.h"

enum { GREETING = 1 };

struct greeting {
    size_t rank;
    int is_here;
    struct tieline_endpoint *next;
};

static void on_greeting(void *user, const struct tieline_message *message)
{
    struct greeting *greeting = (struct greeting *)user;
    printf("rank %zu: rank %" PRIu64 " says: %.*s\n", greeting->rank, message->header, (int)message->len,
           (const char *)message->payload);
    greeting->is_here = 1;
}

/* Returns non-zero if the greeting has arrived or the endpoint to the next rank has failed: that rank then never gets its greeting,
   and the failure must end this wait. */
static int32_t is_greeted(void *user)
{
    struct greeting *greeting = (struct greeting *)user;
    return greeting->is_here || tieline_endpoint_error(greeting->next, NULL) < 0;
}

int main(void)
{
    static const char text[] = "hello from the other side";
    struct rank me;
    struct greeting greeting = {0, 0, NULL};
    size_t to, len;
    char path[512];
    uint64_t request;
    join(&me, 0);
    greeting.rank = me.place.rank;
    check(tieline_worker_on_message(me.worker, GREETING, on_greeting, &greeting));
    publish_address(&me);
    to = (me.place.rank + 1) % me.place.ranks;
    greeting.next = connect_to(&me, to);
    len = sizeof path;
    check(tieline_endpoint_path(greeting.next, path, &len));
    printf("rank %zu reaches rank %zu by %s\n", me.place.rank, to, path);
    finish(&me, tieline_send(greeting.next, GREETING, me.place.rank, text, sizeof text - 1, NULL, &request), &request,
           NULL);
    check(tieline_worker_wait_until(me.worker, is_greeted, &greeting, PATIENCE));
    check(tieline_endpoint_error(greeting.next, NULL));
    check(tieline_job_barrier(me.job, me.worker));
    check(tieline_endpoint_drop(greeting.next));
    leave(&me);
    return 0;
}
