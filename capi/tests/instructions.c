/* The cost of the C library in instructions, compared with the same cases in Rust (core/examples/instructions.rs). callgrind counts
 * between the entry of measured_c_CASE and its end. `cargo xtask instructions` runs and compares them.
 *
 * ./instructions CASE N
 */
#include "../examples/check.h"

enum { BATCH = 16, WARM_UP = 200 };

struct count {
    int seen;
};

static void on_message(void *user, const struct tieline_message *message)
{
    (void)message;
    ((struct count *)user)->seen++;
}

__attribute__((noinline)) void measured_c_post(struct tieline_endpoint *me)
{
    uint64_t i;
    for (i = 0; i < BATCH; i++) {
        check(tieline_send(me, 1, i, &i, sizeof i, NULL, NULL));
    }
}

__attribute__((noinline)) void measured_c_poll(struct tieline_worker *worker, const struct count *count)
{
    while (*(volatile const int *)&count->seen < BATCH) {
        check(tieline_worker_progress(worker));
    }
}

__attribute__((noinline)) void measured_c_put(struct tieline_key *key)
{
    uint64_t i;
    for (i = 0; i < BATCH; i++) {
        check(tieline_put_bytes(key, 8, &i, sizeof i, NULL, NULL));
    }
}

__attribute__((noinline)) void measured_c_raw_put(struct tieline_key *key)
{
    uint64_t i;
    for (i = 0; i < BATCH; i++) {
        check(tieline_put_raw(key, 8, &i, sizeof i, NULL, NULL));
    }
}

__attribute__((noinline)) void measured_c_raw_get(struct tieline_key *key)
{
    uint64_t word;
    int i;
    for (i = 0; i < BATCH; i++) {
        check(tieline_get_raw(key, 8, &word, sizeof word, NULL, NULL));
    }
}

__attribute__((noinline)) void measured_c_fetch_add(struct tieline_key *key)
{
    uint64_t before;
    int i;
    for (i = 0; i < BATCH; i++) {
        expect(tieline_fetch(key, TIELINE_ATOMIC_ADD, 8, 0, 1, 0, &before, NULL, NULL) == TIELINE_OK);
    }
}

int main(int argc, char **argv)
{
    struct tieline_context *context;
    struct tieline_worker *worker;
    struct tieline_endpoint *me;
    struct tieline_region *memory;
    struct tieline_key *key;
    struct tieline_key_info info = {sizeof info, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    struct count count = {0};
    unsigned char bytes[16384];
    size_t len = sizeof bytes;
    long times = argc > 2 ? strtol(argv[2], NULL, 10) : 0, n;
    check(tieline_context_open(NULL, &context));
    check(tieline_worker_open(context, &worker));
    check(tieline_worker_on_message(worker, 1, on_message, &count));
    check(tieline_worker_address(worker, bytes, &len));
    check(tieline_worker_connect(worker, bytes, len, &me));
    check(tieline_context_alloc(context, 4096, TIELINE_ALL, &memory));
    len = sizeof bytes;
    check(tieline_region_key(memory, bytes, &len));
    check(tieline_endpoint_import_key(me, bytes, len, &key));
    /* Runs the case until its cost is stable: past the threshold of fast boxes, and until the key's mapping exists. */
    for (n = 0; n < WARM_UP; n++) {
        uint64_t request;
        if (check(tieline_send(me, 1, 0, "warm up!", 8, NULL, &request)) == TIELINE_PENDING) {
            check(tieline_worker_finish(worker, request, PATIENCE, NULL));
        }
        check(tieline_worker_progress(worker));
    }
    do {
        check(tieline_worker_progress(worker));
        check(tieline_key_info(key, &info));
    } while (info.is_settling || count.seen < WARM_UP);
    for (n = 0; n < times / BATCH; n++) {
        count.seen = 0;
        measured_c_post(me);
        measured_c_poll(worker, &count);
        measured_c_put(key);
        measured_c_raw_put(key);
        measured_c_raw_get(key);
        measured_c_fetch_add(key);
    }
    check(tieline_key_drop(key));
    check(tieline_endpoint_drop(me));
    check(tieline_worker_close(worker, PATIENCE));
    check(tieline_region_drop(memory));
    check(tieline_context_close(context));
    return 0;
}
