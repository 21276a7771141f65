/* Calls of the interface that the examples do not use, mostly by a worker with an endpoint to itself.
 *
 * ./surface
 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "../examples/check.h"

enum { LEN = 1 << 20, SHORT = 1, LONG = 2, UNWANTED = 3, KEPT = 4, BACK = 5, ORDERED = 6, HEADED = 7, NOTICE = 8 };

static struct tieline_context *context;
static struct tieline_worker *worker;
static struct tieline_endpoint *me;
static struct tieline_region *memory, *local;
static struct tieline_key *key;

static struct {
    int handled, told, left;
    uint32_t peer, word;
    struct tieline_announcement *announcement;
    struct tieline_acknowledgement *acknowledgement;
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

static int32_t has_acknowledgement(void *user)
{
    (void)user;
    return seen.acknowledgement != NULL;
}

static void on_headed(void *user, const struct tieline_message *message)
{
    unsigned char bytes[TIELINE_MAX_HEADER_BYTES];
    size_t len;
    (void)user;
    check(tieline_message_header_bytes(message, bytes, &len));
    expect(len == 6 && memcmp(bytes, "header", len) == 0);
    if (message->is_announced) {
        expect(tieline_message_acknowledgement(message, &seen.acknowledgement) == TIELINE_INVALID);
        check(tieline_message_announcement(message, &seen.announcement));
    } else if (message->header != 0) {
        check(tieline_message_acknowledgement(message, &seen.acknowledgement));
        expect(message->len == 4 && memcmp(message->payload, "body", 4) == 0);
    }
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
    struct tieline_error error = {sizeof error, 0, 0, NULL, NULL, NULL, NULL, 0};
    settings[0].value = "many";
    expect(tieline_context_open(&params, &context) == TIELINE_INVALID && context == NULL);
    check(tieline_last_error(&error));
    expect(error.setting && strcmp(error.setting, "TIELINE_QUEUE_BYTES") == 0 && error.kind == TIELINE_DO_CONFIGURE);
    settings[0].value = "1MiB";
    params.flags = UINT64_C(1) << 40;
    expect(tieline_context_open(&params, &context) == TIELINE_UNSUPPORTED_PARAM);
    params.flags = TIELINE_CONTEXT_PUBLISH_KEYS;
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
        struct tieline_error error = {sizeof error, 0, 0, NULL, NULL, NULL, NULL, 0};
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

static void tracked_operations_have_a_number(void)
{
    struct tieline_how how = {sizeof how, TIELINE_TELL_TRACKED, TIELINE_HOW_NUMBERED, 17, NULL, 0, 0};
    struct tieline_completed completed;
    struct tieline_counted counted = {sizeof counted, 0, 0, 0, 0, 0, 0, 0, 0};
    struct tieline_counter *counter;
    struct tieline_piece piece;
    uint64_t number = 0;
    size_t taken = 0;
    piece.region = local;
    piece.offset = 0;
    piece.len = LEN;
    seen.announcement = NULL;
    expect(check(tieline_send_pieces(me, LONG, 0, &piece, 1, &how, &number)) == TIELINE_PENDING && number != 0);
    check(tieline_worker_wait_until(worker, has_announcement, NULL, PATIENCE));
    check(tieline_worker_cancel_number(worker, number));
    while (taken == 0) {
        (void)tieline_worker_progress(worker);
        check(tieline_worker_take_completed(worker, &completed, sizeof completed, 1, &taken));
    }
    expect(completed.user == 17 && completed.status == TIELINE_CANCELED);
    check(tieline_worker_cancel_number(worker, number));
    check(tieline_announcement_refuse(seen.announcement));
    /* A counter that is read against a mark. */
    check(tieline_worker_counter(worker, &counter));
    how.tell = TIELINE_TELL_COUNTED;
    how.counter = counter;
    seen.announcement = NULL;
    expect(check(tieline_send_pieces(me, LONG, 0, &piece, 1, &how, &number)) == TIELINE_PENDING && number != 0);
    check(tieline_worker_wait_until(worker, has_announcement, NULL, PATIENCE));
    check(tieline_announcement_refuse(seen.announcement));
    while (counted.failed == 0) {
        (void)tieline_worker_progress(worker);
        check(tieline_counter_read(counter, &counted));
    }
    expect(counted.failed_since_mark == 1 && counted.first_failure == TIELINE_UNSUPPORTED);
    check(tieline_counter_mark(counter));
    check(tieline_counter_read(counter, &counted));
    expect(counted.failed == 1 && counted.failed_since_mark == 0 && counted.first_failure == 0);
    check(tieline_counter_drop(counter));
}

static void header_bytes_and_acknowledgements(void)
{
    struct tieline_send_options with = {sizeof with, "header", 6, TIELINE_SEND_DELIVERED, 0};
    struct tieline_piece pieces[2];
    uint64_t request;
    check(tieline_worker_on_message(worker, HEADED, on_headed, NULL));
    /* By default, the end of the handler acknowledges the message. */
    expect(check(tieline_send_with(me, HEADED, 0, "", 0, &with, NULL, &request)) == TIELINE_PENDING);
    check(tieline_worker_finish(worker, request, PATIENCE, NULL));
    /* The handler keeps the acknowledgement, which is given or dropped later. */
    expect(check(tieline_send_with(me, HEADED, 1, "body", 4, &with, NULL, &request)) == TIELINE_PENDING);
    check(tieline_worker_wait_until(worker, has_acknowledgement, NULL, PATIENCE));
    check(tieline_acknowledgement_give(seen.acknowledgement));
    expect(tieline_acknowledgement_give(seen.acknowledgement) == TIELINE_INVALID);
    check(tieline_worker_finish(worker, request, PATIENCE, NULL));
    seen.acknowledgement = NULL;
    expect(check(tieline_send_with(me, HEADED, 1, "body", 4, &with, NULL, &request)) == TIELINE_PENDING);
    check(tieline_worker_wait_until(worker, has_acknowledgement, NULL, PATIENCE));
    check(tieline_acknowledgement_drop(seen.acknowledgement));
    expect(tieline_worker_finish(worker, request, PATIENCE, NULL) == TIELINE_CANCELED);
    /* A rendezvous message, received into two pieces. */
    seen.announcement = NULL;
    with.flags = 0;
    pieces[0].region = local;
    pieces[0].offset = 0;
    pieces[0].len = LEN;
    memset(at(local, 0), 3, LEN);
    memset(at(memory, 0), 0, LEN);
    expect(check(tieline_send_pieces_with(me, HEADED, 0, pieces, 1, &with, NULL, &request)) == TIELINE_PENDING);
    check(tieline_worker_wait_until(worker, has_announcement, NULL, PATIENCE));
    pieces[0].region = pieces[1].region = memory;
    pieces[0].offset = 10;
    pieces[0].len = 5;
    pieces[1].offset = 100;
    pieces[1].len = 1000;
    {
        uint64_t taking;
        ended(tieline_announcement_take_pieces(seen.announcement, pieces, 2, NULL, &taking), &taking);
    }
    check(tieline_worker_finish(worker, request, PATIENCE, NULL));
    expect(*at(memory, 9) == 0 && *at(memory, 14) == 3 && *at(memory, 15) == 0);
    expect(*at(memory, 100) == 3 && *at(memory, 1099) == 3 && *at(memory, 1100) == 0);
    with.header_len = TIELINE_MAX_HEADER_BYTES + 1;
    with.header_bytes = at(memory, 0);
    expect(tieline_send_with(me, HEADED, 0, "", 0, &with, NULL, NULL) == TIELINE_INVALID);
    with.flags = 2 * TIELINE_SEND_RENDEZVOUS;
    expect(tieline_send_with(me, HEADED, 0, "", 0, &with, NULL, NULL) == TIELINE_UNSUPPORTED_PARAM);
}

static void on_notice(void *user, const struct tieline_message *message)
{
    (void)user;
    expect(message->len == 4 && memcmp(message->payload, "told", 4) == 0);
    expect(*at(memory, 0) == message->header);
    seen.word = (uint32_t)message->header;
}

static int32_t is_told(void *user)
{
    return seen.word == *(uint32_t *)user;
}

static void notifications(void)
{
    struct tieline_how how = {sizeof how, TIELINE_TELL_COUNTED, TIELINE_HOW_NUMBERED, 0, NULL, 0, 0};
    struct tieline_followed after = {sizeof after, NULL, 0, NULL, 0, NULL};
    struct tieline_counter *counter;
    uint64_t numbers[2] = {0, 0}, request;
    uint32_t round;
    check(tieline_worker_on_message(worker, NOTICE, on_notice, NULL));
    check(tieline_worker_counter(worker, &counter));
    for (round = 1; round <= 4; round++) {
        *at(local, 0) = (unsigned char)round;
        how.counter = round == 3 ? counter : NULL;
        how.tell = round == 3 ? TIELINE_TELL_COUNTED : round == 2 ? TIELINE_TELL_TRACKED : TIELINE_TELL_REQUEST;
        check(tieline_put(key, 0, local, 0, LEN, &how, &numbers[0]));
        memset(&after, 0, sizeof after);
        after.size = sizeof after;
        if (round == 1) {
            after.requests = numbers;
            after.request_count = 2;
        } else if (round == 2) {
            after.numbers = numbers;
            after.number_count = 2;
        } else if (round == 3) {
            after.counter = counter;
        }
        ended(tieline_notify(me, round == 4 ? NULL : &after, NOTICE, round, "told", 4, NULL, &request), &request);
        check(tieline_worker_wait_until(worker, is_told, &round, PATIENCE));
        if (round == 1 && numbers[0] != 0) {
            check(tieline_worker_finish(worker, numbers[0], PATIENCE, NULL));
        }
    }
    after.requests = numbers;
    after.request_count = 1;
    numbers[0] = 12345;
    expect(tieline_notify(me, &after, NOTICE, 0, "", 0, NULL, NULL) == TIELINE_INVALID);
    /* The new number goes where the followed one was. */
    expect(tieline_notify(me, &after, NOTICE, 0, "", 0, NULL, &numbers[0]) == TIELINE_INVALID);
    expect(numbers[0] == 0);
    numbers[0] = 12345;
    after.counter = counter;
    expect(tieline_notify(me, &after, NOTICE, 0, "", 0, NULL, NULL) == TIELINE_INVALID);
    after.counter = NULL;
    after.requests = NULL;
    expect(tieline_notify(me, &after, NOTICE, 0, "", 0, NULL, NULL) == TIELINE_INVALID);
    expect(tieline_notify(me, NULL, NOTICE, 0, at(local, 0), LEN, NULL, NULL) == TIELINE_TOO_LARGE);
    {
        struct tieline_completed completed;
        size_t taken;
        check(tieline_worker_take_completed(worker, &completed, sizeof completed, 1, &taken));
        expect(taken == 1 && completed.status == TIELINE_OK);
    }
    check(tieline_counter_drop(counter));
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
    struct tieline_limits limits = {sizeof limits, 0, 0, 0, 0, 0, 0};
    struct tieline_key_info info = {sizeof info, 0, 0, 0, 0, 0, 0, 0, 0, 0};
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
    /* By a number, with the address in the key. */
    expect(!info.has_address && info.address == 0);
    check(tieline_region_publish(memory, 77));
    expect(tieline_region_publish(local, 77) == TIELINE_BUSY);
    while ((found = check(tieline_endpoint_key_by_number(me, 77, NULL, &again, &request))) == TIELINE_PENDING) {
        if (request != 0) {
            check(tieline_worker_finish(worker, request, PATIENCE, NULL));
        }
    }
    check(tieline_key_drop(again));
    check(tieline_region_unpublish(memory, 77));
    expect(tieline_region_unpublish(memory, 77) == TIELINE_INVALID);
    {
        unsigned char bytes[4096];
        len = sizeof bytes;
        check(tieline_region_key_with_address(memory, bytes, &len));
        check(tieline_endpoint_import_key(me, bytes, len, &again));
        check(tieline_key_info(again, &info));
        expect(info.has_address && info.address == (uint64_t)(uintptr_t)at(memory, 0));
        check(tieline_key_drop(again));
    }
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
    struct tieline_counted counted = {sizeof counted, 0, 0, 0, 0, 0, 0, 0, 0};
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

static struct tieline_worker *driven;

static void finished(struct tieline_worker *by, int32_t posted, uint64_t request)
{
    if (check(posted) == TIELINE_PENDING) {
        check(tieline_worker_finish(by, request, PATIENCE, NULL));
    }
}

/* Lists, and memory by address, between `local` and the first 64 bytes from `start` on in `memory`. */
static void lists_and_addresses(struct tieline_worker *by, struct tieline_endpoint *to, const struct tieline_key *by_key, size_t start)
{
    unsigned char bytes[16], found[16];
    struct tieline_descriptor two[2] = {
        {local, start, NULL, 16, by_key, start},
        {NULL, 0, bytes, sizeof bytes, by_key, start + 16},
    };
    struct tieline_list *prepared;
    uint64_t request = 0, old = 1;
    struct tieline_error why;
    unsigned char round;
    memset(&why, 0, sizeof why);
    why.size = sizeof why;
    memset(at(memory, start), 0, 64);
    check(tieline_list_prepare(to, TIELINE_LIST_PUT, two, 2, &prepared));
    for (round = 1; round <= 3; round++) {
        memset(at(local, start), round, 16);
        memset(bytes, round + 10, sizeof bytes);
        finished(by, tieline_list_post(prepared, NULL, &request), request);
        expect(*at(memory, start + 15) == round && *at(memory, start + 31) == round + 10);
    }
    finished(by, tieline_put_list(to, two, 2, NULL, &request), request);
    memset(bytes, 0, sizeof bytes);
    finished(by, tieline_get_list(to, two, 2, NULL, &request), request);
    expect(bytes[0] == 13 && bytes[15] == 13);
    check(tieline_list_drop(prepared));
    two[1].offset = LEN;
    expect(tieline_put_list(to, two, 2, NULL, &request) == TIELINE_OUT_OF_RANGE);
    expect(tieline_last_error(&why) == TIELINE_OK && why.index == 1);
    finished(by, tieline_put_raw(by_key, start + 32, "by address 16 b.", 16, NULL, &request), request);
    finished(by, tieline_get_raw(by_key, start + 32, found, 16, NULL, &request), request);
    expect(memcmp(found, "by address 16 b.", 16) == 0);
    finished(by, tieline_fetch_raw(by_key, TIELINE_ATOMIC_ADD, 8, start + 48, 5, 0, &old, NULL, &request), request);
    expect(old == 0);
    finished(by, tieline_fetch_raw(by_key, TIELINE_ATOMIC_COMPARE_SWAP, 8, start + 48, 7, 5, &old, NULL, &request), request);
    expect(old == 5 && *at(memory, start + 48) == 7);
}

static void on_driven(void *user, const struct tieline_message *message)
{
    struct tieline_endpoint *back = NULL;
    check(tieline_message_endpoint(message, &back));
    expect(back != NULL);
    expect(tieline_worker_wait(driven, 0) == TIELINE_BUSY);
    (void)__atomic_fetch_add((int *)user, 1, __ATOMIC_RELEASE);
}

static int32_t all_came(void *user)
{
    return __atomic_load_n((int *)user, __ATOMIC_ACQUIRE) == 200;
}

static void *sends(void *there)
{
    int i;
    for (i = 0; i < 100; i++) {
        uint64_t request;
        int32_t sent = tieline_send((struct tieline_endpoint *)there, SHORT, 0, "x", 1, NULL, &request);
        if (check(sent) == TIELINE_PENDING) {
            check(tieline_worker_finish(driven, request, PATIENCE, NULL));
        }
    }
    return NULL;
}

static int32_t never(void *user)
{
    __atomic_store_n((int *)user, 1, __ATOMIC_RELEASE);
    return 0;
}

static void *waits(void *inside)
{
    expect(tieline_worker_wait_until(driven, never, inside, PATIENCE) == TIELINE_CLOSED);
    return NULL;
}

/* Threads that use one driven worker at the same time, without a lock of their own. One of them closes it while another one waits. */
static void by_all_threads(void)
{
    unsigned char address[16384];
    size_t len = sizeof address;
    struct tieline_worker_params params = {sizeof params, TIELINE_WORKER_DRIVEN};
    struct tieline_endpoint *there;
    struct tieline_key *its_key;
    unsigned char bytes[1024];
    size_t key_len = sizeof bytes;
    pthread_t threads[2];
    uint64_t request;
    int came = 0, i;
    check(tieline_worker_open_with(context, &params, &driven));
    check(tieline_worker_on_message(driven, SHORT, on_driven, &came));
    check(tieline_worker_address(driven, address, &len));
    check(tieline_worker_connect(driven, address, len, &there));
    for (i = 0; i < 2; i++) {
        expect(pthread_create(&threads[i], NULL, sends, there) == 0);
    }
    for (i = 0; i < 2; i++) {
        expect(pthread_join(threads[i], NULL) == 0);
    }
    check(tieline_worker_wait_until(driven, all_came, &came, PATIENCE));
    if (check(tieline_endpoint_flush(there, NULL, &request)) == TIELINE_PENDING) {
        check(tieline_worker_finish(driven, request, PATIENCE, NULL));
    }
    expect(tieline_worker_arm(driven) == TIELINE_UNSUPPORTED);
    check(tieline_region_key(memory, bytes, &key_len));
    check(tieline_endpoint_import_key(there, bytes, key_len, &its_key));
    lists_and_addresses(driven, there, its_key, 128);
    check(tieline_key_drop(its_key));
    check(tieline_endpoint_drop(there));
    came = 0;
    expect(pthread_create(&threads[0], NULL, waits, &came) == 0);
    while (!__atomic_load_n(&came, __ATOMIC_ACQUIRE)) {
        (void)sched_yield();
    }
    check(tieline_worker_close(driven, PATIENCE));
    expect(pthread_join(threads[0], NULL) == 0);
    params.flags = 8;
    expect(tieline_worker_open_with(context, &params, &driven) == TIELINE_UNSUPPORTED_PARAM);
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
    len = 0;
    expect(tieline_key_plan(key, NULL, &len) == TIELINE_TOO_LARGE && len > 20);
    text = (char *)malloc(++len);
    expect(text != NULL);
    check(tieline_key_plan(key, text, &len));
    expect(strlen(text) == len && strncmp(text, "puts: ", 6) == 0);
    free(text);
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
    header_bytes_and_acknowledgements();
    tracked_operations_have_a_number();
    notifications();
    kept_messages_and_their_senders();
    puts_and_gets_in_pieces();
    words_handles_and_limits();
    by_name();
    reported_completions();
    sleeping();
    reports();
    looks();
    several_workers();
    lists_and_addresses(worker, me, key, 0);
    by_all_threads();
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
