/* Atomics on one 32-bit or 64-bit integer. Consumers can query whether an atomic is supported; other
   atomics are refused. */
#include "fi.h"
#include <string.h>

static uint32_t width_of(enum fi_datatype type) {
    switch (type) {
    case FI_INT32:
    case FI_UINT32:
        return 4;
    case FI_INT64:
    case FI_UINT64:
        return 8;
    default:
        return 0;
    }
}

static bool is_unsigned(enum fi_datatype type) {
    return type == FI_UINT32 || type == FI_UINT64;
}

/* Finds Tieline's operation; returns false if there is none. A read is an OR with zero. */
static bool code_of(enum fi_datatype type, enum fi_op op, uint32_t *code) {
    if (!width_of(type))
        return false;
    switch (op) {
    case FI_SUM:
        *code = TIELINE_ATOMIC_ADD;
        return true;
    case FI_BAND:
        *code = TIELINE_ATOMIC_AND;
        return true;
    case FI_BOR:
    case FI_ATOMIC_READ:
        *code = TIELINE_ATOMIC_OR;
        return true;
    case FI_BXOR:
        *code = TIELINE_ATOMIC_XOR;
        return true;
    case FI_ATOMIC_WRITE:
        *code = TIELINE_ATOMIC_SWAP;
        return true;
    case FI_MIN:
        *code = TIELINE_ATOMIC_MIN;
        return is_unsigned(type);
    case FI_MAX:
        *code = TIELINE_ATOMIC_MAX;
        return is_unsigned(type);
    case FI_CSWAP:
        *code = TIELINE_ATOMIC_COMPARE_SWAP;
        return true;
    default:
        return false;
    }
}

enum call { UPDATE, FETCH, COMPARE };

static bool is_valid(enum call call, enum fi_datatype type, enum fi_op op) {
    uint32_t code;
    if (!code_of(type, op, &code))
        return false;
    return call == COMPARE ? op == FI_CSWAP : op != FI_CSWAP && (call == FETCH || op != FI_ATOMIC_READ);
}

static uint64_t value_of(const void *from, uint32_t width) {
    uint32_t narrow = 0;
    uint64_t wide = 0;
    if (!from)
        return 0;
    memcpy(width == 4 ? (void *)&narrow : (void *)&wide, from, width);
    return width == 4 ? narrow : wide;
}

/* The parameters of an atomic operation, in a form that all posting calls share. */
struct atomic {
    enum call call;
    const void *operand, *compare;
    void *result;
    size_t count;
    fi_addr_t to;
    uint64_t remote, key;
    enum fi_datatype type;
    enum fi_op op;
    bool is_told;
    void *context;
};

static ssize_t post(struct ep *ep, const struct atomic *atomic) {
    if (!is_valid(atomic->call, atomic->type, atomic->op) || atomic->count != 1)
        return -FI_EOPNOTSUPP;
    int error = -FI_ENOMEM;
    pthread_mutex_lock(&ep->domain->lock);
    struct op *op = op_new(ep, atomic->call == UPDATE ? OP_ATOMIC : OP_FETCH, 0, atomic->context);
    if (op) {
        op->width = width_of(atomic->type);
        op->len = op->width;
        code_of(atomic->type, atomic->op, &op->code);
        op->operand = atomic->op == FI_ATOMIC_READ ? 0 : value_of(atomic->operand, op->width);
        op->compare = value_of(atomic->compare, op->width);
        op->result = atomic->result;
        op->to = atomic->to;
        op->remote = atomic->remote;
        op->key = atomic->key;
        op->is_told = atomic->is_told;
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

static ssize_t update(struct fid_ep *fid, const void *buf, size_t count, void *desc, fi_addr_t dest, uint64_t addr,
                         uint64_t key, enum fi_datatype type, enum fi_op op, void *context) {
    struct ep *ep = container_of(fid, struct ep, fid);
    (void)desc;
    return post(ep, &(struct atomic){UPDATE, buf, NULL, NULL, count, dest, addr, key, type, op, is_told(ep, ep->tx_flags), context});
}

static ssize_t inject(struct fid_ep *fid, const void *buf, size_t count, fi_addr_t dest, uint64_t addr, uint64_t key,
                      enum fi_datatype type, enum fi_op op) {
    return post(container_of(fid, struct ep, fid),
                &(struct atomic){UPDATE, buf, NULL, NULL, count, dest, addr, key, type, op, false, NULL});
}

static ssize_t fetch(struct fid_ep *fid, const void *buf, size_t count, void *desc, void *result, void *result_desc,
                         fi_addr_t dest, uint64_t addr, uint64_t key, enum fi_datatype type, enum fi_op op, void *context) {
    struct ep *ep = container_of(fid, struct ep, fid);
    (void)desc, (void)result_desc;
    return post(ep, &(struct atomic){FETCH, buf, NULL, result, count, dest, addr, key, type, op, is_told(ep, ep->tx_flags), context});
}

static ssize_t compare_swap(struct fid_ep *fid, const void *buf, size_t count, void *desc, const void *compare,
                         void *compare_desc, void *result, void *result_desc, fi_addr_t dest, uint64_t addr, uint64_t key,
                         enum fi_datatype type, enum fi_op op, void *context) {
    struct ep *ep = container_of(fid, struct ep, fid);
    (void)desc, (void)compare_desc, (void)result_desc;
    return post(ep, &(struct atomic){COMPARE, buf, compare, result, count, dest, addr, key, type, op, is_told(ep, ep->tx_flags), context});
}

static ssize_t update_v(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, fi_addr_t dest, uint64_t addr,
                      uint64_t key, enum fi_datatype type, enum fi_op op, void *context) {
    if (count != 1)
        return -FI_EINVAL;
    return update(fid, iov->addr, iov->count, desc ? *desc : NULL, dest, addr, key, type, op, context);
}

static ssize_t fetch_v(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, struct fi_ioc *resultv,
                          void **result_desc, size_t result_count, fi_addr_t dest, uint64_t addr, uint64_t key,
                          enum fi_datatype type, enum fi_op op, void *context) {
    (void)result_desc;
    if (count != 1 || result_count != 1)
        return -FI_EINVAL;
    return fetch(fid, iov->addr, iov->count, desc ? *desc : NULL, resultv->addr, NULL, dest, addr, key, type, op, context);
}

static ssize_t compare_v(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, const struct fi_ioc *comparev,
                          void **compare_desc, size_t compare_count, struct fi_ioc *resultv, void **result_desc,
                          size_t result_count, fi_addr_t dest, uint64_t addr, uint64_t key, enum fi_datatype type,
                          enum fi_op op, void *context) {
    (void)compare_desc, (void)result_desc;
    if (count != 1 || compare_count != 1 || result_count != 1)
        return -FI_EINVAL;
    return compare_swap(fid, iov->addr, iov->count, desc ? *desc : NULL, comparev->addr, NULL, resultv->addr, NULL, dest, addr, key,
                     type, op, context);
}

static ssize_t post_msg(struct fid_ep *fid, const struct fi_msg_atomic *msg, enum call call, const void *compare, void *result,
                        uint64_t flags) {
    struct ep *ep = container_of(fid, struct ep, fid);
    bool reads = call == FETCH && msg->op == FI_ATOMIC_READ;
    if (msg->rma_iov_count != 1 || (msg->iov_count != 1 && !reads) || (flags & FI_FENCE))
        return -FI_EINVAL;
    const void *operand = msg->iov_count ? msg->msg_iov->addr : NULL;
    return post(ep, &(struct atomic){call, operand, compare, result, msg->rma_iov->count, msg->addr, msg->rma_iov->addr,
                                     msg->rma_iov->key, msg->datatype, msg->op, is_told(ep, flags), msg->context});
}

static ssize_t update_msg(struct fid_ep *fid, const struct fi_msg_atomic *msg, uint64_t flags) {
    return post_msg(fid, msg, UPDATE, NULL, NULL, flags);
}

static ssize_t fetch_msg(struct fid_ep *fid, const struct fi_msg_atomic *msg, struct fi_ioc *resultv, void **result_desc,
                            size_t result_count, uint64_t flags) {
    (void)result_desc;
    return result_count != 1 ? -FI_EINVAL : post_msg(fid, msg, FETCH, NULL, resultv->addr, flags);
}

static ssize_t compare_msg(struct fid_ep *fid, const struct fi_msg_atomic *msg, const struct fi_ioc *comparev,
                            void **compare_desc, size_t compare_count, struct fi_ioc *resultv, void **result_desc,
                            size_t result_count, uint64_t flags) {
    (void)compare_desc, (void)result_desc;
    if (compare_count != 1 || result_count != 1)
        return -FI_EINVAL;
    return post_msg(fid, msg, COMPARE, comparev->addr, resultv->addr, flags);
}

static int valid(enum call call, enum fi_datatype type, enum fi_op op, size_t *count) {
    if (!is_valid(call, type, op))
        return -FI_EOPNOTSUPP;
    *count = 1;
    return 0;
}

static int writevalid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) {
    (void)ep;
    return valid(UPDATE, type, op, count);
}

static int readwritevalid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) {
    (void)ep;
    return valid(FETCH, type, op, count);
}

static int compwritevalid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) {
    (void)ep;
    return valid(COMPARE, type, op, count);
}

int atomic_query(struct fid_domain *domain, enum fi_datatype type, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags) {
    (void)domain;
    enum call call = flags & FI_COMPARE_ATOMIC ? COMPARE : flags & FI_FETCH_ATOMIC ? FETCH : UPDATE;
    if (!is_valid(call, type, op))
        return -FI_EOPNOTSUPP;
    attr->count = 1;
    attr->size = width_of(type);
    return 0;
}

struct fi_ops_atomic atomic_ops = {
    .size = sizeof(struct fi_ops_atomic),
    .write = update,
    .writev = update_v,
    .writemsg = update_msg,
    .inject = inject,
    .readwrite = fetch,
    .readwritev = fetch_v,
    .readwritemsg = fetch_msg,
    .compwrite = compare_swap,
    .compwritev = compare_v,
    .compwritemsg = compare_msg,
    .writevalid = writevalid,
    .readwritevalid = readwritevalid,
    .compwritevalid = compwritevalid,
};
