/*
 * An MPI program that verifies every byte: a ring, the collectives, puts and gets. The program does not depend on
 * Tieline.
 *
 *     mpicc -O2 -o check check.c && mpirun -n 4 ./check ring collectives rma
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

#define EXPECT(holds, ...)                                                                                           \
    do {                                                                                                             \
        if (!(holds)) {                                                                                              \
            fprintf(stderr, "rank %d, line %d: %s: ", rank, __LINE__, #holds);                                      \
            fprintf(stderr, __VA_ARGS__);                                                                            \
            fprintf(stderr, "\n");                                                                                   \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                            \
        }                                                                                                            \
    } while (0)

static void *room(size_t bytes) {
    void *made = malloc(bytes ? bytes : 1);
    EXPECT(made, "%zu bytes", bytes);
    return made;
}

/* Returns the byte at a position, as one rank writes it in one round. */
static uint8_t byte_of(int from, int round, size_t at) {
    return (uint8_t)((size_t)from * 131 + (size_t)round * 31 + at * 7 + (at >> 8));
}

static void write_bytes(uint8_t *to, size_t len, int from, int round) {
    for (size_t i = 0; i < len; i++)
        to[i] = byte_of(from, round, i);
}

static void check_bytes(const uint8_t *bytes, size_t len, int from, int round) {
    for (size_t i = 0; i < len; i++)
        EXPECT(bytes[i] == byte_of(from, round, i), "byte %zu of %zu from %d in round %d is %u", i, len, from, round, bytes[i]);
}

static void ring(void) {
    static const size_t lens[] = {0, 1, 8, 300, 4096, 65536, 65537, 1000003, 4 << 20};
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++) {
        size_t len = lens[n];
        uint8_t *mine = room(len), *theirs = room(len);
        int rounds = len > 100000 ? 3 : 20;
        for (int round = 0; round < rounds; round++) {
            MPI_Status status;
            int count;
            write_bytes(mine, len, rank, round);
            memset(theirs, 0xee, len);
            MPI_Sendrecv(mine, (int)len, MPI_BYTE, right, round, theirs, (int)len, MPI_BYTE, left, round, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &count);
            EXPECT(count == (int)len && status.MPI_SOURCE == left, "%d bytes from %d", count, status.MPI_SOURCE);
            check_bytes(theirs, len, left, round);
        }
        free(mine);
        free(theirs);
    }
    /* Many small messages to all ranks, received from any rank, without waiting for each. */
    enum { MANY = 500 };
    int *words = room(sizeof(int) * MANY), *next = calloc((size_t)ranks, sizeof *next);
    MPI_Request *requests = room(sizeof *requests * MANY * (size_t)ranks);
    int posted = 0;
    for (int i = 0; i < MANY; i++) {
        words[i] = i;
        for (int to = 0; to < ranks; to++)
            if (to != rank)
                MPI_Isend(&words[i], 1, MPI_INT, to, 7, MPI_COMM_WORLD, &requests[posted++]);
    }
    for (int i = 0; i < MANY * (ranks - 1); i++) {
        MPI_Status status;
        int word;
        MPI_Recv(&word, 1, MPI_INT, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &status);
        EXPECT(word == next[status.MPI_SOURCE]++, "word %d of %d came out of its order", word, status.MPI_SOURCE);
    }
    MPI_Waitall(posted, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(next);
    free(words);
}

static int sum_of_ranks(void) {
    return ranks * (ranks - 1) / 2;
}

static void collectives_of(int count) {
    size_t all = (size_t)count * (size_t)ranks;
    int *mine = room(sizeof(int) * all), *theirs = room(sizeof(int) * all);

    MPI_Barrier(MPI_COMM_WORLD);
    for (int root = 0; root < ranks; root++) {
        for (int i = 0; i < count; i++)
            mine[i] = rank == root ? root * 1000 + i : -1;
        MPI_Bcast(mine, count, MPI_INT, root, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            EXPECT(mine[i] == root * 1000 + i, "Bcast of %d from %d: %d has %d", count, root, i, mine[i]);
        for (int i = 0; i < count; i++)
            mine[i] = rank + i;
        MPI_Reduce(mine, theirs, count, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
        for (int i = 0; rank == root && i < count; i++)
            EXPECT(theirs[i] == sum_of_ranks() + ranks * i, "Reduce of %d: %d has %d", count, i, theirs[i]);
        MPI_Gather(mine, count, MPI_INT, theirs, count, MPI_INT, root, MPI_COMM_WORLD);
        for (int i = 0; rank == root && i < (int)all; i++)
            EXPECT(theirs[i] == i / count + i % count, "Gather of %d: %d has %d", count, i, theirs[i]);
        for (int i = 0; i < (int)all; i++)
            mine[i] = root * 7 + i;
        MPI_Scatter(mine, count, MPI_INT, theirs, count, MPI_INT, root, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            EXPECT(theirs[i] == root * 7 + rank * count + i, "Scatter of %d: %d has %d", count, i, theirs[i]);
    }
    for (int i = 0; i < count; i++)
        mine[i] = rank + i;
    MPI_Allreduce(mine, theirs, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
        EXPECT(theirs[i] == sum_of_ranks() + ranks * i, "Allreduce of %d: %d has %d", count, i, theirs[i]);
    MPI_Scan(mine, theirs, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
        EXPECT(theirs[i] == rank * (rank + 1) / 2 + (rank + 1) * i, "Scan of %d: %d has %d", count, i, theirs[i]);
    MPI_Allgather(mine, count, MPI_INT, theirs, count, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < (int)all; i++)
        EXPECT(theirs[i] == i / count + i % count, "Allgather of %d: %d has %d", count, i, theirs[i]);
    for (int i = 0; i < (int)all; i++)
        mine[i] = rank * 10000 + i;
    MPI_Alltoall(mine, count, MPI_INT, theirs, count, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < (int)all; i++)
        EXPECT(theirs[i] == i / count * 10000 + rank * count + i % count, "Alltoall of %d: %d has %d", count, i, theirs[i]);
    for (int i = 0; i < (int)all; i++)
        mine[i] = rank + i;
    MPI_Reduce_scatter_block(mine, theirs, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
        EXPECT(theirs[i] == sum_of_ranks() + ranks * (rank * count + i), "Reduce_scatter of %d: %d has %d", count, i, theirs[i]);
    free(mine);
    free(theirs);
}

static void collectives(void) {
    static const int counts[] = {1, 17, 1000, 40000, 300000};
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
        collectives_of(counts[n]);
}

/* Every rank's window has a part for each rank, and a part that no rank writes. */
static void puts_and_gets(size_t len) {
    size_t parts = (size_t)ranks + 1;
    uint8_t *window = room(len * parts), *mine = room(len), *theirs = room(len);
    MPI_Win win;
    memset(window, 0xcc, len * parts);
    MPI_Win_create(window, (MPI_Aint)(len * parts), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    for (int round = 0; round < 3; round++) {
        MPI_Win_fence(0, win);
        write_bytes(mine, len, rank, round);
        for (int to = 0; to < ranks; to++)
            MPI_Put(mine, (int)len, MPI_BYTE, to, (MPI_Aint)(len * (size_t)rank), (int)len, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        for (int from = 0; from < ranks; from++)
            check_bytes(window + len * (size_t)from, len, from, round);
        for (size_t i = 0; i < len; i++)
            EXPECT(window[len * (size_t)ranks + i] == 0xcc, "byte %zu behind all parts was written", i);
        MPI_Win_fence(0, win);
        for (int of = 0; of < ranks; of++) {
            int part = (of + round) % ranks;
            memset(theirs, 0, len);
            MPI_Win_lock(MPI_LOCK_SHARED, of, 0, win);
            MPI_Get(theirs, (int)len, MPI_BYTE, of, (MPI_Aint)(len * (size_t)part), (int)len, MPI_BYTE, win);
            MPI_Win_unlock(of, win);
            check_bytes(theirs, len, part, round);
        }
    }
    MPI_Win_free(&win);
    free(theirs);
    free(mine);
    free(window);
}

/* A column of a matrix: many puts of 8 bytes. */
static void strided(void) {
    enum { ROWS = 300, COLUMNS = 8 };
    static double matrix[ROWS][COLUMNS];
    double column[ROWS];
    MPI_Datatype type;
    MPI_Win win;
    memset(matrix, 0, sizeof matrix);
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    MPI_Win_create(matrix, sizeof matrix, sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    for (int row = 0; row < ROWS; row++)
        column[row] = rank * 1000 + row;
    MPI_Win_fence(0, win);
    MPI_Put(column, ROWS, MPI_DOUBLE, (rank + 1) % ranks, 3, 1, type, win);
    MPI_Win_fence(0, win);
    int left = (rank + ranks - 1) % ranks;
    for (int row = 0; row < ROWS; row++)
        for (int at = 0; at < COLUMNS; at++)
            EXPECT(matrix[row][at] == (at == 3 ? left * 1000 + row : 0), "row %d column %d has %g", row, at, matrix[row][at]);
    MPI_Win_free(&win);
    MPI_Type_free(&type);
}

/* Counters that all ranks increment: every fetched number must be unique. */
static void atomics(void) {
    enum { EACH = 100 };
    uint64_t words[2] = {0, 0}, one = 1, before, last = 0;
    MPI_Win win;
    MPI_Win_create(words, sizeof words, sizeof *words, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_lock_all(0, win);
    for (int i = 0; i < EACH; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, 0, MPI_SUM, win);
        MPI_Win_flush(0, win);
        EXPECT(before < (uint64_t)(EACH * ranks) && (i == 0 || before > last), "%d: %llu after %llu", i, (unsigned long long)before,
               (unsigned long long)last);
        last = before;
        MPI_Accumulate(&one, 1, MPI_UINT64_T, (rank + 1) % ranks, 1, 1, MPI_UINT64_T, MPI_SUM, win);
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, win);
    EXPECT(words[1] == EACH, "%llu were accumulated", (unsigned long long)words[1]);
    EXPECT(rank || words[0] == (uint64_t)(EACH * ranks), "%llu were counted", (unsigned long long)words[0]);
    MPI_Win_unlock(rank, win);
    MPI_Win_free(&win);
}

static void rma(void) {
    static const size_t lens[] = {1, 8, 300, 10000, 65536, 3000001};
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++)
        puts_and_gets(lens[n]);
    strided();
    atomics();
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        double begun = MPI_Wtime();
        if (strcmp(argv[i], "ring") == 0)
            ring();
        else if (strcmp(argv[i], "collectives") == 0)
            collectives();
        else if (strcmp(argv[i], "rma") == 0)
            rma();
        else
            EXPECT(0, "there is no %s", argv[i]);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf("%s: passed with %d ranks in %.1f s\n", argv[i], ranks, MPI_Wtime() - begun);
    }
    MPI_Finalize();
    return 0;
}
