/* Tagged messages and collectives are not offered. Consumers call function slots unchecked, so each slot has a stub that refuses. */
#include "fi.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

static ssize_t t_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src, uint64_t tag, uint64_t ignore,
                      void *context) {
    return -FI_ENOSYS;
}

static ssize_t t_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src, uint64_t tag,
                       uint64_t ignore, void *context) {
    return -FI_ENOSYS;
}

static ssize_t t_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags) {
    return -FI_ENOSYS;
}

static ssize_t t_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, uint64_t tag, void *context) {
    return -FI_ENOSYS;
}

static ssize_t t_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest, uint64_t tag,
                       void *context) {
    return -FI_ENOSYS;
}

static ssize_t t_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest, uint64_t tag) {
    return -FI_ENOSYS;
}

static ssize_t t_senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t dest,
                          uint64_t tag, void *context) {
    return -FI_ENOSYS;
}

static ssize_t t_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest, uint64_t tag) {
    return -FI_ENOSYS;
}

struct fi_ops_tagged no_tagged = {
    .size = sizeof(struct fi_ops_tagged),
    .recv = t_recv,
    .recvv = t_recvv,
    .recvmsg = t_recvmsg,
    .send = t_send,
    .sendv = t_sendv,
    .sendmsg = t_recvmsg,
    .inject = t_inject,
    .senddata = t_senddata,
    .injectdata = t_injectdata,
};

static ssize_t c_barrier(struct fid_ep *ep, fi_addr_t coll, void *context) {
    return -FI_ENOSYS;
}

static ssize_t c_barrier2(struct fid_ep *ep, fi_addr_t coll, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

static ssize_t c_broadcast(struct fid_ep *ep, void *buf, size_t count, void *desc, fi_addr_t coll, fi_addr_t root,
                           enum fi_datatype type, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

/* The type of alltoall and allgather. */
static ssize_t c_all(struct fid_ep *ep, const void *buf, size_t count, void *desc, void *result, void *result_desc,
                     fi_addr_t coll, enum fi_datatype type, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

/* The type of allreduce and reduce_scatter. */
static ssize_t c_all_op(struct fid_ep *ep, const void *buf, size_t count, void *desc, void *result, void *result_desc,
                        fi_addr_t coll, enum fi_datatype type, enum fi_op op, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

static ssize_t c_reduce(struct fid_ep *ep, const void *buf, size_t count, void *desc, void *result, void *result_desc,
                        fi_addr_t coll, fi_addr_t root, enum fi_datatype type, enum fi_op op, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

/* The type of scatter and gather. */
static ssize_t c_root(struct fid_ep *ep, const void *buf, size_t count, void *desc, void *result, void *result_desc,
                      fi_addr_t coll, fi_addr_t root, enum fi_datatype type, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

static ssize_t c_msg(struct fid_ep *ep, const struct fi_msg_collective *msg, struct fi_ioc *resultv, void **result_desc,
                     size_t result_count, uint64_t flags) {
    return -FI_ENOSYS;
}

struct fi_ops_collective no_collective = {
    .size = sizeof(struct fi_ops_collective),
    .barrier = c_barrier,
    .broadcast = c_broadcast,
    .alltoall = c_all,
    .allreduce = c_all_op,
    .allgather = c_all,
    .reduce_scatter = c_all_op,
    .reduce = c_reduce,
    .scatter = c_root,
    .gather = c_root,
    .msg = c_msg,
    .barrier2 = c_barrier2,
};
