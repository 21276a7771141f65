/* Registered memory. If the provider chooses keys, a key is Tieline's handle; otherwise it is the number that the caller
   requests. */
#include "fi.h"
#include <stdlib.h>
#include <time.h>

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int mr_close(struct fid *fid) {
    struct mr *mr = container_of(fid, struct mr, fid.fid);
    struct domain *domain = mr->domain;
    pthread_mutex_lock(&domain->lock);
    int32_t status;
    double until = 0;
    /* An operation or a peer may still use the region. Progress can complete such accesses. */
    while ((status = tieline_region_close(mr->region)) == TIELINE_BUSY) {
        domain_progress(domain);
        if (until == 0)
            until = seconds() + 5;
        else if (seconds() > until)
            break;
    }
    if (status == TIELINE_BUSY) {
        pthread_mutex_unlock(&domain->lock);
        return -FI_EBUSY;
    }
    struct mr **place = &domain->mrs;
    while (*place != mr)
        place = &(*place)->next;
    *place = mr->next;
    domain->users--;
    pthread_mutex_unlock(&domain->lock);
    free(mr);
    return status < 0 ? fi_error(status) : 0;
}

static int mr_bind(struct fid *fid, struct fid *other, uint64_t flags) {
    (void)fid, (void)other, (void)flags;
    return 0;
}

static int mr_control(struct fid *fid, int command, void *arg) {
    (void)fid, (void)arg;
    return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

static int mr_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) {
    (void)fid, (void)name, (void)flags, (void)ops, (void)context;
    return -FI_ENOSYS;
}

static struct fi_ops mr_fid_ops = {
    .size = sizeof(struct fi_ops), .close = mr_close, .bind = mr_bind, .control = mr_control, .ops_open = mr_ops_open};

/* Returns the rights of peers. Peers that may write may also do atomics. */
static uint64_t rights(uint64_t access) {
    return (access & FI_REMOTE_READ ? TIELINE_READ : 0) | (access & FI_REMOTE_WRITE ? TIELINE_WRITE | TIELINE_ATOMIC : 0);
}

static int32_t keep_memory(struct mr *mr, uint64_t access) {
    struct tieline_context *context = mr->domain->context;
    if (!rights(access))
        return tieline_context_lend(context, mr->start, mr->len, &mr->region);
    int32_t status = tieline_context_register(context, mr->start, mr->len, rights(access), &mr->region);
    if (status < 0)
        return status;
    mr->has_key = true;
    status = tieline_region_handle(mr->region, &mr->handle);
    if (status < 0)
        tieline_region_close(mr->region);
    return status;
}

static bool is_taken(const struct domain *domain, uint64_t key) {
    for (struct mr *mr = domain->mrs; mr; mr = mr->next)
        if (mr->has_key && mr->fid.key == key)
            return true;
    return false;
}

static int reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t requested_key,
               uint64_t flags, struct fid_mr **out, void *context) {
    struct domain *domain = container_of(fid, struct domain, fid.fid);
    if (fid->fclass != FI_CLASS_DOMAIN || offset || flags)
        return -FI_EINVAL;
    struct mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return -FI_ENOMEM;
    mr->domain = domain;
    mr->start = (uint8_t *)(uintptr_t)buf;
    mr->len = len;
    pthread_mutex_lock(&domain->lock);
    int error = 0;
    if (!domain->own_keys && rights(access) && is_taken(domain, requested_key)) {
        error = -FI_ENOKEY;
    } else {
        int32_t status = keep_memory(mr, access);
        if (status < 0) {
            FI_WARN(&provider, FI_LOG_MR, "%s\n", tieline_error_text());
            error = fi_error(status);
        }
    }
    if (error) {
        pthread_mutex_unlock(&domain->lock);
        free(mr);
        return error;
    }
    mr->fid.fid = (struct fid){.fclass = FI_CLASS_MR, .context = context, .ops = &mr_fid_ops};
    mr->fid.mem_desc = mr;
    mr->fid.key = domain->own_keys ? mr->handle : requested_key;
    mr->next = domain->mrs;
    domain->mrs = mr;
    domain->users++;
    pthread_mutex_unlock(&domain->lock);
    *out = &mr->fid;
    return 0;
}

static int regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset,
                uint64_t requested_key, uint64_t flags, struct fid_mr **mr, void *context) {
    if (count != 1)
        return -FI_EINVAL;
    return reg(fid, iov->iov_base, iov->iov_len, access, offset, requested_key, flags, mr, context);
}

static int regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr) {
    return regv(fid, attr->mr_iov, attr->iov_count, attr->access, attr->offset, attr->requested_key, flags, mr, attr->context);
}

struct fi_ops_mr mr_ops = {.size = sizeof(struct fi_ops_mr), .reg = reg, .regv = regv, .regattr = regattr};
