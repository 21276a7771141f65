/*
 * Messages, matched in order of arrival with receives in the order in which they were posted. A long message may be a
 * rendezvous message of Tieline. It keeps its position in this order, and is received into the buffer of the matching receive.
 */
#include "fi.h"
#include <stdlib.h>
#include <string.h>

/* ---- Receiving ---- */

/* Starts the transfer of a rendezvous message. */
int32_t msg_take(struct op *op) {
    size_t len = op->arrived < op->len ? op->arrived : op->len;
    struct tieline_how how = how_of(op);
    int32_t status = op->local ? TIELINE_OK : tieline_context_lend(op->ep->domain->context, op->buf, len, &op->lent);
    if (status < 0)
        return status;
    op->local = op->lent;
    op->parts = 1;
    status = tieline_announcement_take(op->announced, op->local, 0, len, &how, NULL);
    if (status >= 0)
        op->announced = NULL;
    return status;
}

static void receive(struct op *op, uint32_t number, size_t arrived, const void *bytes, struct tieline_announcement *announced) {
    op->number = number;
    op->arrived = arrived;
    if (arrived > op->len) {
        op->error = FI_ETRUNC;
        op->status = TIELINE_TOO_LARGE;
    }
    if (announced) {
        op->ep->counts.announced++;
        op->announced = announced;
        push(&op->ep->again, op);
        return;
    }
    if (op->len && arrived)
        memcpy(op->buf, bytes, arrived < op->len ? arrived : op->len);
    op_ended(op, TIELINE_OK, 0);
}

static void keep_early(struct ep *ep, uint32_t number, const struct tieline_message *message,
                       struct tieline_announcement *announced) {
    size_t kept = announced ? 0 : message->len;
    struct early *early = malloc(sizeof *early + kept);
    if (!early) {
        /* The receiver would wait forever for a lost message, so abort. */
        fprintf(stderr, "tieline-fi: no memory for a message of %zu bytes\n", kept);
        abort();
    }
    early->next = NULL;
    early->announced = announced;
    early->len = message->len;
    early->number = number;
    if (kept)
        memcpy(early->bytes, message->payload, kept);
    *ep->early_last = early;
    ep->early_last = &early->next;
}

static void arrived(void *user, const struct tieline_message *message) {
    struct ep *ep = user;
    uint32_t number = 0;
    struct tieline_announcement *announced = NULL;
    tieline_message_peer(message, &number);
    if (message->is_announced && tieline_message_announcement(message, &announced) < 0)
        return;
    /* Receives are posted only after the unexpected messages are used up, so this message is next in order. */
    struct op *op = pop(&ep->posted);
    if (op)
        receive(op, number, message->len, message->payload, announced);
    else
        keep_early(ep, number, message, announced);
}

static struct early *pop_early(struct ep *ep) {
    struct early *early = ep->early;
    if (early && !(ep->early = early->next))
        ep->early_last = &ep->early;
    return early;
}

static ssize_t post_recv(struct ep *ep, void *buf, size_t len, uint64_t flags, void *context) {
    pthread_mutex_lock(&ep->domain->lock);
    struct op *op = op_new(ep, OP_RECV, flags, context);
    if (op) {
        op->buf = buf;
        op->len = len;
        op->is_told = !ep->rx_selective || (flags & FI_COMPLETION);
        struct early *early = pop_early(ep);
        if (early)
            receive(op, early->number, early->len, early->bytes, early->announced);
        else
            push(&ep->posted, op);
        free(early);
    }
    pthread_mutex_unlock(&ep->domain->lock);
    return op ? 0 : -FI_ENOMEM;
}

static ssize_t msg_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t src, void *context) {
    struct ep *ep = container_of(fid, struct ep, fid);
    (void)desc, (void)src;
    return post_recv(ep, buf, len, ep->rx_flags, context);
}

static ssize_t msg_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t src, void *context) {
    if (count > 1)
        return -FI_EINVAL;
    return msg_recv(fid, count ? iov->iov_base : NULL, count ? iov->iov_len : 0, desc ? *desc : NULL, src, context);
}

static ssize_t msg_recvmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags) {
    if (msg->iov_count > 1 || (flags & (FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD)))
        return -FI_EINVAL;
    const struct iovec none = {0};
    const struct iovec *iov = msg->iov_count ? msg->msg_iov : &none;
    return post_recv(container_of(fid, struct ep, fid), iov->iov_base, iov->iov_len, flags, msg->context);
}

int msg_cancel(struct ep *ep, void *context) {
    struct queue all = ep->posted;
    struct op *op, *found = NULL;
    ep->posted = (struct queue){0};
    while ((op = pop(&all))) {
        if (!found && op->context == context)
            found = op;
        else
            push(&ep->posted, op);
    }
    if (!found)
        return -FI_ENOENT;
    found->error = FI_ECANCELED;
    op_close(found);
    return 0;
}

/* ---- Sending ---- */

/* Flushes the endpoint's messages, for DELIVERY_COMPLETE. When the flush has completed, the peer has received the message. */
int32_t msg_flush(struct op *op) {
    struct peer *peer = &op->ep->peers[op->to];
    struct tieline_how how = how_of(op);
    return tieline_endpoint_flush_messages(peer->to, &how, NULL);
}

static int32_t start(struct op *op) {
    struct peer *peer = &op->ep->peers[op->to];
    struct tieline_how how = how_of(op);
    int32_t status;
    if (op->len <= MAX_COPIED) {
        status = tieline_send(peer->to, ID_MESSAGE, 0, op->buf, op->len, &how, NULL);
    } else {
        status = lend(op, op->desc);
        struct tieline_piece piece = {.region = op->local, .offset = op->local_offset, .len = op->len};
        if (status >= 0)
            status = tieline_send_pieces(peer->to, ID_MESSAGE, 0, &piece, 1, &how, NULL);
    }
    if (status < 0)
        return status;
    op->parts = 1;
    if (op->flags & FI_DELIVERY_COMPLETE) {
        op->parts = 2;
        op_retry(op);
    }
    return status;
}

/* Sends waiting messages in order, to each peer that is resolved. If a peer cannot be resolved, they fail. */
void msg_progress(struct ep *ep) {
    for (size_t i = 0; ep->waiting && i < ep->peer_count; i++) {
        struct peer *peer = &ep->peers[i];
        int error = peer->waiting.first ? peer_of(ep, i, &peer) : -FI_EINPROGRESS;
        while (error != -FI_EINPROGRESS && peer->waiting.first) {
            struct op *op = peer->waiting.first;
            int32_t status = error ? TIELINE_OK : start(op);
            if (status == TIELINE_AGAIN)
                break;
            pop(&peer->waiting);
            peer->waiting_count--;
            ep->waiting--;
            if (!error && status < 0) {
                op_ended(op, status, 0);
            } else if (error) {
                op->error = -error;
                op->status = TIELINE_UNREACHABLE;
                op_close(op);
            }
        }
    }
}

static int wait_for_peer(struct op *op, struct peer *peer) {
    if ((op->flags & FI_INJECT) && op->len) {
        op->copy = malloc(op->len);
        if (!op->copy)
            return -FI_ENOMEM;
        memcpy(op->copy, op->buf, op->len);
        op->buf = op->copy;
    }
    push(&peer->waiting, op);
    peer->waiting_count++;
    op->ep->waiting++;
    return 0;
}

static int send_locked(struct ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, uint64_t flags, bool is_told,
                       void *context) {
    struct peer *peer;
    int error = peer_of(ep, dest, &peer);
    if (error && error != -FI_EINPROGRESS)
        return error;
    bool waits = error || peer->waiting.first;
    if (waits && peer->waiting_count == MAX_WAITING)
        return -FI_EAGAIN;
    struct op *op = op_new(ep, OP_SEND, flags, context);
    if (!op)
        return -FI_ENOMEM;
    op->buf = (uint8_t *)(uintptr_t)buf;
    op->len = len;
    op->desc = desc;
    op->to = dest;
    op->is_told = is_told;
    if (waits) {
        error = wait_for_peer(op, peer);
    } else {
        int32_t status = start(op);
        error = status < 0 ? fi_error(status) : 0;
    }
    if (error)
        op_free(op);
    return error;
}

static ssize_t post_send(struct ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, uint64_t flags, bool is_told,
                         void *context) {
    if (len > MAX_MESSAGE)
        return -FI_EMSGSIZE;
    pthread_mutex_lock(&ep->domain->lock);
    int error = send_locked(ep, buf, len, desc, dest, flags, is_told, context);
    if (error == -FI_EAGAIN)
        ep_progress(ep);
    pthread_mutex_unlock(&ep->domain->lock);
    return error;
}

static bool is_told(const struct ep *ep, uint64_t flags) {
    return !ep->tx_selective || (flags & FI_COMPLETION);
}

static ssize_t msg_send(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t dest, void *context) {
    struct ep *ep = container_of(fid, struct ep, fid);
    return post_send(ep, buf, len, desc, dest, ep->tx_flags, is_told(ep, ep->tx_flags), context);
}

static ssize_t msg_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest, void *context) {
    if (count > 1)
        return -FI_EINVAL;
    return msg_send(fid, count ? iov->iov_base : NULL, count ? iov->iov_len : 0, desc ? *desc : NULL, dest, context);
}

static ssize_t msg_sendmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags) {
    if (msg->iov_count > 1 || (flags & FI_REMOTE_CQ_DATA))
        return -FI_EINVAL;
    const struct iovec none = {0};
    const struct iovec *iov = msg->iov_count ? msg->msg_iov : &none;
    if ((flags & FI_INJECT) && iov->iov_len > MAX_INJECT)
        return -FI_EINVAL;
    void *desc = msg->desc && msg->iov_count ? *msg->desc : NULL;
    struct ep *ep = container_of(fid, struct ep, fid);
    return post_send(ep, iov->iov_base, iov->iov_len, desc, msg->addr, flags, is_told(ep, flags), msg->context);
}

static ssize_t msg_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t dest) {
    struct ep *ep = container_of(fid, struct ep, fid);
    if (len > MAX_INJECT)
        return -FI_EINVAL;
    return post_send(ep, buf, len, NULL, dest, FI_INJECT, false, NULL);
}

static ssize_t no_senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t dest,
                           void *context) {
    (void)ep, (void)buf, (void)len, (void)desc, (void)data, (void)dest, (void)context;
    return -FI_ENOSYS;
}

static ssize_t no_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest) {
    (void)ep, (void)buf, (void)len, (void)data, (void)dest;
    return -FI_ENOSYS;
}

struct fi_ops_msg msg_ops = {
    .size = sizeof(struct fi_ops_msg),
    .recv = msg_recv,
    .recvv = msg_recvv,
    .recvmsg = msg_recvmsg,
    .send = msg_send,
    .sendv = msg_sendv,
    .sendmsg = msg_sendmsg,
    .inject = msg_inject,
    .senddata = no_senddata,
    .injectdata = no_injectdata,
};

int32_t msg_open(struct ep *ep) {
    return tieline_worker_on_message(ep->worker, ID_MESSAGE, arrived, ep);
}

void msg_close(struct ep *ep) {
    struct early *early;
    while ((early = pop_early(ep))) {
        if (early->announced)
            tieline_announcement_refuse(early->announced);
        free(early);
    }
}
