/* One epoll loop for a worker's descriptor and a socket of the application's own. The loop sleeps while there is nothing to do, and
   wakes for every event.
 *
 * tieline run -n 2 -- ./event_loop
 *
 * cc event_loop.c $(pkg-config --cflags --libs tieline)
 *
 * Each rank sends itself lines through a socket, as a client of the application would, and forwards each line to the other rank as
 * a message. The program ends when it has read all lines and received all messages.
 *
 * The worker's descriptor is level-triggered and belongs to the library: register it once, with EPOLLIN and without EPOLLET.
 * Arming holds for one sleep: call tieline_worker_arm before each epoll_wait. TIELINE_OK: sleep. TIELINE_PENDING: there is something
 * to do, so make progress and arm again. The library's own time limits, such as the one after which a silent peer has failed, also
 * make the descriptor readable: epoll_wait needs no time limit for them.
 */
#include <inttypes.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job.h"

enum { LINE = 1, LINES = 20 };

struct state {
    size_t rank;
    unsigned heard, read;
    int socket[2];
    struct tieline_endpoint *other;
};

static void on_line(void *user, const struct tieline_message *message)
{
    struct state *state = (struct state *)user;
    expect(message->header == state->heard);
    state->heard++;
}

/* Reads a line from the application's own descriptor, and forwards the line to the other rank. */
static void pass_on(struct state *state, struct tieline_worker *worker)
{
    char line[16];
    ssize_t len = read(state->socket[0], line, sizeof line);
    int32_t sent;
    expect(len > 0);
    while ((sent = tieline_send(state->other, LINE, state->read, line, (size_t)len, NULL, NULL)) == TIELINE_AGAIN) {
        check(tieline_worker_progress(worker)); /* make room */
    }
    check(sent);
    state->read++;
}

static void say(const struct state *state)
{
    expect(write(state->socket[1], "a line\n", 7) == 7);
}

static void watch(int loop, int fd)
{
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    event.data.fd = fd;
    expect(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0);
}

int main(void)
{
    struct rank me;
    struct state state;
    struct epoll_event events[4];
    int loop = epoll_create1(EPOLL_CLOEXEC), fd = -1, at, count;
    memset(&state, 0, sizeof state);
    join(&me, 0);
    expect(me.place.ranks == 2 && loop >= 0);
    state.rank = me.place.rank;
    check(tieline_worker_on_message(me.worker, LINE, on_line, &state));
    publish_address(&me);
    state.other = connect_to(&me, 1 - state.rank);
    check(tieline_worker_fd(me.worker, &fd));
    expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, state.socket) == 0);
    watch(loop, fd);
    watch(loop, state.socket[0]);
    say(&state);
    while (state.heard < LINES || state.read < LINES) {
        int32_t armed = check(tieline_worker_arm(me.worker));
        /* If the worker may have something to do, epoll_wait only polls. */
        count = epoll_wait(loop, events, 4, armed == TIELINE_PENDING ? 0 : -1);
        expect(count >= 0);
        for (at = 0; at < count; at++) {
            if (events[at].data.fd == state.socket[0]) {
                pass_on(&state, me.worker);
                if (state.read < LINES) {
                    say(&state);
                }
            }
        }
        while (check(tieline_worker_progress(me.worker)) > 0) {
        }
    }
    printf("rank %zu: %u lines passed on, %u heard\n", state.rank, state.read, state.heard);
    check(tieline_job_barrier(me.job, me.worker));
    check(tieline_endpoint_drop(state.other));
    leave(&me);
    (void)close(state.socket[0]);
    (void)close(state.socket[1]);
    (void)close(loop);
    return 0;
}
