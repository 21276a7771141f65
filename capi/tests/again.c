/* Contexts that are opened and closed repeatedly leak no memory, descriptor, mapping or thread.
 *
 * ./again ROUNDS
 */
#include <dirent.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "../examples/check.h"

/* The number of bytes that a context may leave on the heap. */
enum { MOST = 64 };

static int entries(const char *folder)
{
    DIR *list = opendir(folder);
    int count = 0;
    expect(list != NULL);
    while (readdir(list)) {
        count++;
    }
    expect(closedir(list) == 0);
    return count;
}

static int mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    int count = 0, byte;
    expect(maps != NULL);
    while ((byte = fgetc(maps)) != EOF) {
        count += byte == '\n';
    }
    expect(fclose(maps) == 0);
    return count;
}

/* Returns the number of bytes in use on the heap; 0 if they cannot be counted. */
static size_t heap(void)
{
#ifdef __GLIBC__
    return mallinfo2().uordblks;
#else
    return 0;
#endif
}

static void on_message(void *user, const struct tieline_message *message)
{
    (void)message;
    *(int *)user = 1;
}

static int32_t is_handled(void *user)
{
    return *(int *)user;
}

/* Sends a message and a put to itself, and releases the objects in one of three orders. */
static void round_of(int number)
{
    struct tieline_context_params params = {sizeof params, NULL, 0, 0};
    struct tieline_context *context;
    struct tieline_worker *worker;
    struct tieline_endpoint *me;
    struct tieline_region *region;
    struct tieline_key *key;
    unsigned char bytes[16384];
    size_t len = sizeof bytes;
    uint64_t request = 0;
    int handled = 0;
    params.flags = number % 2 ? TIELINE_CONTEXT_PROGRESS_THREAD : 0;
    check(tieline_context_open(&params, &context));
    check(tieline_worker_open(context, &worker));
    check(tieline_worker_on_message(worker, 1, on_message, &handled));
    check(tieline_worker_address(worker, bytes, &len));
    check(tieline_worker_connect(worker, bytes, len, &me));
    check(tieline_context_alloc(context, 100000, TIELINE_ALL, &region));
    len = sizeof bytes;
    check(tieline_region_key(region, bytes, &len));
    check(tieline_endpoint_import_key(me, bytes, len, &key));
    if (check(tieline_put_bytes(key, 0, "abc", 3, NULL, &request)) == TIELINE_PENDING) {
        check(tieline_worker_finish(worker, request, PATIENCE, NULL));
    }
    check(tieline_send(me, 1, 0, "x", 1, NULL, NULL));
    check(tieline_worker_wait_until(worker, is_handled, &handled, PATIENCE));
    switch (number % 3) {
    case 0:
        check(tieline_key_drop(key));
        check(tieline_endpoint_drop(me));
        check(tieline_region_drop(region));
        check(tieline_worker_close(worker, PATIENCE));
        check(tieline_context_close(context));
        break;
    case 1:
        check(tieline_context_close(context));
        check(tieline_worker_drop(worker));
        check(tieline_key_drop(key));
        check(tieline_endpoint_drop(me));
        check(tieline_region_close(region));
        break;
    default:
        check(tieline_worker_close(worker, PATIENCE));
        check(tieline_context_close(context));
        check(tieline_region_drop(region));
        check(tieline_endpoint_drop(me));
        check(tieline_key_drop(key));
    }
}

int main(int count, char **words)
{
    enum { WARM = 30 };
    int rounds = count > 1 ? atoi(words[1]) : 500, number, descriptors, maps, threads;
    size_t before, after;
#ifdef __GLIBC__
    /* Threads that allocate at the same time get heaps of their own, which are mappings. An allocator without them returns 0. */
    (void)mallopt(M_ARENA_MAX, 1);
#endif
    for (number = 0; number < WARM; number++) {
        round_of(number);
    }
    before = heap();
    descriptors = entries("/proc/self/fd");
    maps = mappings();
    threads = entries("/proc/self/task");
    for (number = 0; number < rounds; number++) {
        round_of(number);
    }
    after = heap();
    printf("again: %d contexts: heap %zu -> %zu bytes, descriptors %d -> %d, mappings %d -> %d, threads %d -> %d\n", rounds, before,
           after, descriptors, entries("/proc/self/fd"), maps, mappings(), threads, entries("/proc/self/task"));
    expect(after <= before + (size_t)rounds * MOST);
    expect(entries("/proc/self/fd") == descriptors && entries("/proc/self/task") == threads);
    /* The allocator itself may have mapped more pages. */
    expect(mappings() <= maps + 4);
    return 0;
}
