/* core/examples/halo.rs as an MPI program: the same line of cells, one cell to each neighbour in every step.
 * Prints the time of a step. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CELLS 1000

static uint64_t cells[CELLS];

int main(int argc, char **argv) {
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 50;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < CELLS; i++)
        cells[i] = (uint64_t)rank * CELLS + i;
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int step = 1; step <= steps; step++) {
        uint64_t from_left, from_right;
        MPI_Request all[4];
        MPI_Irecv(&from_left, 1, MPI_UINT64_T, left, 0, MPI_COMM_WORLD, &all[0]);
        MPI_Irecv(&from_right, 1, MPI_UINT64_T, right, 1, MPI_COMM_WORLD, &all[1]);
        MPI_Isend(&cells[0], 1, MPI_UINT64_T, left, 1, MPI_COMM_WORLD, &all[2]);
        MPI_Isend(&cells[CELLS - 1], 1, MPI_UINT64_T, right, 0, MPI_COMM_WORLD, &all[3]);
        MPI_Waitall(4, all, MPI_STATUSES_IGNORE);
        uint64_t carried = from_left;
        for (int i = 0; i < CELLS; i++)
            carried = __atomic_exchange_n(&cells[i], carried, __ATOMIC_RELAXED);
    }
    double took = MPI_Wtime() - start;
    uint64_t total = (uint64_t)size * CELLS;
    if (cells[0] != ((uint64_t)rank * CELLS + total - steps % total) % total) {
        fprintf(stderr, "rank %d has the wrong cell\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (rank == 0)
        printf("%.0fns\n", took / steps * 1e9);
    MPI_Finalize();
    return 0;
}
