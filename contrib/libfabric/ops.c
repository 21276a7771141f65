/* Operations, from the post to the entry in a completion queue. */
#include "fi.h"
#include <stdlib.h>
#include <string.h>

int fi_error(int32_t status) {
    switch (status) {
    case TIELINE_AGAIN:
        return -FI_EAGAIN;
    case TIELINE_NO_MEMORY:
        return -FI_ENOMEM;
    case TIELINE_NO_DEVICE:
        return -FI_ENODEV;
    case TIELINE_PERMISSION:
        return -FI_EACCES;
    case TIELINE_PEER_FAILED:
    case TIELINE_CLOSED:
    case TIELINE_OUTCOME_UNKNOWN:
        return -FI_ENOTCONN;
    case TIELINE_UNREACHABLE:
        return -FI_EHOSTUNREACH;
    case TIELINE_KEY_REJECTED:
        return -FI_EKEYREJECTED;
    case TIELINE_INVALID:
    case TIELINE_OUT_OF_RANGE:
    case TIELINE_MISALIGNED:
    case TIELINE_UNSUPPORTED_PARAM:
        return -FI_EINVAL;
    case TIELINE_TOO_LARGE:
        return -FI_EMSGSIZE;
    case TIELINE_TIMED_OUT:
    case TIELINE_EXPIRED:
        return -FI_ETIMEDOUT;
    case TIELINE_UNSUPPORTED:
        return -FI_EOPNOTSUPP;
    case TIELINE_BUSY:
        return -FI_EBUSY;
    case TIELINE_CANCELED:
        return -FI_ECANCELED;
    case TIELINE_IO:
        return -FI_EIO;
    default:
        return -FI_EOTHER;
    }
}

void push(struct queue *queue, struct op *op) {
    if (!queue->first)
        queue->last = &queue->first;
    op->next = NULL;
    *queue->last = op;
    queue->last = &op->next;
}

struct op *pop(struct queue *queue) {
    struct op *op = queue->first;
    if (op)
        queue->first = op->next;
    return op;
}

static bool more(struct ep *ep) {
    struct slab *slab = calloc(1, sizeof *slab);
    if (!slab)
        return false;
    slab->next = ep->slabs;
    ep->slabs = slab;
    for (size_t i = 0; i < sizeof slab->ops / sizeof *slab->ops; i++) {
        slab->ops[i].next = ep->spare;
        ep->spare = &slab->ops[i];
    }
    return true;
}

struct op *op_new(struct ep *ep, enum kind kind, uint64_t flags, void *context) {
    if (!ep->spare && !more(ep))
        return NULL;
    struct op *op = ep->spare;
    ep->spare = op->next;
    *op = (struct op){.ep = ep, .kind = kind, .is_used = true, .flags = flags, .context = context};
    return op;
}

static void release(struct op *op) {
    if (op->lent && tieline_region_close(op->lent) < 0)
        tieline_region_drop(op->lent);
    if (op->announced)
        tieline_announcement_refuse(op->announced);
    free(op->copy);
    op->is_used = false;
}

void op_free(struct op *op) {
    release(op);
    op->next = op->ep->spare;
    op->ep->spare = op;
}

/* Frees all operations of an endpoint whose worker is closed. Pending operations are not reported. */
void ops_close(struct ep *ep) {
    struct slab *next;
    for (struct slab *slab = ep->slabs; slab; slab = next) {
        next = slab->next;
        for (size_t i = 0; i < sizeof slab->ops / sizeof *slab->ops; i++)
            if (slab->ops[i].is_used)
                release(&slab->ops[i]);
        free(slab);
    }
}

int32_t lend(struct op *op, void *desc) {
    const struct mr *mr = desc;
    if (op->local)
        return TIELINE_OK;
    if (mr && op->buf >= mr->start && op->len <= mr->len && (size_t)(op->buf - mr->start) <= mr->len - op->len) {
        op->local = mr->region;
        op->local_offset = (size_t)(op->buf - mr->start);
        return TIELINE_OK;
    }
    int32_t status = tieline_context_lend(op->ep->domain->context, op->buf, op->len, &op->lent);
    op->local = op->lent;
    return status;
}

struct tieline_how how_of(const struct op *op) {
    return (struct tieline_how){.size = sizeof(struct tieline_how), .tell = TIELINE_TELL_TRACKED, .user = (uintptr_t)op};
}

static uint64_t entry_flags(enum kind kind) {
    switch (kind) {
    case OP_SEND:
        return FI_SEND | FI_MSG;
    case OP_RECV:
        return FI_RECV | FI_MSG;
    case OP_WRITE:
        return FI_WRITE | FI_RMA;
    case OP_READ:
        return FI_READ | FI_RMA;
    case OP_ATOMIC:
        return FI_WRITE | FI_ATOMIC;
    default:
        return FI_READ | FI_ATOMIC;
    }
}

static void tell(struct op *op) {
    struct ep *ep = op->ep;
    struct cq *cq = op->kind == OP_RECV ? ep->rx : ep->tx;
    struct event event = {.ep = ep, .peer = op->number};
    event.entry.op_context = op->context;
    event.entry.flags = entry_flags(op->kind);
    if (op->kind == OP_RECV) {
        event.entry.len = op->arrived < op->len ? op->arrived : op->len;
        event.entry.buf = op->buf;
    }
    if (op->error) {
        ep->counts.errors++;
        event.entry.err = op->error;
        event.entry.prov_errno = op->status;
        event.entry.olen = op->arrived > op->len ? op->arrived - op->len : 0;
    }
    if (cq && (op->is_told || op->error))
        cq_tell(cq, &event);
}

/* Reports the end of an operation after the last access to its memory. Until then, the operation stays in
   the queue `closing`. */
void op_close(struct op *op) {
    if (op->lent) {
        int32_t status = tieline_region_close(op->lent);
        if (status == TIELINE_BUSY) {
            push(&op->ep->closing, op);
            return;
        }
        op->lent = NULL;
        if (status < 0 && !op->error) {
            op->error = -fi_error(status);
            op->status = status;
        }
    }
    tell(op);
    op_free(op);
}

static void give_value(struct op *op, uint64_t value) {
    uint32_t narrow = (uint32_t)value;
    if (op->result)
        memcpy(op->result, op->width == 4 ? (void *)&narrow : (void *)&value, op->width);
}

static void count(struct op *op) {
    struct counts *counts = &op->ep->counts;
    switch (op->kind) {
    case OP_SEND:
        counts->sent++, counts->sent_bytes += op->len;
        break;
    case OP_RECV:
        counts->received++, counts->received_bytes += op->arrived;
        break;
    case OP_WRITE:
        counts->puts++, counts->put_bytes += op->len;
        break;
    case OP_READ:
        counts->gets++, counts->get_bytes += op->len;
        break;
    default:
        counts->atomics++;
    }
}

void op_ended(struct op *op, int32_t status, uint64_t value) {
    if (op->kind == OP_KEY) {
        keys_ended(op, status);
        op_free(op);
        return;
    }
    if (status == TIELINE_KEY_REJECTED && op->kind != OP_SEND && op->kind != OP_RECV) {
        /* A number chosen by a caller may refer to another region than before: resolve the number once
           more. */
        if (keys_forget(op) && !op->was_tried) {
            op->was_tried = true;
            op->parts = 0;
            push(&op->ep->again, op);
            return;
        }
    }
    if (status < 0 && !op->error) {
        op->error = -fi_error(status);
        op->status = status;
    }
    if (op->parts > 0)
        op->parts--;
    if (op->parts > 0)
        return;
    if (status >= 0 && op->width)
        give_value(op, value);
    if (!op->error)
        count(op);
    op_close(op);
}

/* Retries an operation, or a part of it, that could not start because there was no room or a key was missing. */
void op_retry(struct op *op) {
    int32_t status;
    switch (op->kind) {
    case OP_SEND:
        status = msg_flush(op);
        break;
    case OP_RECV:
        status = msg_take(op);
        break;
    case OP_ANSWER:
        status = keys_answer(op);
        if (status != TIELINE_AGAIN) {
            op_free(op);
            return;
        }
        break;
    default: {
        int error = rma_post(op);
        if (error == -FI_EAGAIN || error == -FI_EINPROGRESS) {
            push(&op->ep->again, op);
        } else if (error) {
            op->error = -error;
            op_close(op);
        }
        return;
    }
    }
    if (status == TIELINE_AGAIN)
        push(&op->ep->again, op);
    else if (status < 0)
        op_ended(op, status, 0);
}
