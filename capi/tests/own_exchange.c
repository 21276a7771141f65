/* A job with the caller's own exchange: two processes that connect through a shared page.
 *
 * ./own_exchange
 */
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../examples/check.h"

enum { RANKS = 2, KEYS = 4, MOST = 16384, ADDRESS = 1, GREETING = 1, LOOKS = 100000000 };

/* Bytes that a rank has published under a key; `is_there` is written last. */
struct left {
    int is_there;
    size_t len;
    unsigned char bytes[MOST];
};

struct page {
    struct left left[RANKS][KEYS];
    /* For allgathers: the bytes of each rank, the number that each has begun, and the number that each has read completely. */
    struct left given[RANKS];
    int begun[RANKS], read[RANKS];
};

struct own {
    struct page *page;
    size_t rank;
    int round;
};

/* Waits for another process, with a limit. */
static int32_t until_at_least(const int *word, int value)
{
    long look;
    for (look = 0; look < LOOKS; look++) {
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= value) {
            return TIELINE_OK;
        }
        sched_yield();
    }
    return TIELINE_TIMED_OUT;
}

static int32_t leave(struct left *left, const void *bytes, size_t len, int number)
{
    if (len > MOST) {
        return TIELINE_TOO_LARGE;
    }
    if (len > 0) {
        memcpy(left->bytes, bytes, len);
    }
    left->len = len;
    __atomic_store_n(&left->is_there, number, __ATOMIC_RELEASE);
    return TIELINE_OK;
}

static int32_t allgather(void *user, const void *mine, size_t len, tieline_take_fn take, void *to)
{
    struct own *own = (struct own *)user;
    size_t rank;
    int32_t status = TIELINE_OK;
    /* A rank does not overwrite bytes that another rank has not read. */
    for (rank = 0; rank < RANKS && status == TIELINE_OK; rank++) {
        status = until_at_least(&own->page->read[rank], own->round);
    }
    own->round++;
    if (status == TIELINE_OK) {
        status = leave(&own->page->given[own->rank], mine, len, own->round);
    }
    for (rank = 0; rank < RANKS && status == TIELINE_OK; rank++) {
        struct left *given = &own->page->given[rank];
        status = until_at_least(&given->is_there, own->round);
        if (status == TIELINE_OK) {
            take(to, rank, given->bytes, given->len);
        }
    }
    __atomic_store_n(&own->page->read[own->rank], own->round, __ATOMIC_RELEASE);
    return status;
}

static int32_t publish(void *user, uint32_t key, const void *bytes, size_t len)
{
    struct own *own = (struct own *)user;
    return key < KEYS ? leave(&own->page->left[own->rank][key], bytes, len, 1) : TIELINE_INVALID;
}

static int32_t lookup(void *user, size_t rank, uint32_t key, tieline_take_fn take, void *to)
{
    struct own *own = (struct own *)user;
    struct left *left;
    int32_t status;
    if (key >= KEYS) {
        return TIELINE_INVALID;
    }
    left = &own->page->left[rank][key];
    status = until_at_least(&left->is_there, 1);
    if (status == TIELINE_OK) {
        take(to, rank, left->bytes, left->len);
    }
    return status;
}

static void on_greeting(void *user, const struct tieline_message *message)
{
    expect(message->len == 5 && memcmp(message->payload, "hello", 5) == 0);
    *(int *)user = 1;
}

static int32_t is_greeted(void *user)
{
    return *(int *)user;
}

static void add(void *to, size_t rank, const void *bytes, size_t len)
{
    expect(len == 1);
    *(int *)to += *(const unsigned char *)bytes * (rank == 1 ? 10 : 1);
}

static void be(size_t rank, struct page *page)
{
    struct own own = {page, rank, 0};
    struct tieline_exchange exchange;
    struct tieline_job_place place = {sizeof place, 9, 9, 9, 9};
    struct tieline_job *job;
    struct tieline_context *context;
    struct tieline_worker *worker;
    struct tieline_endpoint *other;
    unsigned char bytes[MOST], mine = (unsigned char)(rank + 3);
    size_t len = sizeof bytes;
    int greeted = 0, sum = 0;
    memset(&exchange, 0, sizeof exchange);
    exchange.size = sizeof exchange;
    exchange.rank = RANKS;
    exchange.ranks = RANKS;
    exchange.user = &own;
    exchange.allgather = allgather;
    exchange.publish = publish;
    expect(tieline_job_open(&exchange, &job) == TIELINE_INVALID && job == NULL);
    exchange.rank = rank;
    check(tieline_job_open(&exchange, &job));
    expect(tieline_job_lookup(job, 0, ADDRESS, bytes, &len) == TIELINE_UNSUPPORTED);
    check(tieline_job_close(job));
    exchange.lookup = lookup;
    check(tieline_job_open(&exchange, &job));
    check(tieline_job_place(job, &place));
    expect(place.rank == rank && place.ranks == RANKS && place.local_ranks == 1);

    check(tieline_context_open(NULL, &context));
    check(tieline_worker_open(context, &worker));
    check(tieline_worker_on_message(worker, GREETING, on_greeting, &greeted));
    len = sizeof bytes;
    check(tieline_worker_address(worker, bytes, &len));
    check(tieline_job_publish(job, ADDRESS, bytes, len));
    expect(tieline_job_publish(job, 99, bytes, len) == TIELINE_INVALID);
    len = sizeof bytes;
    check(tieline_job_lookup(job, 1 - rank, ADDRESS, bytes, &len));
    expect(tieline_job_lookup(job, RANKS, ADDRESS, bytes, &len) == TIELINE_INVALID);
    expect(len == 0);
    len = page->left[1 - rank][ADDRESS].len;
    check(tieline_worker_connect(worker, bytes, len, &other));
    check(tieline_send(other, GREETING, 0, "hello", 5, NULL, NULL));
    check(tieline_worker_wait_until(worker, is_greeted, &greeted, PATIENCE));
    check(tieline_job_exchange(job, &mine, 1, add, &sum));
    expect(sum == 43);
    check(tieline_job_barrier(job, worker));
    check(tieline_job_barrier(job, NULL));
    check(tieline_endpoint_drop(other));
    check(tieline_worker_close(worker, PATIENCE));
    check(tieline_context_close(context));
    check(tieline_job_close(job));
}

int main(void)
{
    void *page = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ended;
    pid_t child;
    expect(page != MAP_FAILED);
    child = fork();
    if (child == 0) {
        be(1, (struct page *)page);
        _exit(0);
    }
    be(0, (struct page *)page);
    expect(child > 0 && waitpid(child, &ended, 0) == child && ended == 0);
    puts("own exchange: the two have found each other");
    return 0;
}
