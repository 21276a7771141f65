/* Failure handling of the examples: they print the error and exit. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <tieline.h>

/* The time limit for waiting for another rank: 30 seconds. */
#define PATIENCE INT64_C(30000000000)

#define check(call) check_status(call, __FILE__, __LINE__)

static inline int32_t check_status(int32_t status, const char *file, int line)
{
    if (status < 0) {
        fprintf(stderr, "%s:%d: %s\n", file, line, tieline_error_text());
        exit(1);
    }
    return status;
}

/* Exits if the condition does not hold. */
#define expect(what)                                                        \
    do {                                                                    \
        if (!(what)) {                                                      \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

#endif
