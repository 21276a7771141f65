/* The minimum cost of a message between two processes: messages of 8 bytes through one ring in each direction, with one cache
 * line each. The program has no failure handling, no checks and no sleeping waits. `cargo xtask bench` runs the program, which
 * prints a line of JSON. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, TOLD_EVERY = 16, AT_ONCE = 16, TURNS = 400000, MESSAGES = 8000000 };

/* A slot of the ring. The payload is written before the number, so the number implies that the payload is complete. */
struct slot {
    alignas(64) _Atomic uint32_t number;
    uint16_t id, len;
    uint64_t header;
    unsigned char payload[48];
};

struct ring {
    struct slot slots[SLOTS];
    alignas(128) _Atomic uint32_t taken;
};

struct end {
    struct ring *out, *in;
    uint32_t sent, received, room_until;
};

typedef void handler(uint64_t header, const unsigned char *payload, uint16_t len);

static uint64_t count, sum;

static void add(uint64_t header, const unsigned char *payload, uint16_t len)
{
    uint64_t value;
    memcpy(&value, payload, sizeof value);
    sum += header + value + len;
    count++;
}

static handler *volatile handlers[256];

static __attribute__((noinline)) int post(struct end *end, uint16_t id, uint64_t header, const void *payload, uint16_t len)
{
    if (end->sent == end->room_until) {
        end->room_until = atomic_load_explicit(&end->out->taken, memory_order_acquire) + SLOTS;
        if (end->sent == end->room_until)
            return 0;
    }
    struct slot *slot = &end->out->slots[end->sent % SLOTS];
    slot->id = id;
    slot->len = len;
    slot->header = header;
    memcpy(slot->payload, payload, len);
    atomic_store_explicit(&slot->number, ++end->sent, memory_order_release);
    return 1;
}

static __attribute__((noinline)) int poll(struct end *end)
{
    int found = 0;
    for (; found < AT_ONCE; found++) {
        struct slot *slot = &end->in->slots[end->received % SLOTS];
        if (atomic_load_explicit(&slot->number, memory_order_acquire) != end->received + 1)
            break;
        handlers[slot->id](slot->header, slot->payload, slot->len);
        if (++end->received % TOLD_EVERY == 0)
            atomic_store_explicit(&end->in->taken, end->received, memory_order_release);
    }
    return found;
}

static void stay_on(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static void rest(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void answer(struct end *end)
{
    uint64_t word = 1;
    for (int turn = 0; turn < TURNS; turn++) {
        while (!poll(end))
            ;
        post(end, 7, 1, &word, sizeof word);
    }
    for (uint64_t before = count; count - before < MESSAGES;)
        poll(end);
    post(end, 7, 1, &word, sizeof word);
}

int main(void)
{
    struct ring *rings = mmap(NULL, 2 * sizeof *rings, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    double *times = malloc(TURNS * sizeof *times);
    if (rings == MAP_FAILED || !times)
        return 1;
    handlers[7] = add;
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0) {
        struct end end = { &rings[1], &rings[0], 0, 0, SLOTS };
        stay_on(1);
        answer(&end);
        _exit(0);
    }
    struct end end = { &rings[0], &rings[1], 0, 0, SLOTS };
    uint64_t word = 1;
    stay_on(0);
    double began = now();
    for (int turn = 0; turn < TURNS; turn++) {
        post(&end, 7, 1, &word, sizeof word);
        while (!poll(&end))
            ;
        double ended = now();
        times[turn] = (ended - began) / 2;
        began = ended;
    }
    qsort(times, TURNS, sizeof *times, ascending);
    began = now();
    for (int sent = 0; sent < MESSAGES; sent++)
        while (!post(&end, 7, 1, &word, sizeof word))
            rest();
    while (!poll(&end))
        ;
    double rate = MESSAGES / (now() - began) * 1e9;
    printf("{\"p50_ns\": %.1f, \"messages_per_second\": %.0f}\n", times[TURNS / 2], rate);
    return waitpid(child, NULL, 0) == child && sum ? 0 : 1;
}
