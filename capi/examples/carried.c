/* The application carries the datagrams that establish connections, here over UDP sockets of its own. Rank 0 greets the others.
 *
 * TIELINE_PROVIDERS=tcp TIELINE_CONNECT=oob tieline run -n 2 -- ./carried
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job.h"

/* The size of a receive buffer: more than the longest datagram of the library. */
enum { GREETING = 1, ROOM = 16 << 10 };

static struct rank me;
static int udp;

/* A socket, and the address by which the other processes of this host reach it. */
static struct sockaddr_in open_socket(void)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    udp = socket(AF_INET, SOCK_DGRAM, 0);
    expect(udp >= 0 && fcntl(udp, F_SETFL, O_NONBLOCK) == 0);
    expect(bind(udp, (struct sockaddr *)&at, sizeof at) == 0);
    expect(getsockname(udp, (struct sockaddr *)&at, &len) == 0);
    return at;
}

/* Sends a datagram through the socket. The socket may lose datagrams, because the library retransmits. */
static int32_t carry(void *user, const void *to, size_t to_len, const void *datagram, size_t len)
{
    struct sockaddr_in there;
    (void)user;
    if (to_len != sizeof there) {
        return 0;
    }
    memcpy(&there, to, sizeof there);
    return sendto(udp, datagram, len, 0, (struct sockaddr *)&there, sizeof there) == (ssize_t)len;
}

/* Delivers the datagrams that the socket has received, and makes progress. */
static void turn(void)
{
    unsigned char datagram[ROOM];
    ssize_t len;
    while ((len = recv(udp, datagram, sizeof datagram, 0)) > 0) {
        /* Any process may send to a socket, so a rejected datagram is not a failure here. */
        (void)tieline_worker_deliver(me.worker, datagram, (size_t)len);
    }
    check(tieline_worker_progress(me.worker));
}

static void on_greeting(void *user, const struct tieline_message *message)
{
    expect(message->len == 7 && memcmp(message->payload, "carried", 7) == 0);
    *(int *)user = 1;
}

/* Waits in the barrier. A rank that is done continues to carry datagrams until all ranks are done. */
static void *waits_for_all(void *is_over)
{
    check(tieline_job_barrier(me.job, NULL));
    __atomic_store_n((int *)is_over, 1, __ATOMIC_RELEASE);
    return NULL;
}


int main(void)
{
    struct sockaddr_in here;
    pthread_t waiting;
    int greeted = 0, is_over = 0;
    int32_t set;
    size_t rank;
    join(&me, TIELINE_CONTEXT_OUT_OF_BAND);
    here = open_socket();
    set = tieline_worker_set_out_of_band(me.worker, &here, sizeof here, carry, NULL);
    if (set == TIELINE_UNSUPPORTED) {
        printf("rank %zu: nothing here needs to be carried\n", me.place.rank);
    } else {
        check(set);
    }
    check(tieline_worker_on_message(me.worker, GREETING, on_greeting, &greeted));
    publish_address(&me);
    if (me.place.rank == 0) {
        for (rank = 1; rank < me.place.ranks; rank++) {
            struct tieline_endpoint *peer = connect_to(&me, rank);
            uint64_t request;
            int32_t sent = check(tieline_send(peer, GREETING, 0, "carried", 7, NULL, &request));
            while (sent == TIELINE_PENDING) {
                turn();
                sent = check(tieline_worker_test(me.worker, request, NULL));
            }
        }
    } else {
        while (!greeted) {
            turn();
        }
        printf("rank %zu was greeted\n", me.place.rank);
    }
    expect(pthread_create(&waiting, NULL, waits_for_all, &is_over) == 0);
    while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
        turn();
    }
    expect(pthread_join(waiting, NULL) == 0);
    leave(&me);
    expect(close(udp) == 0);
    return 0;
}
