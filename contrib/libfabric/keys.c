/*
 * The keys of peers, and the numbers by which the libfabric user refers to them.
 *
 * If the provider chooses keys, the number is the handle of Tieline's region, and the library may query its owner for the key. If the
 * caller chooses, a message first queries the owner for the handle of a number. Both replies need the owner's progress.
 */
#include "fi.h"
#include <stdlib.h>
#include <string.h>

static struct known_key *place_of(struct peer *peer, uint64_t number) {
    if (!peer->keys)
        peer->keys = calloc(KNOWN_KEYS, sizeof *peer->keys);
    return peer->keys ? &peer->keys[(number * UINT64_C(0x9e3779b97f4a7c15)) >> 56] : NULL;
}

static void forget(struct known_key *known) {
    if (known->key)
        tieline_key_drop(known->key);
    *known = (struct known_key){0};
}

static int ask_owner(struct peer *peer, struct known_key *known) {
    int32_t status = tieline_send(peer->to, ID_KEY_ASKED, known->number, NULL, 0, NULL, NULL);
    if (status < 0)
        return status == TIELINE_AGAIN ? -FI_EINPROGRESS : fi_error(status);
    known->state = KEY_ASKED;
    return -FI_EINPROGRESS;
}

static int look_up(struct ep *ep, struct peer *peer, fi_addr_t addr, struct known_key *known) {
    struct op *op = op_new(ep, OP_KEY, 0, NULL);
    if (!op)
        return -FI_ENOMEM;
    op->to = addr;
    op->key = known->number;
    struct tieline_how how = how_of(op);
    int32_t status = tieline_endpoint_key_by_handle(peer->to, known->handle, &how, &known->key, NULL);
    if (status == TIELINE_PENDING) {
        ep->counts.keys_asked++;
        known->state = KEY_LOOKED_UP;
        return -FI_EINPROGRESS;
    }
    op_free(op);
    if (status < 0)
        return status == TIELINE_AGAIN ? -FI_EINPROGRESS : fi_error(status);
    known->state = KEY_READY;
    return 0;
}

int key_of(struct ep *ep, struct peer *peer, fi_addr_t addr, uint64_t number, struct tieline_key **key) {
    struct known_key *known = place_of(peer, number);
    int error = 0;
    if (!known)
        return -FI_ENOMEM;
    if (known->state != KEY_EMPTY && known->number != number) {
        /* The place in the cache holds another key: replace that key unless its query is in progress. */
        if (known->state == KEY_ASKED || known->state == KEY_LOOKED_UP)
            return -FI_EINPROGRESS;
        forget(known);
    }
    if (known->state == KEY_EMPTY) {
        known->number = number;
        if (!ep->domain->own_keys)
            return ask_owner(peer, known);
        known->handle = number;
        known->state = KEY_TOLD;
    }
    switch (known->state) {
    case KEY_TOLD:
        error = look_up(ep, peer, addr, known);
        break;
    case KEY_READY:
        break;
    case KEY_REFUSED:
        error = -FI_EKEYREJECTED;
        forget(known);
        break;
    default:
        error = -FI_EINPROGRESS;
    }
    *key = known->key;
    return error;
}

void keys_ended(struct op *op, int32_t status) {
    struct known_key *known = place_of(&op->ep->peers[op->to], op->key);
    if (known && known->state == KEY_LOOKED_UP && known->number == op->key)
        known->state = status < 0 ? KEY_REFUSED : KEY_TOLD;
}

static struct known_key *ready(const struct op *op) {
    struct known_key *known = place_of(&op->ep->peers[op->to], op->key);
    return known && known->state == KEY_READY && known->number == op->key ? known : NULL;
}

void keys_used(const struct op *op) {
    struct known_key *known = ready(op);
    if (known)
        known->was_used = true;
}

bool keys_forget(const struct op *op) {
    struct known_key *known = ready(op);
    bool was_used = known && known->was_used;
    if (known)
        forget(known);
    return was_used && !op->ep->domain->own_keys;
}

void keys_close(struct peer *peer) {
    for (size_t i = 0; peer->keys && i < KNOWN_KEYS; i++)
        forget(&peer->keys[i]);
    free(peer->keys);
}

/* Sends the owner's reply: the handle's bytes, or none. The reply is sent outside the handler, where a connection to the requester
   may be opened. */
int32_t keys_answer(struct op *op) {
    struct tieline_endpoint *to;
    int32_t status = tieline_worker_endpoint_to(op->ep->worker, op->number, &to);
    if (status < 0)
        return status;
    for (struct mr *mr = op->ep->domain->mrs; mr; mr = mr->next)
        if (mr->has_key && mr->fid.key == op->key)
            return tieline_send(to, ID_KEY_TOLD, op->key, &mr->handle, sizeof mr->handle, NULL, NULL);
    return tieline_send(to, ID_KEY_TOLD, op->key, NULL, 0, NULL, NULL);
}

static void asked(void *user, const struct tieline_message *message) {
    struct ep *ep = user;
    struct op *op = op_new(ep, OP_ANSWER, 0, NULL);
    if (!op)
        return;
    tieline_message_peer(message, &op->number);
    op->key = message->header;
    push(&ep->again, op);
}

static void told(void *user, const struct tieline_message *message) {
    struct ep *ep = user;
    uint32_t number = 0;
    fi_addr_t addr;
    tieline_message_peer(message, &number);
    struct peer *peer = peer_by_number(ep, number, &addr);
    struct known_key *known = peer ? place_of(peer, message->header) : NULL;
    if (!known || known->state != KEY_ASKED || known->number != message->header)
        return;
    known->state = KEY_REFUSED;
    if (message->len == sizeof known->handle && !message->is_announced) {
        memcpy(&known->handle, message->payload, sizeof known->handle);
        known->state = KEY_TOLD;
    }
}

int32_t keys_open(struct ep *ep) {
    int32_t status = tieline_worker_on_message(ep->worker, ID_KEY_ASKED, asked, ep);
    return status < 0 ? status : tieline_worker_on_message(ep->worker, ID_KEY_TOLD, told, ep);
}
