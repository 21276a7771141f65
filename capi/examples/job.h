/* Code that the examples share: a job, a context, a worker, and endpoints to other ranks. */
#ifndef JOB_H
#define JOB_H

#include <string.h>

#include "check.h"

enum { ADDRESS = 1, KEY = 2, MOST_BYTES = 16384 };

struct rank {
    struct tieline_job *job;
    struct tieline_job_place place;
    struct tieline_context *context;
    struct tieline_worker *worker;
};

/* Opens the objects of a rank; `flags` are TIELINE_CONTEXT_*. */
static inline void join(struct rank *me, uint64_t flags)
{
    struct tieline_context_params params;
    memset(me, 0, sizeof *me);
    memset(&params, 0, sizeof params);
    params.size = sizeof params;
    params.flags = flags;
    me->place.size = sizeof me->place;
    check(tieline_job_open(NULL, &me->job));
    check(tieline_job_place(me->job, &me->place));
    check(tieline_context_open(&params, &me->context));
    check(tieline_worker_open(me->context, &me->worker));
}

static inline void leave(struct rank *me)
{
    check(tieline_worker_close(me->worker, PATIENCE));
    check(tieline_context_close(me->context));
    check(tieline_job_close(me->job));
}

static inline void publish_address(struct rank *me)
{
    unsigned char bytes[MOST_BYTES];
    size_t len = sizeof bytes;
    check(tieline_worker_address(me->worker, bytes, &len));
    check(tieline_job_publish(me->job, ADDRESS, bytes, len));
}

static inline void publish_key(struct rank *me, const struct tieline_region *region)
{
    unsigned char bytes[MOST_BYTES];
    size_t len = sizeof bytes;
    check(tieline_region_key(region, bytes, &len));
    check(tieline_job_publish(me->job, KEY, bytes, len));
}

static inline struct tieline_endpoint *connect_to(struct rank *me, size_t rank)
{
    unsigned char bytes[MOST_BYTES];
    size_t len = sizeof bytes;
    struct tieline_endpoint *endpoint;
    check(tieline_job_lookup(me->job, rank, ADDRESS, bytes, &len));
    check(tieline_worker_connect(me->worker, bytes, len, &endpoint));
    return endpoint;
}

static inline struct tieline_key *key_of(struct rank *me, size_t rank, struct tieline_endpoint *endpoint)
{
    unsigned char bytes[MOST_BYTES];
    size_t len = sizeof bytes;
    struct tieline_key *key;
    check(tieline_job_lookup(me->job, rank, KEY, bytes, &len));
    check(tieline_endpoint_import_key(endpoint, bytes, len, &key));
    return key;
}

/* Waits for a posted operation, whose request number the call has written to `request`. If a fetching atomic was done immediately, the
 * call has already written its value. */
static inline void finish(struct rank *me, int32_t posted, const uint64_t *request, uint64_t *value)
{
    if (check(posted) == TIELINE_PENDING) {
        check(tieline_worker_finish(me->worker, *request, TIELINE_FOREVER, value));
    }
}

/* A word of a local region. */
static inline uint64_t *word_of(const struct tieline_region *region, size_t index)
{
    void *memory;
    check(tieline_region_memory(region, &memory, NULL));
    return (uint64_t *)memory + index;
}

#endif
