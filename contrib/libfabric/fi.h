/*
 * A libfabric provider over Tieline's C library: declarations shared by its files.
 *
 * A domain is a Tieline context, an endpoint a worker, and a peer of an endpoint (an address of its vector) an endpoint of that
 * worker. Every libfabric operation is a `struct op`, whose address is the word that Tieline reports with its completions. The
 * provider's own queries and replies for keys are such operations too. One lock per domain allows calls from any thread; the holder
 * of the lock may use the domain's workers.
 */
#ifndef TIELINE_FI_H
#define TIELINE_FI_H

#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <tieline.h>

/* The largest size for fi_inject and its variants. */
#define MAX_INJECT 4096
/* The size up to which the provider posts sends and puts from copied bytes. A longer operation uses its buffer until its completion. */
#define MAX_COPIED 8192
#define MAX_MESSAGE ((size_t)1 << 30)

/* Message ids: application messages, the query for the handle of a key that its owner's caller chose, and the reply to it. */
#define ID_MESSAGE 1
#define ID_KEY_ASKED 2
#define ID_KEY_TOLD 3

/* An address: a worker's name, preceded by its length. An address fits into the 64 bytes that Open MPI 4.1 provides. */
struct address {
    uint8_t len;
    uint8_t name[55];
};

struct fabric {
    struct fid_fabric fid;
    size_t users;
};

/* A registered memory region. */
struct mr {
    struct fid_mr fid;
    struct mr *next;
    struct domain *domain;
    struct tieline_region *region;
    uint8_t *start;
    size_t len;
    uint64_t handle;
    bool has_key;
};

struct domain {
    struct fid_domain fid;
    struct fabric *fabric;
    struct tieline_context *context;
    pthread_mutex_t lock;
    /* Whether the provider chooses keys (FI_MR_PROV_KEY). Such keys are Tieline's handles. */
    bool own_keys;
    struct ep *eps;
    struct mr *mrs;
    size_t users;
};

struct av {
    struct fid_av fid;
    struct domain *domain;
    struct address *addresses;
    size_t count, room;
    size_t users;
};

/* An entry of a completion queue: a completion or an error. */
struct event {
    struct fi_cq_err_entry entry;
    struct ep *ep;
    uint32_t peer;
};

struct cq {
    struct fid_cq fid;
    struct domain *domain;
    enum fi_cq_format format;
    struct event *events;
    size_t first, count, room;
    size_t users;
};

/* A place for a peer's key, and the number by which the libfabric user refers to the key. */
struct known_key {
    enum { KEY_EMPTY, KEY_ASKED, KEY_TOLD, KEY_LOOKED_UP, KEY_READY, KEY_REFUSED } state;
    uint64_t number;
    uint64_t handle;
    struct tieline_key *key;
    /* Whether an operation was posted with this key since it was resolved. */
    bool was_used;
};
#define KNOWN_KEYS 256

struct op;

struct queue {
    struct op *first, **last;
};

/* A peer: an address of the vector, as used by an endpoint. */
struct peer {
    enum { PEER_NEW, PEER_ASKED, PEER_READY, PEER_FAILED } state;
    struct tieline_name_call *call;
    struct tieline_endpoint *to;
    uint32_t number;
    struct known_key *keys;
    /* Messages that wait until the peer is resolved or has room, in order. */
    struct queue waiting;
    size_t waiting_count;
};
/* The number of waiting operations at which posts return -FI_EAGAIN. The number is large, because Open MPI retries only when a
   completion has arrived. */
#define MAX_WAITING 1024

enum kind { OP_SEND, OP_RECV, OP_WRITE, OP_READ, OP_ATOMIC, OP_FETCH, OP_KEY, OP_ANSWER };

struct op {
    struct op *next;
    struct ep *ep;
    enum kind kind;
    /* The number of parts of the operation that have not completed. */
    int parts;
    /* The error of the first failed part: FI_*. */
    int error;
    int status;
    bool is_used;
    /* Whether the completion is reported if there is no error. An error is always reported. */
    bool is_told;
    bool was_tried;
    uint64_t flags;
    void *context;
    uint8_t *buf;
    size_t len;
    /* The length of the received message and its sender, for a receive. */
    size_t arrived;
    uint32_t number;
    struct tieline_announcement *announced;
    /* The local memory: a transient registration, or a part of a region that the caller has registered. */
    struct tieline_region *lent;
    struct tieline_region *local;
    size_t local_offset;
    /* The target, for a put, get or atomic. */
    fi_addr_t to;
    uint64_t remote, key;
    uint32_t code, width;
    uint64_t operand, compare;
    void *result;
    /* A copy of the bytes of an injected put. */
    uint8_t *copy;
    void *desc;
};

struct slab {
    struct slab *next;
    struct op ops[64];
};

/* A message that arrived before its receive. */
struct early {
    struct early *next;
    struct tieline_announcement *announced;
    size_t len;
    uint32_t number;
    uint8_t bytes[];
};

/* The traffic counters. */
struct counts {
    uint64_t sent, sent_bytes, received, received_bytes, announced;
    uint64_t puts, put_bytes, gets, get_bytes, atomics, keys_asked, errors;
};

struct ep {
    struct fid_ep fid;
    struct ep *next;
    struct domain *domain;
    struct av *av;
    struct cq *tx, *rx;
    bool tx_selective, rx_selective;
    uint64_t tx_flags, rx_flags;
    struct tieline_worker *worker;
    struct peer *peers;
    size_t peer_count;
    /* Receives that wait for a message, operations to be retried, and operations whose transient registration is still open. */
    struct queue posted, again, closing;
    /* The number of messages in all peers' queues. */
    size_t waiting;
    struct early *early, **early_last;
    struct slab *slabs;
    struct op *spare;
    struct counts counts;
};

extern struct fi_provider provider;

/* Declarations of info.c. */
int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int get_info(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
             struct fi_info **info);
/* Declarations of domain.c. */
int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context);
void domain_progress(struct domain *domain);
/* Finds an operation's local memory: a region that the caller has registered, or else a new transient registration (in ops.c). */
int32_t lend(struct op *op, void *desc);
/* Declarations of mr.c. */
extern struct fi_ops_mr mr_ops;
/* Declarations of av.c. */
int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
/* Declarations of cq.c. */
int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
void cq_tell(struct cq *cq, const struct event *event);
/* Declarations of ep.c. */
int ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
/* Makes progress, takes the completions of the endpoint's worker, and retries operations. */
void ep_progress(struct ep *ep);
/* Finds the endpoint for an address. Returns 0, -FI_EINPROGRESS while the address is being resolved, or another error. */
int peer_of(struct ep *ep, fi_addr_t addr, struct peer **peer);
struct peer *peer_by_number(struct ep *ep, uint32_t number, fi_addr_t *addr);
/* Declarations of ops.c. */
struct op *op_new(struct ep *ep, enum kind kind, uint64_t flags, void *context);
void op_free(struct op *op);
void ops_close(struct ep *ep);
/* Ends a part of an operation. If no part was started, `status` is the reason. */
void op_ended(struct op *op, int32_t status, uint64_t value);
void op_retry(struct op *op);
void op_close(struct op *op);
struct tieline_how how_of(const struct op *op);
void push(struct queue *queue, struct op *op);
struct op *pop(struct queue *queue);
/* Returns the libfabric error for a status below 0. */
int fi_error(int32_t status);
/* Declarations of msg.c. */
extern struct fi_ops_msg msg_ops;
int32_t msg_open(struct ep *ep);
int msg_cancel(struct ep *ep, void *context);
int32_t msg_flush(struct op *op);
int32_t msg_take(struct op *op);
void msg_progress(struct ep *ep);
void msg_close(struct ep *ep);
/* Declarations of rma.c and, for atomics, of atomic.c. */
extern struct fi_ops_rma rma_ops;
extern struct fi_ops_atomic atomic_ops;
/* Posts a put, get or atomic. Returns 0, -FI_EINPROGRESS while the endpoint or key is being resolved, or another -FI_*. */
int rma_post(struct op *op);
/* Starts a put, get or atomic. If the endpoint or key is still being resolved, queues the operation and returns. */
int rma_start(struct op *op);
int atomic_query(struct fid_domain *domain, enum fi_datatype type, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags);
/* Declarations of keys.c. */
int32_t keys_open(struct ep *ep);
void keys_ended(struct op *op, int32_t status);
/* Handles the refusal of an operation. Returns whether the reason may be that the key number refers to other memory than before. */
bool keys_forget(const struct op *op);
void keys_used(const struct op *op);
void keys_close(struct peer *peer);
int32_t keys_answer(struct op *op);
int key_of(struct ep *ep, struct peer *peer, fi_addr_t addr, uint64_t number, struct tieline_key **key);
/* Declarations of stubs.c: tables of unsupported functions. */
extern struct fi_ops_tagged no_tagged;
extern struct fi_ops_collective no_collective;

#endif
