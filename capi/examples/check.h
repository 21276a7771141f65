/* What the examples do about a failure: they say it and end. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <tieline.h>

/* How long a rank waits for another: 30 seconds. */
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

/* Ends the program where something is not as it has to be. */
#define expect(what)                                                        \
    do {                                                                    \
        if (!(what)) {                                                      \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

#endif
