/* Puts, gets and atomics. A put completes as in Tieline: when its bytes are visible at the target, as
   DELIVERY_COMPLETE requires. */
#include "fi.h"
#include <stdlib.h>
#include <string.h>

static int32_t start(struct op *op, struct tieline_key *key) {
    struct tieline_how how = how_of(op);
    uint64_t before;
    int32_t status;
    switch (op->kind) {
    case OP_WRITE:
        if (op->len <= MAX_COPIED)
            return tieline_put_bytes(key, op->remote, op->copy ? op->copy : op->buf, op->len, &how, NULL);
        status = lend(op, op->desc);
        return status < 0 ? status : tieline_put(key, op->remote, op->local, op->local_offset, op->len, &how, NULL);
    case OP_READ:
        status = lend(op, op->desc);
        return status < 0 ? status : tieline_get(key, op->remote, op->local, op->local_offset, op->len, &how, NULL);
    case OP_ATOMIC:
        return tieline_atomic(key, op->code, op->width, op->remote, op->operand, &how, NULL);
    default:
        /* The value is reported with the completion, even if the operation completes immediately. */
        return tieline_fetch(key, op->code, op->width, op->remote, op->operand, op->compare, &before, &how, NULL);
    }
}

int rma_post(struct op *op) {
    struct peer *peer;
    struct tieline_key *key;
    int error = peer_of(op->ep, op->to, &peer);
    if (!error)
        error = key_of(op->ep, peer, op->to, op->key, &key);
    if (error)
        return error;
    int32_t status = start(op, key);
    if (status == TIELINE_KEY_REJECTED && keys_forget(op))
        return -FI_EINPROGRESS;
    if (status < 0) {
        if (status != TIELINE_AGAIN)
            FI_INFO(&provider, FI_LOG_EP_DATA, "%s\n", tieline_error_text());
        return fi_error(status);
    }
    op->parts = 1;
    keys_used(op);
    return 0;
}

int rma_start(struct op *op) {
    int error = rma_post(op);
    if (error == -FI_EINPROGRESS) {
        push(&op->ep->again, op);
        return 0;
    }
    if (error)
        op_free(op);
    return error;
}

static ssize_t post(struct ep *ep, enum kind kind, const void *buf, size_t len, void *desc, fi_addr_t addr, uint64_t remote,
                    uint64_t key, uint64_t flags, bool is_told, void *context) {
    if (len > MAX_MESSAGE)
        return -FI_EMSGSIZE;
    int error = -FI_ENOMEM;
    pthread_mutex_lock(&ep->domain->lock);
    struct op *op = op_new(ep, kind, flags, context);
    if (op) {
        op->buf = (uint8_t *)(uintptr_t)buf;
        op->len = len;
        op->desc = desc;
        op->to = addr;
        op->remote = remote;
        op->key = key;
        op->is_told = is_told;
        /* Injected bytes belong to the caller again when the call returns, but the put may have to be posted
           later. */
        bool is_copied = (flags & FI_INJECT) && len;
        if (is_copied && (op->copy = malloc(len)))
            memcpy(op->copy, buf, len);
        if (is_copied && !op->copy)
            op_free(op);
        else
            error = rma_start(op);
        if (error == -FI_EAGAIN)
            ep_progress(ep);
    }
    pthread_mutex_unlock(&ep->domain->lock);
    return error;
}

static bool is_told(const struct ep *ep, uint64_t flags) {
    return !ep->tx_selective || (flags & FI_COMPLETION);
}

static ssize_t rma_read(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t src, uint64_t addr, uint64_t key,
                        void *context) {
    struct ep *ep = container_of(fid, struct ep, fid);
    return post(ep, OP_READ, buf, len, desc, src, addr, key, 0, is_told(ep, ep->tx_flags), context);
}

static ssize_t rma_readv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t src, uint64_t addr,
                         uint64_t key, void *context) {
    if (count != 1)
        return -FI_EINVAL;
    return rma_read(fid, iov->iov_base, iov->iov_len, desc ? *desc : NULL, src, addr, key, context);
}

static ssize_t post_msg(struct fid_ep *fid, enum kind kind, const struct fi_msg_rma *msg, uint64_t flags) {
    struct ep *ep = container_of(fid, struct ep, fid);
    if (msg->iov_count != 1 || msg->rma_iov_count != 1 || msg->msg_iov->iov_len != msg->rma_iov->len ||
        (flags & (FI_REMOTE_CQ_DATA | FI_FENCE)) || ((flags & FI_INJECT) && msg->msg_iov->iov_len > MAX_INJECT))
        return -FI_EINVAL;
    return post(ep, kind, msg->msg_iov->iov_base, msg->msg_iov->iov_len, msg->desc ? *msg->desc : NULL, msg->addr,
                msg->rma_iov->addr, msg->rma_iov->key, kind == OP_WRITE ? flags : 0, is_told(ep, flags), msg->context);
}

static ssize_t rma_readmsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags) {
    return post_msg(fid, OP_READ, msg, flags);
}

static ssize_t rma_write(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t dest, uint64_t addr,
                         uint64_t key, void *context) {
    struct ep *ep = container_of(fid, struct ep, fid);
    return post(ep, OP_WRITE, buf, len, desc, dest, addr, key, 0, is_told(ep, ep->tx_flags), context);
}

static ssize_t rma_writev(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest,
                          uint64_t addr, uint64_t key, void *context) {
    if (count != 1)
        return -FI_EINVAL;
    return rma_write(fid, iov->iov_base, iov->iov_len, desc ? *desc : NULL, dest, addr, key, context);
}

static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags) {
    return post_msg(fid, OP_WRITE, msg, flags);
}

static ssize_t rma_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t dest, uint64_t addr, uint64_t key) {
    if (len > MAX_INJECT)
        return -FI_EINVAL;
    return post(container_of(fid, struct ep, fid), OP_WRITE, buf, len, NULL, dest, addr, key, FI_INJECT, false, NULL);
}

static ssize_t no_writedata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t dest,
                            uint64_t addr, uint64_t key, void *context) {
    (void)ep, (void)buf, (void)len, (void)desc, (void)data, (void)dest, (void)addr, (void)key, (void)context;
    return -FI_ENOSYS;
}

static ssize_t no_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest, uint64_t addr,
                             uint64_t key) {
    (void)ep, (void)buf, (void)len, (void)data, (void)dest, (void)addr, (void)key;
    return -FI_ENOSYS;
}

struct fi_ops_rma rma_ops = {
    .size = sizeof(struct fi_ops_rma),
    .read = rma_read,
    .readv = rma_readv,
    .readmsg = rma_readmsg,
    .write = rma_write,
    .writev = rma_writev,
    .writemsg = rma_writemsg,
    .inject = rma_inject,
    .writedata = no_writedata,
    .injectdata = no_injectdata,
};
