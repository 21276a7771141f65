/* Completion queues. A queue holds completions in order, and grows as needed. Without memory for it, the
   process is aborted. */
#include "fi.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int cq_close(struct fid *fid) {
    struct cq *cq = container_of(fid, struct cq, fid.fid);
    if (cq->users)
        return -FI_EBUSY;
    cq->domain->users--;
    free(cq->events);
    free(cq);
    return 0;
}

static int no_bind(struct fid *fid, struct fid *other, uint64_t flags) {
    (void)fid, (void)other, (void)flags;
    return -FI_ENOSYS;
}

static int no_control(struct fid *fid, int command, void *arg) {
    (void)fid, (void)command, (void)arg;
    return -FI_ENOSYS;
}

static int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) {
    (void)fid, (void)name, (void)flags, (void)ops, (void)context;
    return -FI_ENOSYS;
}

void cq_tell(struct cq *cq, const struct event *event) {
    if (cq->count == cq->room) {
        size_t room = cq->room ? cq->room * 2 : 256;
        struct event *more = malloc(room * sizeof *more);
        if (!more) {
            /* A lost completion would be awaited forever, so abort. */
            fprintf(stderr, "tieline-fi: no memory for a completion\n");
            abort();
        }
        for (size_t i = 0; i < cq->count; i++)
            more[i] = cq->events[(cq->first + i) % cq->room];
        free(cq->events);
        cq->events = more;
        cq->room = room;
        cq->first = 0;
    }
    cq->events[(cq->first + cq->count++) % cq->room] = *event;
}

static size_t size_of(enum fi_cq_format format) {
    switch (format) {
    case FI_CQ_FORMAT_MSG:
        return sizeof(struct fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA:
        return sizeof(struct fi_cq_data_entry);
    case FI_CQ_FORMAT_TAGGED:
        return sizeof(struct fi_cq_tagged_entry);
    default:
        return sizeof(struct fi_cq_entry);
    }
}

/* The entry of every format is a prefix of the error entry. */
static ssize_t take(struct cq *cq, void *buf, size_t count, fi_addr_t *src) {
    size_t taken = 0, size = size_of(cq->format);
    while (taken < count && cq->count) {
        struct event *event = &cq->events[cq->first];
        if (event->entry.err)
            return taken ? (ssize_t)taken : -FI_EAVAIL;
        memcpy((uint8_t *)buf + taken * size, &event->entry, size);
        if (src) {
            src[taken] = FI_ADDR_NOTAVAIL;
            if (event->entry.flags & FI_RECV)
                peer_by_number(event->ep, event->peer, &src[taken]);
        }
        taken++;
        cq->first = (cq->first + 1) % cq->room;
        cq->count--;
    }
    return taken ? (ssize_t)taken : -FI_EAGAIN;
}

static ssize_t readfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *src) {
    struct cq *cq = container_of(fid, struct cq, fid);
    pthread_mutex_lock(&cq->domain->lock);
    if (cq->count < count || !count)
        domain_progress(cq->domain);
    ssize_t taken = take(cq, buf, count, src);
    pthread_mutex_unlock(&cq->domain->lock);
    return taken;
}

static ssize_t cq_read(struct fid_cq *cq, void *buf, size_t count) {
    return readfrom(cq, buf, count, NULL);
}

static ssize_t readerr(struct fid_cq *fid, struct fi_cq_err_entry *buf, uint64_t flags) {
    struct cq *cq = container_of(fid, struct cq, fid);
    (void)flags;
    pthread_mutex_lock(&cq->domain->lock);
    ssize_t taken = -FI_EAGAIN;
    if (cq->count && cq->events[cq->first].entry.err) {
        *buf = cq->events[cq->first].entry;
        cq->first = (cq->first + 1) % cq->room;
        cq->count--;
        taken = 1;
    }
    pthread_mutex_unlock(&cq->domain->lock);
    return taken;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static ssize_t sreadfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *src, const void *cond, int timeout) {
    (void)cond;
    double until = seconds() + timeout / 1e3;
    for (;;) {
        ssize_t taken = readfrom(fid, buf, count, src);
        if (taken != -FI_EAGAIN || (timeout >= 0 && seconds() >= until))
            return taken;
        sched_yield();
    }
}

static ssize_t sread(struct fid_cq *cq, void *buf, size_t count, const void *cond, int timeout) {
    return sreadfrom(cq, buf, count, NULL, cond, timeout);
}

static int no_signal(struct fid_cq *cq) {
    (void)cq;
    return -FI_ENOSYS;
}

static const char *cq_strerror(struct fid_cq *cq, int prov_errno, const void *data, char *buf, size_t len) {
    (void)cq, (void)data;
    const char *text = tieline_status_text(prov_errno);
    if (buf && len)
        snprintf(buf, len, "%s", text);
    return text;
}

static struct fi_ops cq_fid_ops = {
    .size = sizeof(struct fi_ops), .close = cq_close, .bind = no_bind, .control = no_control, .ops_open = no_ops_open};
static struct fi_ops_cq cq_ops = {
    .size = sizeof(struct fi_ops_cq),
    .read = cq_read,
    .readfrom = readfrom,
    .readerr = readerr,
    .sread = sread,
    .sreadfrom = sreadfrom,
    .signal = no_signal,
    .strerror = cq_strerror,
};

int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context) {
    if (attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC && attr->wait_obj != FI_WAIT_YIELD)
        return -FI_ENOSYS;
    struct cq *made = calloc(1, sizeof *made);
    if (!made)
        return -FI_ENOMEM;
    made->format = attr->format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_CONTEXT : attr->format;
    made->domain = container_of(domain, struct domain, fid);
    made->domain->users++;
    made->fid.fid = (struct fid){.fclass = FI_CLASS_CQ, .context = context, .ops = &cq_fid_ops};
    made->fid.ops = &cq_ops;
    *cq = &made->fid;
    return 0;
}
