/*
 * Measures two ranks of an MPI, each on a processor of its own: speed [MILLISECONDS]
 *
 * Rank 0 prints a line per row: a name, a value, and whether less or more is better. Latencies are halves of round trips in
 * microseconds, bandwidths MiB/s, the rate messages per second. A row runs for the given time (300 ms), in batches. The bytes of
 * each row's messages are verified before its time is taken.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 64, LONGEST = 1 << 20 };

static int rank;
static double duration = 0.3;
static unsigned char *mine, *theirs;

static void pin(void) {
    cpu_set_t set;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(&set);
    CPU_SET((unsigned)(rank % (processors > 0 ? processors : 1)), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fprintf(stderr, "rank %d is not pinned\n", rank);
}

static void verify(size_t size) {
    for (size_t i = 0; i < size; i++)
        mine[i] = (unsigned char)(i * 7 + (size_t)rank);
    memset(theirs, 0, size);
    MPI_Sendrecv(mine, (int)size, MPI_BYTE, 1 - rank, 1, theirs, (int)size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (size_t i = 0; i < size; i++)
        if (theirs[i] != (unsigned char)(i * 7 + (size_t)(1 - rank))) {
            fprintf(stderr, "a message of %zu bytes: byte %zu is wrong\n", size, i);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

static void ping_pong(size_t size) {
    if (rank == 0) {
        MPI_Send(mine, (int)size, MPI_BYTE, 1, 2, MPI_COMM_WORLD);
        MPI_Recv(theirs, (int)size, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(theirs, (int)size, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(mine, (int)size, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
    }
}

/* Rank 0 sends a window of messages; an empty message of rank 1 ends each window. */
static void stream(size_t size) {
    MPI_Request requests[WINDOW];
    int count = size > 4096 ? 16 : WINDOW;
    for (int i = 0; i < count; i++) {
        if (rank == 0)
            MPI_Isend(mine, (int)size, MPI_BYTE, 1, 3, MPI_COMM_WORLD, &requests[i]);
        else
            MPI_Irecv(theirs, (int)size, MPI_BYTE, 0, 3, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(NULL, 0, MPI_BYTE, 1, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(NULL, 0, MPI_BYTE, 0, 4, MPI_COMM_WORLD);
}

/* Runs batches until the time has passed on rank 0, and returns the seconds of one call. */
static double measure(void (*body)(size_t), size_t size, int batch) {
    verify(size);
    for (int i = 0; i < batch / 4 + 1; i++)
        body(size);
    double begun = MPI_Wtime();
    long calls = 0;
    for (int again = 1; again != 0; calls += batch) {
        for (int i = 0; i < batch; i++)
            body(size);
        again = MPI_Wtime() - begun < duration;
        MPI_Bcast(&again, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - begun) / (double)calls;
}

static void latency(const char *name, size_t size, int batch) {
    double seconds = measure(ping_pong, size, batch);
    if (rank == 0)
        printf("%s_us %.4f less\n", name, seconds / 2 * 1e6);
}

int main(int argc, char **argv) {
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 2) {
        fprintf(stderr, "it needs two ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (argc > 1)
        duration = atof(argv[1]) / 1000;
    mine = malloc(LONGEST);
    theirs = malloc(LONGEST);
    if (mine == NULL || theirs == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    pin();
    latency("latency_0", 0, 200);
    latency("latency_1", 1, 200);
    latency("latency_8", 8, 200);
    latency("latency_4KiB", 4096, 100);
    latency("latency_64KiB", 65536, 20);
    double seconds = measure(ping_pong, LONGEST, 4);
    if (rank == 0)
        printf("pingpong_1MiB %.2f more\n", 2 / seconds);
    seconds = measure(stream, LONGEST, 1);
    if (rank == 0)
        printf("stream_1MiB %.2f more\n", 16 / seconds);
    seconds = measure(stream, 8, 20);
    if (rank == 0)
        printf("rate_8 %.0f more\n", WINDOW / seconds);
    free(mine);
    free(theirs);
    MPI_Finalize();
    return 0;
}
