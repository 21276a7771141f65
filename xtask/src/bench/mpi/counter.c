/* core/examples/counter.rs as an MPI program: every rank adds to one word of rank 0, and waits for each answer.
 * Prints the total time. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, increments = argc > 1 ? atoi(argv[1]) : 100000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    uint64_t *count, one = 1, before, last = 0;
    MPI_Win window;
    MPI_Win_allocate(8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &count, &window);
    *count = 0;
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < increments; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
        if (i > 0 && before <= last) {
            fprintf(stderr, "the counter went back\n");
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        last = before;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double took = MPI_Wtime() - start;
    if (rank == 0) {
        MPI_Win_sync(window);
        if (*count != (uint64_t)size * increments) {
            fprintf(stderr, "%lu increments were lost\n", (unsigned long)((uint64_t)size * increments - *count));
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        printf("%.0fns\n", took * 1e9);
    }
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
