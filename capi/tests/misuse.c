/* Errors of a caller that the library detects: each is reported, mostly with a text. The failed call does nothing else.
 *
 * ./misuse
 */
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../examples/check.h"

#define refused(call, status_, words) refuse(call, status_, words, __LINE__)

/* Checks that the call has failed with this status, and that the error text contains `words`. */
static void refuse(int32_t is, int32_t status, const char *words, int line)
{
    struct tieline_error error = {sizeof error, 0, 0, NULL, NULL, NULL, NULL, 0};
    int32_t read = tieline_last_error(&error);
    if (read != TIELINE_OK || is != status || (is < 0 && error.status != status) ||
        !strstr(tieline_error_text(), words) || !*error.what || !*tieline_status_text(status)) {
        fprintf(stderr, "misuse.c:%d: %d is not %d with `%s`: %s\n", line, is, status, words, tieline_error_text());
        exit(1);
    }
}

static struct tieline_job *job;

/* The common objects of the tests: a worker with an endpoint to itself. */
struct fixture {
    struct tieline_context *context;
    struct tieline_worker *worker;
    struct tieline_endpoint *me;
    struct tieline_region *memory;
    struct tieline_key *key;
    int handled;
};

static void set_up(struct fixture *f)
{
    unsigned char bytes[8192];
    size_t len = sizeof bytes;
    memset(f, 0, sizeof *f);
    check(tieline_context_open(NULL, &f->context));
    check(tieline_worker_open(f->context, &f->worker));
    check(tieline_worker_address(f->worker, bytes, &len));
    check(tieline_worker_connect(f->worker, bytes, len, &f->me));
    check(tieline_context_alloc(f->context, 4096, TIELINE_ALL, &f->memory));
    len = sizeof bytes;
    check(tieline_region_key(f->memory, bytes, &len));
    check(tieline_endpoint_import_key(f->me, bytes, len, &f->key));
}

static void tear_down(struct fixture *f)
{
    check(tieline_key_drop(f->key));
    check(tieline_endpoint_drop(f->me));
    check(tieline_worker_close(f->worker, PATIENCE));
    check(tieline_region_close(f->memory));
    check(tieline_context_close(f->context));
}

static int32_t is_handled(void *user)
{
    return ((struct fixture *)user)->handled;
}

static void nulls_and_noise(void)
{
    struct fixture f;
    struct tieline_worker *worker = (struct tieline_worker *)&f;
    uint64_t value = 7, request = 7;
    size_t len = 5;
    set_up(&f);
    refused(tieline_context_open(NULL, NULL), TIELINE_INVALID, "null");
    refused(tieline_worker_open(NULL, &worker), TIELINE_INVALID, "null handle");
    expect(worker == NULL);
    refused(tieline_worker_progress(NULL), TIELINE_INVALID, "null handle");
    refused(tieline_send(NULL, 1, 0, NULL, 0, NULL, &request), TIELINE_INVALID, "null handle");
    expect(request == 0);
    request = 7;
    refused(tieline_fetch(NULL, TIELINE_ATOMIC_ADD, 8, 0, 1, 0, &value, NULL, &request), TIELINE_INVALID, "null handle");
    expect(request == 0 && value == 0);
    value = 7;
    refused(tieline_send(f.me, 1, 0, NULL, 8, NULL, NULL), TIELINE_INVALID, "null");
    refused(tieline_send(f.me, 1, 0, "x", SIZE_MAX, NULL, NULL), TIELINE_INVALID, "too many bytes");
    refused(tieline_send(f.me, 0xf000, 0, "x", 1, NULL, NULL), TIELINE_INVALID, "0xf000");
    refused(tieline_put_bytes(NULL, 0, "x", 1, NULL, NULL), TIELINE_INVALID, "null handle");
    refused(tieline_fetch(f.key, TIELINE_ATOMIC_ADD, 8, 0, 1, 0, NULL, NULL, NULL), TIELINE_INVALID, "null");
    refused(tieline_fetch(f.key, 99, 8, 0, 1, 0, &value, NULL, NULL), TIELINE_INVALID, "operation 99");
    expect(value == 0);
    refused(tieline_fetch(f.key, TIELINE_ATOMIC_ADD, 3, 0, 1, 0, &value, NULL, NULL), TIELINE_INVALID, "3 bytes");
    refused(tieline_fetch(f.key, TIELINE_ATOMIC_ADD, 8, 4, 1, 0, &value, NULL, NULL), TIELINE_MISALIGNED, "");
    refused(tieline_worker_address(f.worker, NULL, NULL), TIELINE_INVALID, "null");
    refused(tieline_worker_address(f.worker, &value, &len), TIELINE_TOO_LARGE, "no room");
    expect(len > 5);
    refused(tieline_worker_connect(f.worker, "no address", 10, &f.me), TIELINE_BAD_DATA, "");
    expect(f.me == NULL);
    refused(tieline_worker_wait_until(f.worker, NULL, NULL, 0), TIELINE_INVALID, "null");
    refused(tieline_worker_on_message(f.worker, 0xf000, NULL, NULL), TIELINE_INVALID, "0xf000");
    refused(tieline_worker_progress((struct tieline_worker *)(uintptr_t)0x1234), TIELINE_INVALID, "no handle");
    refused(tieline_worker_progress((struct tieline_worker *)&f), TIELINE_INVALID, "no handle");
    refused(tieline_worker_progress((struct tieline_worker *)(uintptr_t)UINT64_MAX), TIELINE_INVALID, "no handle");
    check(tieline_key_drop(f.key));
    check(tieline_worker_close(f.worker, PATIENCE));
    check(tieline_region_close(f.memory));
    check(tieline_context_close(f.context));
}

static void handles_of_another_kind_and_those_that_are_over(void)
{
    struct fixture f, before;
    uint64_t number = 7;
    set_up(&f);
    refused(tieline_worker_progress((struct tieline_worker *)f.context), TIELINE_INVALID, "another kind");
    refused(tieline_context_close((struct tieline_context *)f.worker), TIELINE_INVALID, "another kind");
    refused(tieline_put(f.key, 0, (struct tieline_region *)f.key, 0, 8, NULL, NULL), TIELINE_INVALID, "another kind");
    refused(tieline_worker_finish(f.worker, 5, 0, NULL), TIELINE_INVALID, "none with the number");
    before = f;
    check(tieline_endpoint_drop(f.me));
    refused(tieline_endpoint_drop(f.me), TIELINE_INVALID, "closed");
    refused(tieline_send(f.me, 1, 0, NULL, 0, NULL, &number), TIELINE_INVALID, "closed");
    refused(tieline_put_bytes(f.key, 0, "x", 1, NULL, &number), TIELINE_CLOSED, "dropped");
    expect(number == 0);
    check(tieline_key_drop(f.key));
    refused(tieline_key_drop(f.key), TIELINE_INVALID, "closed");
    check(tieline_worker_close(f.worker, PATIENCE));
    refused(tieline_worker_close(f.worker, PATIENCE), TIELINE_INVALID, "closed");
    refused(tieline_worker_drop(f.worker), TIELINE_INVALID, "closed");
    check(tieline_region_close(f.memory));
    refused(tieline_region_close(f.memory), TIELINE_INVALID, "closed");
    refused(tieline_region_drop(f.memory), TIELINE_INVALID, "closed");
    check(tieline_context_close(f.context));
    refused(tieline_context_close(f.context), TIELINE_INVALID, "closed");
    /* New objects reuse the places of the dropped objects, but not their handles. */
    set_up(&f);
    refused(tieline_worker_progress(before.worker), TIELINE_INVALID, "closed");
    refused(tieline_send(before.me, 1, 0, NULL, 0, NULL, NULL), TIELINE_INVALID, "closed");
    /* Objects of a worker outlive the worker, and are unusable. */
    check(tieline_worker_drop(f.worker));
    refused(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL), TIELINE_CLOSED, "");
    check(tieline_key_drop(f.key));
    check(tieline_endpoint_drop(f.me));
    check(tieline_region_drop(f.memory));
    check(tieline_context_close(f.context));
}

static void records(void)
{
    struct fixture f;
    struct {
        struct tieline_how how;
        uint64_t tail;
    } later;
    struct tieline_how how = {0, 0, 0, 0, NULL, 0, 0};
    struct tieline_completed ended;
    struct tieline_counted counted = {sizeof counted, 1, 1, 1, 1, 1, 1, 1, 1};
    struct tieline_counter *counter;
    size_t taken = 7;
    set_up(&f);
    refused(tieline_put_bytes(f.key, 0, "x", 1, &how, NULL), TIELINE_INVALID, "without its size");
    memset(&later, 0, sizeof later);
    later.how.size = sizeof later;
    check(tieline_put_bytes(f.key, 0, "x", 1, &later.how, NULL));
    later.tail = UINT64_C(1) << 40;
    refused(tieline_put_bytes(f.key, 0, "x", 1, &later.how, NULL), TIELINE_UNSUPPORTED_PARAM, "later version");
    how.size = sizeof how;
    how.flags = 1u << 30;
    refused(tieline_put_bytes(f.key, 0, "x", 1, &how, NULL), TIELINE_UNSUPPORTED_PARAM, "flags");
    how.flags = 0;
    how.reserved = 7;
    refused(tieline_put_bytes(f.key, 0, "x", 1, &how, NULL), TIELINE_UNSUPPORTED_PARAM, "7 in a reserved field");
    how.reserved = 0;
    how.tell = TIELINE_TELL_COUNTED;
    refused(tieline_put_bytes(f.key, 0, "x", 1, &how, NULL), TIELINE_INVALID, "a counter");
    check(tieline_worker_counter(f.worker, &counter));
    how.counter = counter;
    check(tieline_put_bytes(f.key, 0, "x", 1, &how, NULL));
    /* An older caller's record is shorter: missing fields count as zero, so the operation is tracked with the word 0.
       */
    how.size = offsetof(struct tieline_how, user);
    how.tell = TIELINE_TELL_TRACKED;
    how.user = 99;
    check(tieline_put_bytes(f.key, 0, "x", 1, &how, NULL));
    check(tieline_worker_flush(f.worker));
    check(tieline_worker_take_completed(f.worker, &ended, sizeof ended, 1, &taken));
    expect(taken == 1 && ended.user == 0 && ended.status == TIELINE_OK);
    check(tieline_counter_read(counter, &counted));
    expect(counted.done == 1 && counted.failed == 0 && counted.pending == 0 && counted.first_failure == 0);
    refused(tieline_worker_take_completed(f.worker, &ended, 3, 1, &taken), TIELINE_INVALID, "3 bytes");
    expect(taken == 0);
    check(tieline_counter_drop(counter));
    refused(tieline_counter_read(counter, &counted), TIELINE_INVALID, "closed");
    tear_down(&f);
}

static unsigned char *memory_of(const struct fixture *f)
{
    void *start;
    check(tieline_region_memory(f->memory, &start, NULL));
    return (unsigned char *)start;
}

static struct tieline_announcement *announced;
static const struct tieline_message *over;

static void keeps_announced(void *user, const struct tieline_message *message)
{
    over = message;
    check(tieline_message_announcement(message, &announced));
    ((struct fixture *)user)->handled = 1;
}

static void message_is_refused_after_handler(void)
{
    struct tieline_announcement *late;
    struct tieline_kept *kept;
    const void *payload;
    uint32_t peer;
    refused(tieline_message_peer(over, &peer), TIELINE_INVALID, "handler has returned");
    refused(tieline_message_keep(over, &kept, &payload), TIELINE_INVALID, "handler has returned");
    refused(tieline_message_announcement(over, &late), TIELINE_INVALID, "handler has returned");
}

static struct tieline_message copies[2];

/* Checks that the functions that take such a record refuse this record. */
static void is_refused(const struct tieline_message *record)
{
    struct tieline_announcement *late;
    struct tieline_endpoint *endpoint;
    struct tieline_kept *kept;
    const void *payload;
    uint32_t peer;
    refused(tieline_message_peer(record, &peer), TIELINE_INVALID, "handler has returned");
    refused(tieline_message_keep(record, &kept, &payload), TIELINE_INVALID, "handler has returned");
    refused(tieline_message_announcement(record, &late), TIELINE_INVALID, "handler has returned");
    refused(tieline_message_endpoint(record, &endpoint), TIELINE_INVALID, "handler has returned");
}

static void *asks_in_another_thread(void *record)
{
    uint32_t peer;
    refused(tieline_message_peer((const struct tieline_message *)record, &peer), TIELINE_BUSY, "another thread");
    return NULL;
}

static void copies_its_message(void *user, const struct tieline_message *message)
{
    struct fixture *f = (struct fixture *)user;
    struct tieline_kept *kept;
    const void *payload;
    uint32_t peer, same;
    pthread_t other;
    copies[f->handled] = *message;
    check(tieline_message_peer(message, &peer));
    check(tieline_message_peer(&copies[f->handled], &same));
    expect(peer == same);
    check(tieline_message_keep(&copies[f->handled], &kept, &payload));
    expect(memcmp(payload, "hello", 5) == 0);
    check(tieline_kept_drop(kept));
    expect(pthread_create(&other, NULL, asks_in_another_thread, &copies[f->handled]) == 0);
    expect(pthread_join(other, NULL) == 0);
    if (f->handled++) {
        is_refused(&copies[0]);
    }
    over = message;
}

/* A copy of a record refers to its message during the handler, and is refused afterwards. */
static void copied_message_record_is_refused_after_handler(void)
{
    struct fixture f;
    struct tieline_message noise;
    int n;
    set_up(&f);
    check(tieline_worker_on_message(f.worker, 1, copies_its_message, &f));
    for (n = 1; n <= 2; n++) {
        check(tieline_send(f.me, 1, 0, "hello", 5, NULL, NULL));
        while (f.handled < n) {
            check(tieline_worker_progress(f.worker));
        }
        is_refused(&copies[n - 1]);
        is_refused(over);
    }
    noise = copies[0];
    noise.reserved = &noise;
    is_refused(&noise);
    noise.reserved = NULL;
    is_refused(&noise);
    check(tieline_worker_on_message(f.worker, 1, NULL, NULL));
    is_refused(&copies[1]);
    is_refused(over);
    tear_down(&f);
    is_refused(&copies[1]);
    is_refused(over);
}

/* A refused operation has not happened and does not happen later. */
static void operation_with_invalid_report_is_not_posted(void)
{
    static unsigned char block[1 << 20];
    struct fixture f;
    struct tieline_worker *other;
    struct tieline_counter *counter;
    struct tieline_how how = {sizeof how, TIELINE_TELL_COUNTED, 0, 0, NULL, 0, 0};
    uint64_t value = 7, request = 7;
    set_up(&f);
    check(tieline_worker_open(f.context, &other));
    check(tieline_worker_counter(other, &counter));
    how.counter = counter;
    refused(tieline_put_bytes(f.key, 0, "x", 1, &how, &request), TIELINE_INVALID, "another worker");
    expect(request == 0);
    refused(tieline_fetch(f.key, TIELINE_ATOMIC_ADD, 8, 64, 1, 0, &value, &how, NULL), TIELINE_INVALID, "another worker");
    refused(tieline_worker_begin_flush(f.worker, counter), TIELINE_INVALID, "");
    check(tieline_worker_on_message(f.worker, 1, keeps_announced, &f));
    refused(tieline_send(f.me, 1, 0, block, sizeof block, &how, NULL), TIELINE_INVALID, "another worker");
    memset(block, 'x', sizeof block);
    check(tieline_send(f.me, 1, 0, block, sizeof block, NULL, &request));
    check(tieline_worker_wait_until(f.worker, is_handled, &f, PATIENCE));
    message_is_refused_after_handler();
    refused(tieline_announcement_take(announced, f.memory, 0, 8, &how, NULL), TIELINE_INVALID, "another worker");
    check(tieline_announcement_refuse(announced));
    refused(tieline_worker_finish(f.worker, request, PATIENCE, NULL), TIELINE_UNSUPPORTED, "");
    check(tieline_worker_flush(f.worker));
    expect(memory_of(&f)[0] == 0 && memory_of(&f)[64] == 0);
    check(tieline_counter_drop(counter));
    check(tieline_worker_close(other, PATIENCE));
    tear_down(&f);
}

static void *another_thread(void *user)
{
    struct fixture *f = (struct fixture *)user;
    expect(*tieline_error_text() == '\0');
    uint64_t before = 7;
    refused(tieline_send(f->me, 1, 0, "x", 1, NULL, NULL), TIELINE_BUSY, "another thread");
    refused(tieline_put_bytes(f->key, 0, "x", 1, NULL, NULL), TIELINE_BUSY, "another thread");
    refused(tieline_fetch(f->key, TIELINE_ATOMIC_ADD, 8, 0, 1, 0, &before, NULL, NULL), TIELINE_BUSY, "another thread");
    refused(tieline_worker_progress(f->worker), TIELINE_BUSY, "another thread");
    refused(tieline_worker_drop(f->worker), TIELINE_BUSY, "another thread");
    return NULL;
}

/* A handler may make calls that do not wait, for example these. Calls that wait, and those of other threads, are refused. */
static void on_message(void *user, const struct tieline_message *message)
{
    struct fixture *f = (struct fixture *)user;
    struct tieline_endpoint *back = NULL;
    uint64_t before = 7;
    pthread_t other;
    over = message;
    refused(tieline_worker_finish(f->worker, 1, 0, NULL), TIELINE_INVALID, "none with the number");
    refused(tieline_worker_flush(f->worker), TIELINE_BUSY, "");
    refused(tieline_worker_close(f->worker, 0), TIELINE_BUSY, "");
    refused(tieline_job_barrier(job, f->worker), TIELINE_BUSY, "in a handler");
    expect(tieline_worker_progress(f->worker) == 0);
    check(tieline_message_endpoint(message, &back));
    expect(back == f->me);
    check(tieline_send(back, 2, 0, NULL, 0, NULL, NULL));
    check(tieline_send(back, 2, 0, "x", 1, NULL, NULL));
    memset(memory_of(f), 0, 8);
    check(tieline_put_bytes(f->key, 0, "\2", 1, NULL, NULL));
    check(tieline_fetch(f->key, TIELINE_ATOMIC_OR, 8, 0, 1, 99, &before, NULL, NULL));
    expect(before == 2 && memory_of(f)[0] == 3);
    check(tieline_fetch(f->key, TIELINE_ATOMIC_COMPARE_SWAP, 8, 0, 5, 3, &before, NULL, NULL));
    expect(before == 3 && memory_of(f)[0] == 5);
    expect(pthread_create(&other, NULL, another_thread, f) == 0 && pthread_join(other, NULL) == 0);
    f->handled = 1;
}

static void *uses_it_alone(void *user)
{
    struct fixture *f = (struct fixture *)user;
    check(tieline_put_bytes(f->key, 0, "moved", 5, NULL, NULL));
    check(tieline_worker_flush(f->worker));
    return NULL;
}

static void threads(void)
{
    struct fixture f;
    pthread_t other;
    set_up(&f);
    check(tieline_job_open(NULL, &job));
    check(tieline_worker_on_message(f.worker, 1, on_message, &f));
    check(tieline_worker_on_message(f.worker, 2, NULL, NULL));
    check(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL));
    check(tieline_worker_wait_until(f.worker, is_handled, &f, PATIENCE));
    message_is_refused_after_handler();
    expect(memory_of(&f)[0] == 5);
    /* Any thread may call, but only one thread at a time. */
    expect(pthread_create(&other, NULL, uses_it_alone, &f) == 0 && pthread_join(other, NULL) == 0);
    check(tieline_job_barrier(job, f.worker));
    check(tieline_job_close(job));
    tear_down(&f);
}

static void drops_its_worker(void *user, const struct tieline_message *message)
{
    struct fixture *f = (struct fixture *)user;
    (void)message;
    check(tieline_key_drop(f->key));
    check(tieline_endpoint_drop(f->me));
    check(tieline_worker_drop(f->worker));
    refused(tieline_worker_progress(f->worker), TIELINE_INVALID, "closed");
    f->handled = 1;
}

static void a_handler_may_end_its_worker(void)
{
    struct fixture f;
    set_up(&f);
    check(tieline_worker_on_message(f.worker, 1, drops_its_worker, &f));
    check(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL));
    while (!f.handled) {
        check(tieline_worker_progress(f.worker));
    }
    refused(tieline_worker_progress(f.worker), TIELINE_INVALID, "closed");
    check(tieline_region_close(f.memory));
    check(tieline_context_close(f.context));
}

static void is_the_last(void *user, const struct tieline_message *message)
{
    struct fixture *f = (struct fixture *)user;
    struct tieline_how how = {sizeof how, TIELINE_TELL_TRACKED, 0, 0, NULL, 0, 0};
    (void)message;
    f->handled++;
    check(tieline_worker_drop(f->worker));
    refused(tieline_put_bytes(f->key, 0, "x", 1, &how, NULL), TIELINE_CLOSED, "worker was closed");
    expect(memory_of(f)[0] == 0);
}

static void is_the_next(void *user, const struct tieline_message *message)
{
    struct fixture *f = (struct fixture *)user;
    uint32_t peer;
    check(tieline_message_peer(message, &peer));
    check(tieline_worker_on_message(f->worker, 1, NULL, NULL));
    check(tieline_message_peer(message, &peer));
    f->handled += 10;
}

static void replaces_itself(void *user, const struct tieline_message *message)
{
    struct fixture *f = (struct fixture *)user;
    uint32_t peer;
    /* The first of these two handlers never runs. */
    check(tieline_worker_on_message(f->worker, 1, is_the_last, f));
    check(tieline_worker_on_message(f->worker, 1, is_the_next, f));
    check(tieline_message_peer(message, &peer));
    expect(message->id == 1 && message->len == 1 && *(const char *)message->payload == 'x');
    f->handled++;
}

/* A handler and the record of its message are freed only after the handler has returned. */
static void a_handler_may_replace_itself(void)
{
    struct fixture f;
    int n;
    set_up(&f);
    check(tieline_worker_on_message(f.worker, 1, replaces_itself, &f));
    for (n = 0; n < 3; n++) {
        f.handled = 0;
        check(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL));
        if (n < 2) {
            check(tieline_worker_wait_until(f.worker, is_handled, &f, PATIENCE));
            expect(f.handled == (n == 0 ? 1 : 10));
        }
    }
    while (check(tieline_worker_progress(f.worker)) > 0) {
    }
    expect(f.handled == 0);
    tear_down(&f);
}

/* The objects that a handler uses may be freed together with the worker: the library does not access them afterwards. */
static void handler_that_drops_worker_is_the_last(void)
{
    struct fixture f;
    struct tieline_worker *worker;
    int n;
    set_up(&f);
    worker = f.worker;
    check(tieline_worker_on_message(f.worker, 1, is_the_last, &f));
    for (n = 0; n < 4; n++) {
        check(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL));
    }
    while (!f.handled) {
        check(tieline_worker_progress(worker));
    }
    expect(f.handled == 1);
    check(tieline_key_drop(f.key));
    check(tieline_endpoint_drop(f.me));
    check(tieline_region_close(f.memory));
    check(tieline_context_close(f.context));
}

/* A rendezvous message that is not received keeps its region open. */
static void a_region_in_use_is_not_closed(void)
{
    enum { LEN = 1 << 20 };
    static unsigned char block[LEN];
    struct fixture f;
    struct tieline_region *lent;
    struct tieline_piece piece;
    struct tieline_error error = {sizeof error, 0, 0, NULL, NULL, NULL, NULL, 0};
    uint64_t request = 0;
    set_up(&f);
    check(tieline_context_lend(f.context, block, LEN, &lent));
    piece.region = lent;
    piece.offset = 0;
    piece.len = LEN;
    expect(check(tieline_send_pieces(f.me, 9, 0, &piece, 1, NULL, &request)) == TIELINE_PENDING && request != 0);
    refused(tieline_region_close(lent), TIELINE_BUSY, "in use");
    check(tieline_last_error(&error));
    expect(error.kind == TIELINE_DO_RETRY && strstr(error.fix, "close again"));
    refused(tieline_region_close(lent), TIELINE_BUSY, "in use");
    piece.len = LEN + 1;
    refused(tieline_send_pieces(f.me, 9, 0, &piece, 1, NULL, NULL), TIELINE_OUT_OF_RANGE, "");
    /* The message has no handler, so it is refused, and the sender is notified. */
    refused(tieline_worker_finish(f.worker, request, PATIENCE, NULL), TIELINE_UNSUPPORTED, "");
    refused(tieline_worker_finish(f.worker, request, 0, NULL), TIELINE_INVALID, "none with the number");
    check(tieline_worker_close_region(f.worker, lent, PATIENCE));
    refused(tieline_region_close(lent), TIELINE_INVALID, "closed");
    tear_down(&f);
}

enum { LENT = 1 << 20, ATTEMPTS = 5000 };
static unsigned char lent_bytes[LENT];
static struct tieline_region *lent;

static uint64_t send_lent(struct fixture *f)
{
    struct tieline_piece piece;
    uint64_t request = 0;
    piece.region = lent;
    piece.offset = 0;
    piece.len = LENT;
    expect(check(tieline_send_pieces(f->me, 9, 0, &piece, 1, NULL, &request)) == TIELINE_PENDING && request != 0);
    return request;
}

static void uses_what_is_about_to_be_closed(void *user, const struct tieline_message *message)
{
    void *start;
    size_t len;
    (void)message;
    refused(tieline_region_memory(lent, &start, &len), TIELINE_BUSY, "another call");
    refused(tieline_region_close(lent), TIELINE_BUSY, "another call");
    refused(tieline_region_drop(lent), TIELINE_BUSY, "another call");
    ((struct fixture *)user)->handled = 1;
}

static void *looks_at_it(void *stop)
{
    void *start;
    size_t len;
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
        int32_t status = tieline_region_memory(lent, &start, &len);
        expect(status == TIELINE_BUSY || (status == TIELINE_OK && start == lent_bytes && len == LENT));
    }
    return NULL;
}

/* While a region is being closed, other calls get BUSY. A region that could not be closed keeps its address. */
static void a_region_that_is_about_to_be_closed_is_busy(void)
{
    struct fixture f;
    uint64_t request;
    int stop = 0, n;
    pthread_t other;
    set_up(&f);
    check(tieline_context_lend(f.context, lent_bytes, LENT, &lent));
    request = send_lent(&f);
    expect(pthread_create(&other, NULL, looks_at_it, &stop) == 0);
    for (n = 0; n < ATTEMPTS; n++) {
        expect(tieline_region_close(lent) == TIELINE_BUSY);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    expect(pthread_join(other, NULL) == 0);
    check(tieline_worker_on_message(f.worker, 1, uses_what_is_about_to_be_closed, &f));
    check(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL));
    check(tieline_worker_close_region(f.worker, lent, PATIENCE));
    expect(f.handled);
    refused(tieline_worker_finish(f.worker, request, PATIENCE, NULL), TIELINE_UNSUPPORTED, "");
    refused(tieline_region_close(lent), TIELINE_INVALID, "closed");
    tear_down(&f);
}

/* A peer that makes no progress: the wait times out repeatedly, until the operation itself has ended. */
static void timed_out_wait_does_not_end_operation(void)
{
    struct tieline_setting settings[] = {
        {"TIELINE_CONNECT_TIMEOUT", "800ms"},
        {"TIELINE_PROVIDERS", "tcp,tcp-connect"},
    };
    struct tieline_context_params params = {sizeof params, settings, 2, 0};
    struct tieline_error error = {sizeof error, 0, 0, NULL, NULL, NULL, NULL, 0};
    struct tieline_how how = {sizeof how, TIELINE_TELL_COUNTED, 0, 0, NULL, 0, 0};
    struct tieline_counted counted = {sizeof counted, 0, 0, 0, 0, 0, 0, 0, 0};
    struct tieline_context *context;
    struct tieline_worker *worker, *silent;
    struct tieline_endpoint *endpoint;
    struct tieline_counter *counter;
    unsigned char bytes[8192];
    size_t len = sizeof bytes;
    uint64_t request = 0;
    int32_t status;
    int waits = 0;
    check(tieline_context_open(&params, &context));
    check(tieline_worker_open(context, &worker));
    check(tieline_worker_open(context, &silent));
    check(tieline_worker_address(silent, bytes, &len));
    check(tieline_worker_connect(worker, bytes, len, &endpoint));
    check(tieline_worker_counter(worker, &counter));
    how.counter = counter;
    check(tieline_send(endpoint, 1, 0, "x", 1, &how, NULL));
    expect(check(tieline_endpoint_flush_messages(endpoint, NULL, &request)) == TIELINE_PENDING);
    /* The first wait times out immediately, however slow the program runs. */
    while ((status = tieline_worker_finish(worker, request, waits > 0 ? 10000000 : 0, NULL)) == TIELINE_TIMED_OUT) {
        check(tieline_last_error(&error));
        expect(error.status == TIELINE_TIMED_OUT && error.kind == TIELINE_DO_RETRY && strstr(error.fix, "wait again"));
        expect(waits++ < 6000);
    }
    refused(status, TIELINE_EXPIRED, "");
    check(tieline_last_error(&error));
    expect(waits > 0 && error.kind == TIELINE_OP_UNKNOWN);
    refused(tieline_worker_finish(worker, request, 0, NULL), TIELINE_INVALID, "none with the number");
    check(tieline_counter_read(counter, &counted));
    expect(counted.failed == 1 && counted.first_failure == TIELINE_EXPIRED && counted.first_kind == TIELINE_OP_UNKNOWN);
    refused(tieline_endpoint_error(endpoint, &error), TIELINE_EXPIRED, "");
    expect(error.kind == TIELINE_DO_RECONNECT);
    check(tieline_counter_drop(counter));
    check(tieline_endpoint_drop(endpoint));
    check(tieline_worker_drop(worker));
    check(tieline_worker_drop(silent));
    check(tieline_context_close(context));
}

static sem_t is_waiting;

static void closes_all(void *f)
{
    tear_down((struct fixture *)f);
}

static int32_t is_seen(void *user)
{
    (void)user;
    expect(sem_post(&is_waiting) == 0);
    return 0;
}

/* Makes waiting calls while being canceled; the cancellation takes effect after them. */
static void *waits_until_it_is_canceled(void *user)
{
    struct fixture *f = (struct fixture *)user;
    void *start;
    uint64_t word = 0;
    pthread_cleanup_push(closes_all, f);
    check(tieline_region_memory(f->memory, &start, NULL));
    refused(tieline_worker_wait_until(f->worker, is_seen, NULL, 100000000), TIELINE_TIMED_OUT, "time is up");
    check(tieline_worker_flush(f->worker));
    while (tieline_worker_wait(f->worker, 1000000) >= 0) {
    }
    check(tieline_put_bytes(f->key, 0, "x", 1, NULL, &word));
    if (word) {
        check(tieline_worker_finish(f->worker, word, PATIENCE, NULL));
    }
    expect(*(char *)start == 'x');
    f->handled = 1;
    for (;;) {
        pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return NULL;
}

/* A cancellation arrives during a wait: the calls complete, and the thread ends at its own cancellation point. */
static void a_thread_that_is_canceled_in_a_wait(void)
{
    struct fixture f;
    pthread_t thread;
    void *result = NULL;
    set_up(&f);
    expect(sem_init(&is_waiting, 0, 0) == 0);
    expect(pthread_create(&thread, NULL, waits_until_it_is_canceled, &f) == 0);
    expect(sem_wait(&is_waiting) == 0 && pthread_cancel(thread) == 0);
    expect(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && f.handled);
    expect(sem_destroy(&is_waiting) == 0);
}

static sem_t is_closed;

/* New objects reuse the places of the released objects. */
static void close_job(void)
{
    size_t len;
    refused(tieline_job_set_deadline(job, 1), TIELINE_BUSY, "another call of this job");
    check(tieline_job_close(job));
    for (len = 16; len < 512; len += 16) {
        void *block = malloc(len);
        expect(block != NULL);
        memset(block, 0x41, len);
        free(block);
    }
}

static tieline_take_fn late_take;
static void *late_to;

static int32_t closes_and_gathers(void *user, const void *mine, size_t len, tieline_take_fn take, void *to)
{
    (void)user;
    close_job();
    take(to, 0, mine, len);
    late_take = take;
    late_to = to;
    return TIELINE_OK;
}

static int32_t meets_when_it_is_closed(void *user)
{
    (void)user;
    return sem_wait(&is_closed) == 0 ? TIELINE_OK : TIELINE_IO;
}

static void takes_mine(void *to, size_t rank, const void *bytes, size_t len)
{
    *(int *)to = rank == 0 && len == 5 && memcmp(bytes, "mine", 5) == 0;
}

static int32_t comes_too_late(void *user)
{
    (void)user;
    return TIELINE_TIMED_OUT;
}

static void closes_its_job(void *user, const struct tieline_message *message)
{
    (void)message;
    close_job();
    ((struct fixture *)user)->handled = 1;
    expect(sem_post(&is_closed) == 0);
}

static void a_job_may_be_closed_inside_of_a_call(void)
{
    struct fixture f;
    struct tieline_exchange own;
    struct tieline_error error = {sizeof error, 0, 0, NULL, NULL, NULL, NULL, 0};
    int is_taken = 0;
    set_up(&f);
    memset(&own, 0, sizeof own);
    own.size = sizeof own;
    own.ranks = 1;
    /* A host has at most the ranks of the job, and the local rank is below the number of local ranks. */
    own.local_ranks = 2;
    refused(tieline_job_open(&own, &job), TIELINE_INVALID, "rank 0 of 2 of its host, in a job of 1");
    own.local_ranks = own.local_rank = 1;
    refused(tieline_job_open(&own, &job), TIELINE_INVALID, "rank 1 of 1 of its host");
    own.local_ranks = own.local_rank = 0;
    own.allgather = closes_and_gathers;
    own.barrier = meets_when_it_is_closed;
    check(tieline_job_open(&own, &job));
    check(tieline_job_set_deadline(job, 1));
    check(tieline_job_exchange(job, "mine", 5, takes_mine, &is_taken));
    expect(is_taken);
    /* Bytes that arrive after the call has returned are discarded. */
    late_take(late_to, 0, "late", 4);
    late_take(NULL, 0, "late", 4);
    late_take(&f, 0, "late", 4);
    refused(tieline_job_barrier(job, NULL), TIELINE_INVALID, "closed");
    own.barrier = comes_too_late;
    check(tieline_job_open(&own, &job));
    refused(tieline_job_barrier(job, NULL), TIELINE_TIMED_OUT, "");
    /* There are no more exchanges, so the call must not be repeated. */
    check(tieline_last_error(&error));
    expect(error.kind == TIELINE_DO_CONFIGURE);
    check(tieline_job_close(job));
    own.barrier = meets_when_it_is_closed;
    expect(sem_init(&is_closed, 0, 0) == 0);
    check(tieline_job_open(&own, &job));
    check(tieline_worker_on_message(f.worker, 1, closes_its_job, &f));
    check(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL));
    check(tieline_job_barrier(job, f.worker));
    expect(f.handled && sem_destroy(&is_closed) == 0);
    tear_down(&f);
}

static int32_t hands_over(void *user, size_t rank, uint32_t key, tieline_take_fn take, void *to)
{
    (void)user;
    (void)key;
    take(to, rank - 1, "of another", 10);
    take(to, rank + 1, "of another", 10);
    if (rank != 7) {
        take(to, rank, "mine", 5);
    }
    return TIELINE_OK;
}

/* Lengths that exceed the memory are refused, and do not crash the process. */
static void lengths_and_numbers_beyond_all_memory(void)
{
    enum { PIECES = 1 << 15 };
    struct fixture f;
    struct tieline_exchange own;
    struct tieline_piece *pieces = (struct tieline_piece *)calloc(PIECES, sizeof *pieces);
    struct tieline_blocks blocks = {sizeof blocks, 0, 1, 0, SIZE_MAX};
    struct tieline_region *region;
    size_t room = (size_t)1 << 34, n;
    char bytes[16];
    void *start = mmap(NULL, room, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    set_up(&f);
    expect(start != MAP_FAILED && pieces != NULL);
    refused(tieline_send(f.me, 1, 0, start, SIZE_MAX / 4, NULL, NULL), TIELINE_NO_MEMORY, "memory");
    check(tieline_context_lend(f.context, start, room, &region));
    for (n = 0; n < PIECES; n++) {
        pieces[n].region = region;
        pieces[n].len = room;
    }
    refused(tieline_send_pieces(f.me, 1, 0, pieces, PIECES, NULL, NULL), TIELINE_NO_MEMORY, "memory");
    check(tieline_region_close(region));
    expect(munmap(start, room) == 0);
    free(pieces);
    refused(tieline_put_strided(f.key, &blocks, f.memory, &blocks, NULL, NULL), TIELINE_TOO_LARGE, "blocks at the peer");
    refused(tieline_context_register(f.context, &f, SIZE_MAX, 0, &region), TIELINE_INVALID, "no memory has");
    refused(tieline_context_lend(f.context, (void *)(UINTPTR_MAX - 8), 16, &region), TIELINE_INVALID, "no memory has");
    memset(&own, 0, sizeof own);
    own.size = sizeof own;
    own.lookup = hands_over;
    own.ranks = SIZE_MAX;
    refused(tieline_job_open(&own, &job), TIELINE_INVALID, "16777216");
    own.ranks = (1 << 24) + 1;
    refused(tieline_job_open(&own, &job), TIELINE_INVALID, "16777216");
    own.ranks = 1 << 24;
    check(tieline_job_open(&own, &job));
    n = sizeof bytes;
    check(tieline_job_lookup(job, 9999999, 1, bytes, &n));
    expect(n == 5 && strcmp(bytes, "mine") == 0);
    refused(tieline_job_lookup(job, 7, 1, bytes, &n), TIELINE_BAD_DATA, "nothing of rank 7");
    check(tieline_job_close(job));
    tear_down(&f);
}

/* A child cannot use the parent's objects and gets an error; it may open a context of its own. The parent goes on. */
static void a_forked_child(void)
{
    struct fixture f;
    pid_t child;
    int ended;
    set_up(&f);
    check(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL));
    child = fork();
    if (child == 0) {
        struct fixture own;
        struct tieline_worker *worker;
        uint64_t word = 0;
        refused(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL), TIELINE_INVALID, "fork");
        refused(tieline_put_bytes(f.key, 0, "x", 1, NULL, NULL), TIELINE_INVALID, "fork");
        refused(tieline_fetch(f.key, TIELINE_ATOMIC_ADD, 8, 0, 1, 0, &word, NULL, NULL), TIELINE_INVALID, "fork");
        refused(tieline_worker_wait(f.worker, 0), TIELINE_INVALID, "fork");
        refused(tieline_worker_open(f.context, &worker), TIELINE_INVALID, "fork");
        expect(tieline_worker_progress(f.worker) == 0);
        set_up(&own);
        check(tieline_put_bytes(own.key, 0, "x", 1, NULL, NULL));
        tear_down(&own);
        check(tieline_key_drop(f.key));
        check(tieline_endpoint_drop(f.me));
        check(tieline_worker_drop(f.worker));
        check(tieline_context_close(f.context));
        _exit(0);
    }
    expect(child > 0 && waitpid(child, &ended, 0) == child && ended == 0);
    check(tieline_put_bytes(f.key, 0, "y", 1, NULL, NULL));
    tear_down(&f);
}

static void counts(void *user, const struct tieline_message *message)
{
    struct fixture *f = (struct fixture *)user;
    expect(message->len == 5 && memcmp(message->payload, "child", 5) == 0);
    f->handled++;
}

static int32_t has_all_of_three(void *user)
{
    return ((struct fixture *)user)->handled == 3;
}

/* Children, each with a context of its own, connect to their parent, which continues to use its own objects. */
static void children_that_reach_their_parent(void)
{
    struct fixture f;
    unsigned char address[8192], key[8192];
    size_t address_len = sizeof address, key_len = sizeof key, len;
    pid_t children[3];
    void *memory;
    int i, ended;
    set_up(&f);
    check(tieline_worker_on_message(f.worker, 1, counts, &f));
    check(tieline_worker_address(f.worker, address, &address_len));
    check(tieline_region_key(f.memory, key, &key_len));
    for (i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            struct fixture own;
            struct tieline_endpoint *parent;
            struct tieline_key *theirs;
            uint64_t request = 0;
            int32_t put;
            set_up(&own);
            check(tieline_worker_connect(own.worker, address, address_len, &parent));
            check(tieline_endpoint_import_key(parent, key, key_len, &theirs));
            put = check(tieline_put_bytes(theirs, (uint64_t)i, "abc" + i, 1, NULL, &request));
            if (put == TIELINE_PENDING)
                check(tieline_worker_finish(own.worker, request, PATIENCE, NULL));
            check(tieline_worker_flush(own.worker));
            check(tieline_send(parent, 1, 0, "child", 5, NULL, NULL));
            check(tieline_key_drop(theirs));
            check(tieline_endpoint_drop(parent));
            tear_down(&own);
            exit(0); /* runs the parent's exit functions, but does not close its handles */
        }
        expect(children[i] > 0);
    }
    check(tieline_worker_wait_until(f.worker, has_all_of_three, &f, PATIENCE));
    for (i = 0; i < 3; i++) {
        while (waitpid(children[i], &ended, WNOHANG) == 0)
            tieline_worker_progress(f.worker);
        expect(ended == 0);
    }
    check(tieline_region_memory(f.memory, &memory, &len));
    expect(memcmp(memory, "abc", 3) == 0);
    check(tieline_put_bytes(f.key, 0, "y", 1, NULL, NULL));
    tear_down(&f);
}

static void forks(void *user, const struct tieline_message *message)
{
    struct fixture *f = (struct fixture *)user;
    int ended;
    pid_t child = fork();
    (void)message;
    if (child == 0) {
        struct fixture own;
        refused(tieline_send(f->me, 1, 0, "x", 1, NULL, NULL), TIELINE_INVALID, "fork");
        refused(tieline_key_drop(f->key), TIELINE_INVALID, "fork");
        refused(tieline_worker_drop(f->worker), TIELINE_INVALID, "fork");
        set_up(&own);
        check(tieline_put_bytes(own.key, 0, "x", 1, NULL, NULL));
        tear_down(&own);
        _exit(0);
    }
    expect(child > 0 && waitpid(child, &ended, 0) == child && ended == 0);
    f->handled = 1;
}

static void a_child_that_was_forked_in_a_handler(void)
{
    struct fixture f;
    set_up(&f);
    check(tieline_worker_on_message(f.worker, 1, forks, &f));
    check(tieline_send(f.me, 1, 0, "x", 1, NULL, NULL));
    check(tieline_worker_wait_until(f.worker, is_handled, &f, PATIENCE));
    tear_down(&f);
}

static struct tieline_waker *waker;

static void on_signal(int number)
{
    (void)number;
    (void)tieline_waker_wake(waker);
}

static void a_signal_handler_may_wake(void)
{
    struct fixture f;
    struct sigaction action;
    int32_t waited;
    set_up(&f);
    check(tieline_worker_waker(f.worker, &waker));
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    expect(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
    expect(check(tieline_worker_wait(f.worker, PATIENCE)) == TIELINE_MOVED);
    /* Drains all remaining events. */
    do {
        waited = tieline_worker_wait(f.worker, 1000000);
    } while (waited >= 0);
    refused(waited, TIELINE_TIMED_OUT, "time is up");
    check(tieline_waker_drop(waker));
    /* A dropped waker stores no error text: that would allocate, and a signal handler may call tieline_waker_wake
       after the waker was dropped. */
    expect(tieline_waker_wake(waker) == TIELINE_INVALID && tieline_waker_wake(NULL) == TIELINE_INVALID);
    expect(tieline_waker_wake((struct tieline_waker *)f.worker) == TIELINE_INVALID);
    refused(waited, TIELINE_TIMED_OUT, "time is up");
    tear_down(&f);
}

int main(void)
{
    nulls_and_noise();
    handles_of_another_kind_and_those_that_are_over();
    records();
    operation_with_invalid_report_is_not_posted();
    copied_message_record_is_refused_after_handler();
    threads();
    a_handler_may_end_its_worker();
    handler_that_drops_worker_is_the_last();
    a_handler_may_replace_itself();
    a_region_in_use_is_not_closed();
    timed_out_wait_does_not_end_operation();
    a_region_that_is_about_to_be_closed_is_busy();
    a_job_may_be_closed_inside_of_a_call();
    lengths_and_numbers_beyond_all_memory();
    a_forked_child();
    children_that_reach_their_parent();
    a_child_that_was_forked_in_a_handler();
    a_signal_handler_may_wake();
    a_thread_that_is_canceled_in_a_wait();
    puts("misuse: all of it is refused");
    return 0;
}
