/* Endpoints, each of which is a Tieline worker, and the connections to its peers. */
#include "fi.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ep_progress(struct ep *ep) {
    struct tieline_completed list[64];
    size_t taken;
    if (!ep->worker)
        return;
    tieline_worker_progress(ep->worker);
    do {
        taken = 0;
        tieline_worker_take_completed(ep->worker, list, sizeof *list, sizeof list / sizeof *list, &taken);
        for (size_t i = 0; i < taken; i++)
            op_ended((struct op *)(uintptr_t)list[i].user, list[i].status, list[i].value);
    } while (taken);
    msg_progress(ep);
    struct queue again = ep->again, closing = ep->closing;
    struct op *op;
    ep->again = ep->closing = (struct queue){0};
    while ((op = pop(&again)))
        op_retry(op);
    while ((op = pop(&closing)))
        op_close(op);
}

struct peer *peer_by_number(struct ep *ep, uint32_t number, fi_addr_t *addr) {
    for (size_t i = 0; i < ep->peer_count; i++)
        if (ep->peers[i].state == PEER_READY && ep->peers[i].number == number) {
            *addr = i;
            return &ep->peers[i];
        }
    *addr = FI_ADDR_NOTAVAIL;
    return NULL;
}

static int ask(struct ep *ep, fi_addr_t addr, struct peer *peer) {
    const struct address *address = &ep->av->addresses[addr];
    if (!address->len)
        return -FI_EINVAL;
    int32_t status = tieline_worker_ask_name(ep->worker, address->name, address->len, &peer->call);
    if (status < 0)
        return fi_error(status);
    peer->state = PEER_ASKED;
    return -FI_EINPROGRESS;
}

static int find(struct peer *peer) {
    int32_t status = tieline_name_call_test(peer->call, &peer->to);
    if (status == TIELINE_PENDING)
        return -FI_EINPROGRESS;
    tieline_name_call_drop(peer->call);
    peer->call = NULL;
    if (status >= 0)
        status = tieline_endpoint_peer(peer->to, &peer->number);
    if (status < 0) {
        FI_WARN(&provider, FI_LOG_EP_CTRL, "%s\n", tieline_error_text());
        peer->state = PEER_FAILED;
        return -FI_EHOSTUNREACH;
    }
    peer->state = PEER_READY;
    return 0;
}

int peer_of(struct ep *ep, fi_addr_t addr, struct peer **out) {
    if (!ep->worker || !ep->av || addr >= ep->av->count)
        return -FI_EINVAL;
    if (addr >= ep->peer_count) {
        size_t count = ep->av->count;
        struct peer *peers = realloc(ep->peers, count * sizeof *peers);
        if (!peers)
            return -FI_ENOMEM;
        memset(peers + ep->peer_count, 0, (count - ep->peer_count) * sizeof *peers);
        ep->peers = peers;
        ep->peer_count = count;
    }
    struct peer *peer = &ep->peers[addr];
    *out = peer;
    switch (peer->state) {
    case PEER_READY:
        return 0;
    case PEER_NEW:
        return ask(ep, addr, peer);
    case PEER_ASKED:
        return find(peer);
    default:
        return -FI_EHOSTUNREACH;
    }
}

/* Reports the traffic and the path: a line per endpoint, to the file that TIELINE_FI_REPORT names. */
static void report(const struct ep *ep) {
    const char *name = getenv("TIELINE_FI_REPORT");
    const struct counts *counts = &ep->counts;
    FILE *file = name ? fopen(name, "a") : NULL;
    if (!file)
        return;
    char path[512] = "nobody";
    for (size_t i = 0; i < ep->peer_count; i++) {
        size_t len = sizeof path;
        if (ep->peers[i].state == PEER_READY)
            tieline_endpoint_path(ep->peers[i].to, path, &len);
    }
    fprintf(file,
            "tieline-fi pid %ld: sent %" PRIu64 " (%" PRIu64 " B) received %" PRIu64 " (%" PRIu64 " B, %" PRIu64
            " announced) puts %" PRIu64 " (%" PRIu64 " B) gets %" PRIu64 " (%" PRIu64 " B) atomics %" PRIu64 " keys %" PRIu64
            " errors %" PRIu64 "; the last peer: %s\n",
            (long)getpid(), counts->sent, counts->sent_bytes, counts->received, counts->received_bytes, counts->announced,
            counts->puts, counts->put_bytes, counts->gets, counts->get_bytes, counts->atomics, counts->keys_asked, counts->errors,
            path);
    fclose(file);
}

static void close_peers(struct ep *ep) {
    for (size_t i = 0; i < ep->peer_count; i++) {
        struct peer *peer = &ep->peers[i];
        keys_close(peer);
        if (peer->call)
            tieline_name_call_drop(peer->call);
        if (peer->to)
            tieline_endpoint_drop(peer->to);
    }
    free(ep->peers);
}

static int ep_close(struct fid *fid) {
    struct ep *ep = container_of(fid, struct ep, fid.fid);
    struct domain *domain = ep->domain;
    pthread_mutex_lock(&domain->lock);
    report(ep);
    struct tieline_worker *worker = ep->worker;
    int32_t status = tieline_worker_close(worker, INT64_C(5000000000));
    if (status < 0) {
        FI_INFO(&provider, FI_LOG_EP_CTRL, "%s\n", tieline_error_text());
        if (status == TIELINE_BUSY || status == TIELINE_INVALID)
            tieline_worker_drop(worker);
    }
    ep->worker = NULL;
    msg_close(ep);
    close_peers(ep);
    ops_close(ep);
    struct ep **place = &domain->eps;
    while (*place != ep)
        place = &(*place)->next;
    *place = ep->next;
    if (ep->tx)
        ep->tx->users--;
    if (ep->rx)
        ep->rx->users--;
    if (ep->av)
        ep->av->users--;
    domain->users--;
    pthread_mutex_unlock(&domain->lock);
    free(ep);
    return 0;
}

static int bind_cq(struct ep *ep, struct cq *cq, uint64_t flags) {
    bool is_selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
    if (flags & FI_TRANSMIT) {
        if (ep->tx)
            return -FI_EBUSY;
        ep->tx = cq;
        ep->tx_selective = is_selective;
        cq->users++;
    }
    if (flags & FI_RECV) {
        if (ep->rx)
            return -FI_EBUSY;
        ep->rx = cq;
        ep->rx_selective = is_selective;
        cq->users++;
    }
    return 0;
}

static int bind_fid(struct fid *fid, struct fid *other, uint64_t flags) {
    struct ep *ep = container_of(fid, struct ep, fid.fid);
    switch (other->fclass) {
    case FI_CLASS_CQ:
        return bind_cq(ep, container_of(other, struct cq, fid.fid), flags);
    case FI_CLASS_AV:
        if (ep->av)
            return -FI_EBUSY;
        ep->av = container_of(other, struct av, fid.fid);
        ep->av->users++;
        return 0;
    case FI_CLASS_EQ:
        return 0;
    default:
        return -FI_ENOSYS;
    }
}

static int control(struct fid *fid, int command, void *arg) {
    (void)fid, (void)arg;
    return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

static int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) {
    (void)fid, (void)name, (void)flags, (void)ops, (void)context;
    return -FI_ENOSYS;
}

static int getname(fid_t fid, void *addr, size_t *addrlen) {
    struct ep *ep = container_of(fid, struct ep, fid.fid);
    struct address address = {0};
    size_t len = sizeof address.name, room = *addrlen;
    *addrlen = sizeof address;
    if (!addr || room < sizeof address)
        return -FI_ETOOSMALL;
    pthread_mutex_lock(&ep->domain->lock);
    int32_t status = tieline_worker_name(ep->worker, address.name, &len);
    if (status < 0)
        FI_WARN(&provider, FI_LOG_EP_CTRL, "%s\n", tieline_error_text());
    pthread_mutex_unlock(&ep->domain->lock);
    if (status < 0)
        return fi_error(status);
    address.len = (uint8_t)len;
    memcpy(addr, &address, sizeof address);
    return 0;
}

static int no_setname(fid_t fid, void *addr, size_t addrlen) {
    (void)fid, (void)addr, (void)addrlen;
    return -FI_ENOSYS;
}

static int no_getpeer(struct fid_ep *ep, void *addr, size_t *addrlen) {
    (void)ep, (void)addr, (void)addrlen;
    return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *ep, const void *addr, const void *param, size_t paramlen) {
    (void)ep, (void)addr, (void)param, (void)paramlen;
    return -FI_ENOSYS;
}

static int no_listen(struct fid_pep *pep) {
    (void)pep;
    return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *ep, const void *param, size_t paramlen) {
    (void)ep, (void)param, (void)paramlen;
    return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen) {
    (void)pep, (void)handle, (void)param, (void)paramlen;
    return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags) {
    (void)ep, (void)flags;
    return -FI_ENOSYS;
}

static int no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc, void *context) {
    (void)ep, (void)addr, (void)flags, (void)mc, (void)context;
    return -FI_ENOSYS;
}

static ssize_t cancel(fid_t fid, void *context) {
    struct ep *ep = container_of(fid, struct ep, fid.fid);
    pthread_mutex_lock(&ep->domain->lock);
    int result = msg_cancel(ep, context);
    pthread_mutex_unlock(&ep->domain->lock);
    return result;
}

static int no_getopt(fid_t fid, int level, int name, void *value, size_t *len) {
    (void)fid, (void)level, (void)name, (void)value, (void)len;
    return -FI_ENOPROTOOPT;
}

static int no_setopt(fid_t fid, int level, int name, const void *value, size_t len) {
    (void)fid, (void)level, (void)name, (void)value, (void)len;
    return -FI_ENOPROTOOPT;
}

static int no_tx_ctx(struct fid_ep *ep, int index, struct fi_tx_attr *attr, struct fid_ep **tx, void *context) {
    (void)ep, (void)index, (void)attr, (void)tx, (void)context;
    return -FI_ENOSYS;
}

static int no_rx_ctx(struct fid_ep *ep, int index, struct fi_rx_attr *attr, struct fid_ep **rx, void *context) {
    (void)ep, (void)index, (void)attr, (void)rx, (void)context;
    return -FI_ENOSYS;
}

static ssize_t no_size_left(struct fid_ep *ep) {
    (void)ep;
    return -FI_ENOSYS;
}

static struct fi_ops ep_fid_ops = {
    .size = sizeof(struct fi_ops), .close = ep_close, .bind = bind_fid, .control = control, .ops_open = no_ops_open};
static struct fi_ops_ep ep_ops = {
    .size = sizeof(struct fi_ops_ep),
    .cancel = cancel,
    .getopt = no_getopt,
    .setopt = no_setopt,
    .tx_ctx = no_tx_ctx,
    .rx_ctx = no_rx_ctx,
    .rx_size_left = no_size_left,
    .tx_size_left = no_size_left,
};
static struct fi_ops_cm cm_ops = {
    .size = sizeof(struct fi_ops_cm),
    .setname = no_setname,
    .getname = getname,
    .getpeer = no_getpeer,
    .connect = no_connect,
    .listen = no_listen,
    .accept = no_accept,
    .reject = no_reject,
    .shutdown = no_shutdown,
    .join = no_join,
};

int ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context) {
    struct ep *made = calloc(1, sizeof *made);
    if (!made)
        return -FI_ENOMEM;
    made->domain = container_of(domain, struct domain, fid);
    made->tx_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
    made->rx_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
    made->early_last = &made->early;
    pthread_mutex_lock(&made->domain->lock);
    int32_t status = tieline_worker_open(made->domain->context, &made->worker);
    if (status >= 0 && ((status = msg_open(made)) < 0 || (status = keys_open(made)) < 0))
        tieline_worker_drop(made->worker);
    if (status < 0) {
        FI_WARN(&provider, FI_LOG_EP_CTRL, "%s\n", tieline_error_text());
        pthread_mutex_unlock(&made->domain->lock);
        free(made);
        return fi_error(status);
    }
    made->next = made->domain->eps;
    made->domain->eps = made;
    made->domain->users++;
    pthread_mutex_unlock(&made->domain->lock);
    made->fid.fid = (struct fid){.fclass = FI_CLASS_EP, .context = context, .ops = &ep_fid_ops};
    made->fid.ops = &ep_ops;
    made->fid.cm = &cm_ops;
    made->fid.msg = &msg_ops;
    made->fid.rma = &rma_ops;
    made->fid.tagged = &no_tagged;
    made->fid.atomic = &atomic_ops;
    made->fid.collective = &no_collective;
    *ep = &made->fid;
    return 0;
}
