/* Calls of the interface that the examples do not use, mostly by a worker with an endpoint to itself.
 *
 * ./surface
 */
#include <poll.h>
#include <string.h>

#include "../examples/check.h"

enum { LEN = 1 << 20, SHORT = 1, LONG = 2, UNWANTED = 3, KEPT = 4, BACK = 5, ORDERED = 6 };

static struct tieline_context *context;
static struct tieline_worker *worker;
static struct tieline_endpoint *me;
static struct tieline_region *memory, *local;
static struct tieline_key *key;

static struct {
    int handled, told, left;
    uint32_t peer, word;
    struct tieline_announcement *announcement;
    struct tieline_kept *kept[3];
    const void *bytes[3];
    size_t kept_count;
} seen;

static unsigned char *at(const struct tieline_region *region, size_t offset)
{
    void *start;
    size_t len;
    check(tieline_region_memory(region, &start, &len));
    expect(offset <= len);
    return (unsigned char *)start + offset;
}

static void ended(int32_t posted, const uint64_t *request)
{
    if (check(posted) == TIELINE_PENDING) {
        check(tieline_worker_finish(worker, *request, PATIENCE, NULL));
    }
}

static int32_t is_set(void *user)
{
    return *(int *)user;
}

static int32_t has_announcement(void *user)
{
    (void)user;
    return seen.announcement != NULL;
}

static void on_announced(void *user, const struct tieline_message *message)
{
    (void)user;
    expect(message->is_announced && message->len == LEN && message->payload == NULL);
    check(tieline_message_announcement(message, &seen.announcement));
}

static void on_kept(void *user, const struct tieline_message *message)
{
    size_t n = seen.kept_count++;
    (void)user;
    check(tieline_message_keep(message, &seen.kept[n], &seen.bytes[n]));
    check(tieline_message_peer(message, &seen.peer));
    seen.handled = seen.kept_count == 3;
}

static void on_back(void *user, const struct tieline_message *message)
{
    (void)message;
    *(int *)user = 1;
}

/* The received messages, which carry a sequence number in the header. */
static struct {
    uint64_t next;
    int announced, empty;
} came;

static int32_t have_come(void *user)
{
    return came.next == *(uint64_t *)user;
}

static void on_ordered(void *user, const struct tieline_message *message)
{
    uint64_t number;
    (void)user;
    expect(message->id == ORDERED && message->header == came.next++);
    if (message->is_announced) {
        expect(message->len == LEN && message->payload == NULL);
        came.announced++;
    } else if (message->len == 0) {
        came.empty++;
    } else {
        expect(message->len == sizeof number);
        memcpy(&number, message->payload, sizeof number);
        expect(number == ~message->header);
    }
}

static void on_notification(void *user, uint32_t peer, uint32_t word)
{
    (void)user;
    seen.peer = peer;
    seen.word = word;
    seen.told = 1;
}

static void set_up(void)
{
    struct tieline_setting settings[2] = {{"TIELINE_QUEUE_BYTES", "1MiB"}, {"TIELINE_TCP_INTERFACES", "127.0.0.0/8"}};
    struct tieline_context_params params = {sizeof params, settings, 1, 0};
    unsigned char bytes[16384];
    size_t len = sizeof bytes;
    struct tieline_error error = {sizeof error, 0, 0, NULL, NULL, NULL, NULL};
    settings[0].value = "many";
    expect(tieline_context_open(&params, &context) == TIELINE_INVALID && context == NULL);
    check(tieline_last_error(&error));
    expect(error.setting && strcmp(error.setting, "TIELINE_QUEUE_BYTES") == 0 && error.kind == TIELINE_DO_CONFIGURE);
    settings[0].value = "1MiB";
    params.flags = UINT64_C(1) << 40;
    expect(tieline_context_open(&params, &context) == TIELINE_UNSUPPORTED_PARAM);
    params.flags = 0;
    check(tieline_context_open(&params, &context));
    check(tieline_worker_open(context, &worker));
    check(tieline_worker_address(worker, bytes, &len));
    check(tieline_worker_connect(worker, bytes, len, &me));
    check(tieline_context_alloc(context, LEN, TIELINE_ALL, &memory));
    check(tieline_context_alloc(context, LEN, TIELINE_ALL, &local));
    len = sizeof bytes;
    check(tieline_region_key(memory, bytes, &len));
    check(tieline_endpoint_import_key(me, bytes, len, &key));
}

/* Messages without room in the transport are queued in order, up to a limit, and sent exactly once. */
static void more_messages_than_there_is_room_for(void)
{
    uint64_t sent = 0, queued = 0, number, request = 7;
    int32_t status;
    check(tieline_worker_on_message(worker, ORDERED, on_ordered, NULL));
    for (;; sent++) {
        number = ~sent;
        status = tieline_send(me, ORDERED, sent, &number, sizeof number, NULL, sent % 2 ? &request : NULL);
        if (status == TIELINE_AGAIN) {
            break;
        }
        if (check(status) == TIELINE_PENDING) {
            queued++;
            if (sent % 2) {
                check(tieline_worker_forget(worker, request));
            }
        } else {
            expect(sent % 2 == 0 || request == 0);
        }
    }
    expect(queued > 0 && queued < sent);
    check(tieline_worker_wait_until(worker, have_come, &sent, PATIENCE));
    /* The same handler receives long, short and empty messages. */
    expect(check(tieline_send(me, ORDERED, sent++, at(local, 0), LEN, NULL, &request)) == TIELINE_PENDING);
    number = ~sent;
    check(tieline_send(me, ORDERED, sent++, &number, sizeof number, NULL, NULL));
    check(tieline_send(me, ORDERED, sent++, NULL, 0, NULL, NULL));
    check(tieline_send(me, ORDERED, sent++, &number, 0, NULL, NULL));
    check(tieline_worker_wait_until(worker, have_come, &sent, PATIENCE));
    expect(came.announced == 1 && came.empty == 2);
    expect(tieline_worker_finish(worker, request, PATIENCE, NULL) == TIELINE_UNSUPPORTED);
}

static void long_messages(void)
{
    uint64_t request;
    struct tieline_piece piece;
    piece.region = local;
    piece.offset = 0;
    piece.len = LEN;
    memset(at(local, 0), 7, LEN);
    memset(at(memory, 0), 0, LEN);
    check(tieline_worker_on_message(worker, LONG, on_announced, NULL));
    expect(check(tieline_send_pieces(me, LONG, 0, &piece, 1, NULL, &request)) == TIELINE_PENDING);
    check(tieline_worker_wait_until(worker, has_announcement, NULL, PATIENCE));
    expect(tieline_announcement_take(seen.announcement, memory, 1, LEN, NULL, NULL) == TIELINE_OUT_OF_RANGE);
    {
        uint64_t taking;
        ended(tieline_announcement_take(seen.announcement, memory, 0, LEN, NULL, &taking), &taking);
    }
    expect(tieline_announcement_refuse(seen.announcement) == TIELINE_INVALID);
    check(tieline_worker_finish(worker, request, PATIENCE, NULL));
    expect(memcmp(at(memory, 0), at(local, 0), LEN) == 0);
    /* A refused message: its sender is notified. */
    seen.announcement = NULL;
    expect(check(tieline_send_pieces(me, LONG, 0, &piece, 1, NULL, &request)) == TIELINE_PENDING);
    check(tieline_worker_wait_until(worker, has_announcement, NULL, PATIENCE));
    check(tieline_announcement_refuse(seen.announcement));
    {
        struct tieline_error error = {sizeof error, 0, 0, NULL, NULL, NULL, NULL};
        expect(tieline_worker_finish(worker, request, PATIENCE, NULL) < 0);
        check(tieline_last_error(&error));
        expect(error.kind == TIELINE_OP_REFUSED);
    }
    /* A canceled message. */
    seen.announcement = NULL;
    expect(check(tieline_send_pieces(me, LONG, 0, &piece, 1, NULL, &request)) == TIELINE_PENDING);
    check(tieline_worker_wait_until(worker, has_announcement, NULL, PATIENCE));
    check(tieline_worker_cancel(worker, request));
    expect(tieline_worker_finish(worker, request, PATIENCE, NULL) == TIELINE_CANCELED);
    check(tieline_announcement_refuse(seen.announcement));
}

static void kept_messages_and_their_senders(void)
{
    static const char *const texts[3] = {"one", "two and more", ""};
    struct tieline_endpoint *back;
    uint64_t user = 1;
    uint32_t peer;
    int n, is_back = 0;
    check(tieline_worker_on_message(worker, KEPT, on_kept, NULL));
    for (n = 0; n < 3; n++) {
        ended(tieline_send(me, KEPT, 0, texts[n], strlen(texts[n]), NULL, NULL), NULL);
    }
    check(tieline_worker_wait_until(worker, is_set, &seen.handled, PATIENCE));
    for (n = 0; n < 3; n++) {
        expect(strlen(texts[n]) == 0 ? seen.bytes[n] == NULL : memcmp(seen.bytes[n], texts[n], strlen(texts[n])) == 0);
        check(tieline_kept_drop(seen.kept[n]));
        expect(tieline_kept_drop(seen.kept[n]) == TIELINE_INVALID);
    }
    check(tieline_endpoint_peer(me, &peer));
    expect(peer == seen.peer);
    check(tieline_worker_known_endpoint(worker, peer, &back));
    expect(back == me);
    check(tieline_worker_known_endpoint(worker, 77, &back));
    expect(back == NULL);
    check(tieline_worker_endpoint_to(worker, peer, &back));
    expect(back == me);
    expect(tieline_worker_endpoint_to(worker, 77, &back) < 0 && back == NULL);
    check(tieline_endpoint_user(me, &user));
    expect(user == 0);
    check(tieline_endpoint_set_user(me, 42));
    check(tieline_endpoint_user(me, &user));
    expect(user == 42);
    check(tieline_worker_on_message(worker, BACK, on_back, &is_back));
    check(tieline_send(me, BACK, 0, NULL, 0, NULL, NULL));
    check(tieline_worker_wait_until(worker, is_set, &is_back, PATIENCE));
}

static void puts_and_gets_in_pieces(void)
{
    struct tieline_piece pieces[2];
    struct tieline_blocks column = {sizeof column, 5 * 8, 8, 16 * 8, 16}, row = {sizeof row, 3 * 128, 128, 128, 1};
    struct tieline_how how = {sizeof how, TIELINE_TELL_REQUEST, TIELINE_HOW_NOTIFY, 0, NULL, 77, 0};
    uint64_t request;
    int n;
    memset(at(memory, 0), 0, 4096);
    for (n = 0; n < 4096; n++) {
        at(local, 0)[n] = (unsigned char)n;
    }
    pieces[0].region = pieces[1].region = local;
    pieces[0].offset = 10;
    pieces[0].len = 5;
    pieces[1].offset = 100;
    pieces[1].len = 3;
    check(tieline_worker_on_notification(worker, on_notification, NULL));
    ended(tieline_put_pieces(key, 64, pieces, 2, &how, &request), &request);
    expect(memcmp(at(memory, 64), "\12\13\14\15\16\144\145\146", 8) == 0);
    check(tieline_worker_wait_until(worker, is_set, &seen.told, PATIENCE));
    expect(seen.word == 77);
    pieces[0].offset = 2000;
    pieces[1].offset = 3000;
    ended(tieline_get_pieces(key, 64, pieces, 2, NULL, &request), &request);
    expect(memcmp(at(local, 2000), "\12\13\14\15\16", 5) == 0 && memcmp(at(local, 3000), "\144\145\146", 3) == 0);
    ended(tieline_put_strided(key, &row, local, &column, NULL, &request), &request);
    expect(memcmp(at(memory, 3 * 128 + 8), at(local, 5 * 8 + 128), 8) == 0);
    ended(tieline_get_strided(key, &row, local, &column, NULL, &request), &request);
    expect(tieline_put_strided(key, NULL, local, &column, NULL, &request) == TIELINE_INVALID);
    ended(tieline_put(key, 128, local, 0, 64, &how, &request), &request);
    ended(tieline_get(key, 128, local, 512, 64, NULL, &request), &request);
    expect(memcmp(at(local, 0), at(local, 512), 64) == 0);
    expect(tieline_get(key, LEN, local, 0, 1, NULL, NULL) == TIELINE_OUT_OF_RANGE);
    expect(tieline_put(key, 0, local, LEN, 1, NULL, NULL) == TIELINE_OUT_OF_RANGE);
    expect(tieline_put(key, 0, local, SIZE_MAX, 2, NULL, NULL) == TIELINE_OUT_OF_RANGE);
}

static int32_t is_nine(void *user, uint64_t word)
{
    (void)user;
    return word == 9;
}

static void words_handles_and_limits(void)
{
    struct tieline_pointer *pointer;
    struct tieline_key *again = NULL;
    struct tieline_limits limits = {sizeof limits, 0, 0, 0, 0, 0};
    struct tieline_key_info info = {sizeof info, 0, 0, 0, 0, 0, 0};
    void *mapped;
    size_t len;
    uint64_t handle, request, word = 0, before;
    int32_t found;
    check(tieline_endpoint_limits(me, &limits));
    expect(limits.max_message > 0 && limits.max_pending > 0);
    do {
        check(tieline_worker_progress(worker));
        check(tieline_key_info(key, &info));
    } while (info.is_settling);
    expect(info.len == LEN && info.reaches_passive_target);
    found = tieline_key_pointer(key, &pointer, &mapped, &len);
    check(found);
    expect(len == LEN);
    __atomic_store_n((uint64_t *)mapped + 8, 9, __ATOMIC_RELEASE);
    check(tieline_worker_wait_word(worker, memory, 64, is_nine, NULL, PATIENCE, &word));
    expect(word == 9);
    expect(tieline_worker_wait_word(worker, memory, 65, is_nine, NULL, 0, &word) == TIELINE_MISALIGNED && word == 0);
    check(tieline_pointer_drop(pointer));
    check(tieline_fetch(key, TIELINE_ATOMIC_COMPARE_SWAP, 8, 64, 10, 9, &before, NULL, &request));
    check(tieline_region_handle(memory, &handle));
    while ((found = check(tieline_endpoint_key_by_handle(me, handle, NULL, &again, &request))) == TIELINE_PENDING) {
        if (request != 0) {
            check(tieline_worker_finish(worker, request, PATIENCE, NULL));
        }
    }
    check(tieline_put_bytes(again, 64, "\1\0\0\0\0\0\0\0", 8, NULL, NULL));
    check(tieline_worker_flush(worker));
    expect(*(uint64_t *)(void *)at(memory, 64) == 1);
    check(tieline_key_drop(again));
}

/* By name, without waiting and waiting: each endpoint leads to the worker; a malformed or unknown name is an error. */
static void by_name(void)
{
    unsigned char name[48];
    size_t len = 0;
    uint64_t request;
    struct tieline_endpoint *there;
    struct tieline_name_call *call;
    int32_t status;
    expect(tieline_worker_name(worker, NULL, &len) == TIELINE_TOO_LARGE && len > 0 && len <= sizeof name);
    check(tieline_worker_name(worker, name, &len));
    check(tieline_worker_ask_name(worker, name, len, &call));
    while ((status = tieline_name_call_test(call, &there)) == TIELINE_PENDING) {
        expect(there == NULL);
        (void)tieline_worker_progress(worker);
    }
    check(status);
    check(tieline_name_call_drop(call));
    expect(tieline_name_call_drop(call) == TIELINE_INVALID);
    ended(tieline_endpoint_flush_messages(there, NULL, &request), &request);
    check(tieline_endpoint_drop(there));
    check(tieline_worker_connect_by_name(worker, name, len, &there));
    ended(tieline_endpoint_flush_messages(there, NULL, &request), &request);
    check(tieline_endpoint_drop(there));
    /* A query that is abandoned, and a malformed name. */
    check(tieline_worker_ask_name(worker, name, len, &call));
    check(tieline_name_call_drop(call));
    expect(tieline_worker_ask_name(worker, name, 3, &call) < 0 && call == NULL);
}

static void reported_completions(void)
{
    struct tieline_counter *counter;
    struct tieline_counted counted = {sizeof counted, 0, 0, 0, 0, 0};
    struct tieline_completed list[40];
    struct tieline_how how = {sizeof how, TIELINE_TELL_TRACKED, 0, 0, NULL, 0, 0};
    size_t taken, all = 0, pending;
    uint64_t n, sum = 0, request;
    check(tieline_worker_counter(worker, &counter));
    for (n = 0; n < 100; n++) {
        how.tell = n % 2 ? TIELINE_TELL_TRACKED : TIELINE_TELL_COUNTED;
        how.user = n;
        how.counter = counter;
        while (check(tieline_put(key, 8 * n, local, 0, 8, &how, NULL)) < 0) {
        }
    }
    check(tieline_worker_begin_flush(worker, counter));
    do {
        check(tieline_worker_progress(worker));
        check(tieline_counter_read(counter, &counted));
    } while (counted.pending > 0);
    expect(counted.done >= 50 && counted.failed == 0);
    do {
        check(tieline_worker_take_completed(worker, list, sizeof *list, 40, &taken));
        for (n = 0; n < taken; n++) {
            expect(list[n].status == TIELINE_OK);
            sum += list[n].user;
        }
        all += taken;
    } while (all < 50);
    expect(sum == 2500);
    check(tieline_counter_drop(counter));
    if (check(tieline_endpoint_flush_messages(me, NULL, &request)) == TIELINE_PENDING) {
        check(tieline_worker_pending(worker, &pending));
        expect(pending > 0);
        check(tieline_worker_track(worker, request, 123));
        do {
            check(tieline_worker_progress(worker));
            check(tieline_worker_take_completed(worker, list, sizeof *list, 40, &taken));
        } while (taken == 0);
        expect(list[0].user == 123);
    }
    if (check(tieline_endpoint_flush_messages(me, NULL, &request)) == TIELINE_PENDING) {
        check(tieline_worker_forget(worker, request));
    }
    ended(tieline_endpoint_flush(me, NULL, &request), &request);
}

static void on_heard(void *user, const struct tieline_message *message)
{
    *(int *)user = message->len == 1;
}

static void sleeping(void)
{
    struct tieline_waker *waker;
    struct pollfd one = {-1, POLLIN, 0};
    check(tieline_worker_fd(worker, &one.fd));
    expect(one.fd >= 0);
    check(tieline_worker_waker(worker, &waker));
    while (check(tieline_worker_arm(worker)) == TIELINE_PENDING) {
        check(tieline_worker_progress(worker));
        (void)tieline_worker_wait(worker, 0);
    }
    check(tieline_waker_wake(waker));
    expect(poll(&one, 1, 30000) == 1);
    expect(check(tieline_worker_wait(worker, PATIENCE)) == TIELINE_MOVED);
    check(tieline_waker_drop(waker));
}

static void reports(void)
{
    char *text;
    uint32_t which;
    for (which = TIELINE_REPORT_TABLE; which <= TIELINE_REPORT_JSON; which++) {
        size_t len = 0;
        expect(tieline_context_report(context, which, NULL, &len) == TIELINE_TOO_LARGE && len > 100);
        len += 4096; /* the text may have grown */
        text = (char *)malloc(len);
        expect(text != NULL);
        check(tieline_context_report(context, which, text, &len));
        expect(strlen(text) == len && (which != TIELINE_REPORT_JSON || text[0] == '{'));
        free(text);
    }
    {
        size_t none = 0;
        expect(tieline_context_report(context, 9, NULL, &none) == TIELINE_INVALID);
    }
}

/* One thread waits for two workers: a message to the second ends the wait, and its handler runs inside. */
static void several_workers(void)
{
    unsigned char address[16384];
    size_t len = sizeof address;
    struct tieline_worker *other, *both[2];
    struct tieline_endpoint *there;
    int heard = 0;
    check(tieline_worker_open(context, &other));
    both[0] = worker;
    both[1] = other;
    check(tieline_worker_on_message(other, SHORT, on_heard, &heard));
    check(tieline_worker_address(other, address, &len));
    check(tieline_worker_connect(worker, address, len, &there));
    check(tieline_send(there, SHORT, 0, "x", 1, NULL, NULL));
    while (!heard) {
        check(tieline_workers_wait((const struct tieline_worker *const *)both, 2, PATIENCE));
    }
    expect(tieline_workers_wait((const struct tieline_worker *const *)both, 0, 0) == TIELINE_INVALID);
    both[0] = other;
    expect(tieline_workers_wait((const struct tieline_worker *const *)both, 2, 0) == TIELINE_INVALID);
    check(tieline_endpoint_drop(there));
    check(tieline_worker_close(other, PATIENCE));
    both[0] = worker;
    expect(tieline_workers_wait((const struct tieline_worker *const *)both, 2, 0) == TIELINE_INVALID);
}

/* A worker's state and counters, and the path of a key. */
static void looks(void)
{
    char path[128], *text;
    size_t len = sizeof path;
    struct tieline_counters counters;
    memset(&counters, 0, sizeof counters);
    counters.size = sizeof counters;
    check(tieline_key_path(key, path, &len));
    expect(strlen(path) == len && strchr(path, '/') != NULL);
    check(tieline_worker_counters(worker, &counters));
    expect(counters.malformed == 0 && counters.failed_connections == 0);
    len = 0;
    expect(tieline_worker_status(worker, NULL, &len) == TIELINE_TOO_LARGE && len > 100);
    len += 4096; /* the text may have grown */
    text = (char *)malloc(len);
    expect(text != NULL);
    check(tieline_worker_status(worker, text, &len));
    expect(strlen(text) == len && text[0] == '{' && strstr(text, "\"endpoints\"") != NULL);
    free(text);
}

static void closing_an_endpoint(void)
{
    uint64_t request;
    struct tieline_how how = {sizeof how, TIELINE_TELL_REQUEST, TIELINE_HOW_LOCAL, 0, NULL, 0, 0};
    ended(tieline_put(key, 0, local, 0, 4096, &how, &request), &request);
    check(tieline_endpoint_fence(me));
    expect(tieline_endpoint_error(me, NULL) == TIELINE_OK);
    expect(tieline_endpoint_close(me, 7, NULL, &request) == TIELINE_INVALID);
    ended(tieline_endpoint_close(me, TIELINE_CLOSE_FLUSH, NULL, &request), &request);
    expect(tieline_send(me, SHORT, 0, NULL, 0, NULL, NULL) < 0);
}

int main(void)
{
    set_up();
    more_messages_than_there_is_room_for();
    long_messages();
    kept_messages_and_their_senders();
    puts_and_gets_in_pieces();
    words_handles_and_limits();
    by_name();
    reported_completions();
    sleeping();
    reports();
    looks();
    several_workers();
    closing_an_endpoint();
    check(tieline_key_drop(key));
    check(tieline_endpoint_drop(me));
    check(tieline_worker_close_region(worker, memory, PATIENCE));
    check(tieline_worker_close_region(worker, local, PATIENCE));
    check(tieline_worker_close(worker, PATIENCE));
    check(tieline_context_close(context));
    puts("surface: all of it works");
    return 0;
}
