/*
 * A complete Tieline provider in C: an interface that is connected to itself.
 *
 *     cc -Wall -Werror -std=c11 -shared -fPIC -I include -o libtieline_loopback.so docs/examples/loopback.c
 *     tieline check ./libtieline_loopback.so
 *
 * Messages wait in a ring until poll delivers them. Put and get are memcpy through a table of registered regions,
 * so a revoked or forged key is an error instead of a stray write.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "tieline_provider.h"

TIELINE_PROVIDER_NOTE("loopback", "0.1.0", 0);

#define RIGHTS (TIELINE_ACCESS_REMOTE_READ | TIELINE_ACCESS_REMOTE_WRITE | TIELINE_ACCESS_REMOTE_ATOMIC)
enum { SLOTS = 256, PAYLOAD = 4096, REGIONS = 1024, IDENTITY = 4096 };

struct tieline_region {
    uint8_t *base;
    size_t len;
    uint64_t access, generation; /* generation 0: no key matches */
    uint64_t users, taken;       /* copies in progress; not free */
};
struct tieline_state { uint64_t room; };                                          /* per context */
struct tieline_domain {                                                           /* used from any thread */
    pthread_mutex_t lock;
    uint64_t room;
    struct tieline_region regions[REGIONS];
};
struct tieline_key { uint64_t slot, generation; };                                /* what pack_key writes */
struct address { char magic[8]; uint8_t worker[16]; uint64_t number; };

struct slot { uint32_t kind, id; uint64_t peer, header; size_t len; uint8_t data[PAYLOAD]; };
struct tieline_interface {                                                        /* one thread at a time */
    struct tieline_domain *domain;
    struct address address;
    uint64_t head, tail, shown, peers; /* slots head..tail are full; the core holds the first `shown` */
    uint64_t reserved;                 /* for messages that are being packed now */
    uint64_t room;                     /* the number that may wait */
    struct slot slots[SLOTS];
};
struct tieline_endpoint { struct tieline_interface *interface; uint64_t peer; };

static _Atomic uint64_t next_number = 1; /* for generations and interfaces: never reused */
static _Thread_local const char *why = "";

static int32_t fail(int32_t status, const char *text) { why = text; return status; }
static int32_t unknown(int32_t status) /* refuses fields of a record that this file does not know */
{
    return fail(status ? status : TIELINE_UNSUPPORTED_PARAM, "a parameter or a flag that loopback does not know");
}

/* ---- Messages ---- */

static int is_full(const struct tieline_interface *i) { return i->tail + i->reserved - i->head >= i->room; }

static struct slot *claim(struct tieline_interface *i, uint32_t kind, uint32_t id, uint64_t peer, uint64_t header)
{
    struct slot *s = &i->slots[i->tail % SLOTS];
    if (is_full(i)) return NULL; /* AGAIN: nothing was sent, which bounds the memory */
    s->kind = kind, s->id = id, s->peer = peer, s->header = header, s->len = 0;
    return s; /* it is sent when tail advances */
}

static int32_t am_short(struct tieline_endpoint *e, uint32_t id, uint64_t header, const uint8_t *data, size_t len)
{
    struct slot *s;
    if (len > PAYLOAD) return TIELINE_TOO_LARGE;
    if (!(s = claim(e->interface, TIELINE_EVENT_MESSAGE, id, e->peer, header))) return TIELINE_AGAIN;
    if (len) memcpy(s->data, data, len);
    s->len = len;
    e->interface->tail++;
    return TIELINE_OK;
}

static int64_t am_packed(struct tieline_endpoint *e, uint32_t id, uint64_t header,
                         int64_t (*pack)(void *, uint8_t *, size_t), void *argument, size_t most)
{
    struct tieline_interface *i = e->interface;
    uint8_t packed[PAYLOAD];
    struct slot *s;
    int64_t len;
    if (most > PAYLOAD) return TIELINE_TOO_LARGE;
    if (is_full(i)) return TIELINE_AGAIN; /* before the packer runs: it runs once */
    i->reserved++;                        /* the packer may send, and must leave room for this one */
    len = pack(argument, packed, most);
    i->reserved--;
    if (len < 0) return len; /* the application's own error: nothing is sent */
    if ((size_t)len > most) return TIELINE_INVALID;
    s = claim(i, TIELINE_EVENT_MESSAGE, id, e->peer, header);
    memcpy(s->data, packed, (size_t)len);
    s->len = (size_t)len;
    i->tail++;
    return len;
}

static int32_t am_zcopy(struct tieline_endpoint *e, uint32_t id, uint64_t header, const struct tieline_iov *iov, size_t count,
                        uint64_t cookie)
{
    struct slot *s = claim(e->interface, TIELINE_EVENT_MESSAGE, id, e->peer, header);
    (void)cookie; /* done on return: no completion follows */
    if (!s) return TIELINE_AGAIN;
    for (size_t n = 0; n < count; n++) {
        if (iov[n].len > PAYLOAD - s->len) return TIELINE_TOO_LARGE;
        if (iov[n].len) memcpy(s->data + s->len, iov[n].base, iov[n].len);
        s->len += iov[n].len;
    }
    e->interface->tail++;
    return TIELINE_OK;
}

static int64_t poll_interface(struct tieline_interface *i, struct tieline_event *out, uint32_t max)
{
    i->head += i->shown; /* release what the previous call returned */
    for (i->shown = 0; i->shown < max && i->head + i->shown < i->tail; i->shown++) {
        struct slot *s = &i->slots[(i->head + i->shown) % SLOTS];
        out[i->shown] = (struct tieline_event){ .kind = s->kind, .id = s->id, .peer = s->peer,
                                                .header = s->header, .data = s->data, .len = s->len };
    }
    return (int64_t)i->shown;
}

/* ---- Put and get ---- */

static struct tieline_region *find(struct tieline_domain *d, const struct tieline_key *k) /* with the lock held */
{
    struct tieline_region *r = k->slot < REGIONS ? &d->regions[k->slot] : NULL;
    return r && r->generation && r->generation == k->generation ? r : NULL;
}

static int32_t copy(struct tieline_endpoint *e, const struct tieline_rma *op, uint64_t right)
{
    struct tieline_domain *d = e->interface->domain;
    int32_t status = TIELINE_OK;
    struct tieline_region *r;
    if (tieline_not_understood(op->flags, TIELINE_OP_REMOTE_COMPLETION)) return TIELINE_UNSUPPORTED_PARAM;
    pthread_mutex_lock(&d->lock);
    r = find(d, op->key);
    if (!r || !(r->access & right)) status = TIELINE_KEY_REJECTED;
    else if (op->offset > r->len || op->len > r->len - op->offset) status = TIELINE_OUT_OF_RANGE;
    else r->users++; /* unlocked from here on: deregister returns AGAIN meanwhile, and does not wait */
    pthread_mutex_unlock(&d->lock);
    if (status) return status;
    for (size_t n = 0, at = 0; status == TIELINE_OK && n < op->iov_count; at += op->iov[n++].len) {
        uint8_t *remote = r->base + op->offset + at, *local = op->iov[n].base;
        if (op->iov[n].len > op->len - at) status = TIELINE_INVALID;
        else if (right == TIELINE_ACCESS_REMOTE_WRITE) memmove(remote, local, op->iov[n].len);
        else memmove(local, remote, op->iov[n].len);
    }
    atomic_thread_fence(memory_order_acq_rel); /* orders the copy ahead of what this thread loads and stores later */
    pthread_mutex_lock(&d->lock);
    r->users--;
    pthread_mutex_unlock(&d->lock);
    return status;
}

static int32_t put(struct tieline_endpoint *e, const struct tieline_rma *op)
{
    return copy(e, op, TIELINE_ACCESS_REMOTE_WRITE);
}
static int32_t get(struct tieline_endpoint *e, const struct tieline_rma *op)
{
    return copy(e, op, TIELINE_ACCESS_REMOTE_READ);
}
static int32_t flush(struct tieline_endpoint *e, uint64_t cookie) { (void)e, (void)cookie; return TIELINE_OK; }
static int32_t fence(struct tieline_endpoint *e) { (void)e; return TIELINE_OK; }

static int32_t import_key(struct tieline_endpoint *e, const struct tieline_import_params *in, struct tieline_key **out)
{
    struct tieline_import_params params;
    struct tieline_domain *d = e->interface->domain;
    struct tieline_key k, *copied;
    struct tieline_region *r;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (params.len != sizeof k) return fail(TIELINE_KEY_REJECTED, "a loopback key has 16 bytes");
    memcpy(&k, params.bytes, sizeof k); /* the bytes may be unaligned */
    pthread_mutex_lock(&d->lock);
    r = find(d, &k);
    pthread_mutex_unlock(&d->lock);
    if (!r) return fail(TIELINE_KEY_REJECTED, "no region has this key");
    if (!(copied = malloc(sizeof k))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    *copied = k;
    *out = copied;
    return TIELINE_OK;
}

static void drop_key(struct tieline_endpoint *e, struct tieline_key *k) { (void)e; free(k); }

/* ---- The domain ---- */

static int32_t register_memory(struct tieline_domain *d, const struct tieline_register_params *in,
                               struct tieline_memory_region *out)
{
    struct tieline_register_params params;
    struct tieline_region *r = NULL;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, TIELINE_REGISTER_DMABUF)) return unknown(status);
    if (params.access & ~RIGHTS)
        return fail(TIELINE_UNSUPPORTED_PARAM, "a right that loopback does not know");
    if (params.kind != TIELINE_MEMORY_KIND_HOST || params.flags & TIELINE_REGISTER_DMABUF)
        return fail(TIELINE_UNSUPPORTED, "loopback registers the processor's memory only, by its address");
    pthread_mutex_lock(&d->lock);
    for (size_t n = 0; n < REGIONS && !r; n++)
        if (!d->regions[n].taken) r = &d->regions[n];
    if (r) *r = (struct tieline_region){ .base = params.base, .len = params.len, .access = params.access,
                                         .generation = atomic_fetch_add(&next_number, 1), .taken = 1 };
    pthread_mutex_unlock(&d->lock);
    if (!r) return fail(TIELINE_NO_MEMORY, "all 1024 regions are in use");
    struct tieline_memory_region region = { .size = sizeof region, .handle = r, .base = params.base,
                                            .len = params.len };
    tieline_write_record(out, &region, sizeof region);
    return TIELINE_OK;
}

static int32_t end(struct tieline_domain *d, struct tieline_region *r, int free_it)
{
    uint64_t users;
    pthread_mutex_lock(&d->lock);
    r->generation = 0; /* from here on no key matches */
    users = r->users;
    if (free_it && !users) r->taken = 0;
    pthread_mutex_unlock(&d->lock);
    return users ? TIELINE_AGAIN : TIELINE_OK;
}
static int32_t revoke(struct tieline_domain *d, struct tieline_region *r) { return end(d, r, 0); }
static int32_t deregister(struct tieline_domain *d, struct tieline_region *r) { return end(d, r, 1); }

static int64_t pack_key(struct tieline_domain *d, const struct tieline_key_params *in, uint8_t *out, size_t capacity)
{
    struct tieline_key_params params;
    struct tieline_key k;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (params.access & ~RIGHTS) return fail(TIELINE_UNSUPPORTED_PARAM, "a right that loopback does not know");
    if (params.access & ~params.region->access) return fail(TIELINE_INVALID, "a right that the region has not");
    if (params.offset > params.region->len || params.len > params.region->len - params.offset)
        return fail(TIELINE_OUT_OF_RANGE, "a part that leaves the region");
    if (params.offset || (params.len && params.len != params.region->len) ||
        (params.access && params.access != params.region->access))
        return fail(TIELINE_UNSUPPORTED, "loopback keys lead to whole regions, with all their rights");
    k = (struct tieline_key){ (uint64_t)(params.region - d->regions), params.region->generation };
    if (capacity >= sizeof k) memcpy(out, &k, sizeof k);
    return sizeof k; /* even if it did not fit */
}

static int32_t query_modules(struct tieline_domain *domain, struct tieline_module_attr *out, size_t capacity, size_t *count)
{
    struct tieline_cost message = { 50, 50, 5e9 }, rma = { 50, 0, 10e9 };
    struct tieline_module_attr attr = {
        .size = sizeof attr, .name = "self", .role = TIELINE_ROLE_DATA, .connects = TIELINE_CONNECTS_TO_INTERFACE,
        .caps = TIELINE_CAP_AM_SHORT | TIELINE_CAP_AM_PACKED | TIELINE_CAP_AM_ZCOPY | TIELINE_CAP_PUT |
                TIELINE_CAP_GET | TIELINE_CAP_REMOTE_COMPLETION | TIELINE_CAP_PASSIVE_TARGET |
                TIELINE_CAP_NEEDS_POLL | TIELINE_CAP_LOCAL_ONLY | TIELINE_CAP_CHECKS_KEYS |
                TIELINE_CAP_CONNECTED_SEND | TIELINE_CAP_SYNCHRONOUS,
        .priority = 1, .max_iov = 64, .max_short = PAYLOAD, .max_packed = PAYLOAD, .max_zcopy = PAYLOAD,
        .cost = { message, message, rma, rma },
        .max_address_len = sizeof(struct address), .max_identity_len = IDENTITY,
    };
    (void)domain;
    *count = 1;
    if (capacity) tieline_write_record(out, &attr, sizeof attr);
    return TIELINE_OK;
}

static void close_domain(struct tieline_domain *d) { free(d); }

/* ---- Interface and endpoint ---- */

static int32_t open_interface(struct tieline_domain *domain, const struct tieline_interface_params *in,
                              struct tieline_interface **out)
{
    struct tieline_interface_params params;
    struct tieline_interface *i;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (params.module_len != 4 || memcmp(params.module, "self", 4))
        return fail(TIELINE_NO_DEVICE, "the only module is `self`");
    if (!(i = calloc(1, sizeof *i))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    i->domain = domain, i->room = domain->room;
    i->address = (struct address){ .magic = "loopbk1", .number = atomic_fetch_add(&next_number, 1) };
    memcpy(i->address.worker, params.worker_id, 16); /* no other worker has it, here or elsewhere */
    *out = i;
    return TIELINE_OK;
}

static int64_t interface_address(struct tieline_interface *i, uint8_t *out, size_t capacity)
{
    if (capacity) memcpy(out, &i->address, capacity < sizeof i->address ? capacity : sizeof i->address);
    return sizeof i->address; /* the whole length, even where it did not fit */
}

static int32_t reachable(struct tieline_interface *i, const uint8_t *address, size_t len)
{
    if (len == sizeof i->address && !memcmp(address, &i->address, len)) return TIELINE_OK;
    return fail(TIELINE_UNREACHABLE, "loopback connects an interface only to itself");
}

static int32_t connect_endpoint(struct tieline_interface *i, const struct tieline_endpoint_params *in,
                                struct tieline_endpoint **out)
{
    struct tieline_endpoint_params params;
    struct tieline_endpoint *e;
    struct slot *s;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if ((status = reachable(i, params.address, params.address_len))) return status; /* it has set the error */
    if (params.identity_len > IDENTITY) return fail(TIELINE_TOO_LARGE, "the identity is longer than 4096 bytes");
    if (!(s = claim(i, TIELINE_EVENT_PEER_ARRIVED, 0, i->peers, 0)))
        return fail(TIELINE_AGAIN, "no room for the arrival: poll and connect again");
    if (!(e = malloc(sizeof *e))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    if (params.identity_len) memcpy(s->data, params.identity, s->len = params.identity_len);
    i->tail++;
    *e = (struct tieline_endpoint){ i, i->peers++ };
    *out = e;
    return TIELINE_OK;
}

static void close_interface(struct tieline_interface *i) { free(i); }
static void close_endpoint(struct tieline_endpoint *e) { free(e); }

static const struct tieline_domain_ops domain_ops = {
    .size = sizeof domain_ops, .close = close_domain, .query_modules = query_modules,
    .open_interface = open_interface, .register_ = register_memory, .deregister = deregister,
    .pack_key = pack_key, .revoke = revoke };
static const struct tieline_interface_ops interface_ops = {
    .size = sizeof interface_ops, .poll = poll_interface, .close = close_interface, .address = interface_address,
    .reachable = reachable, .connect = connect_endpoint };
static const struct tieline_endpoint_ops endpoint_ops = {
    .size = sizeof endpoint_ops, .am_short = am_short, .am_packed = am_packed, .am_zcopy = am_zcopy, .put = put,
    .get = get, .flush = flush, .fence = fence, .close = close_endpoint, .import_key = import_key,
    .drop_key = drop_key };

/* ---- The provider ---- */

static int32_t query_domains(struct tieline_state *state, struct tieline_domain_attr *out, size_t capacity, size_t *count)
{
    struct tieline_domain_attr attr = { .size = sizeof attr, .name = "loopback",
                                        .caps = TIELINE_MEMORY_CAP_REGISTER, .max_key_len = sizeof(struct tieline_key) };
    (void)state;
    *count = 1;
    if (capacity) tieline_write_record(out, &attr, sizeof attr);
    return TIELINE_OK;
}

static int32_t open_domain(struct tieline_state *state, const struct tieline_domain_params *in,
                           struct tieline_domain **out)
{
    struct tieline_domain_params params;
    struct tieline_domain *d;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    if (status || tieline_not_understood(params.flags, 0)) return unknown(status);
    if (params.name_len != sizeof "loopback" - 1 || memcmp(params.name, "loopback", params.name_len))
        return fail(TIELINE_NO_DEVICE, "the only domain is `loopback`");
    if (!(d = calloc(1, sizeof *d))) return fail(TIELINE_NO_MEMORY, "malloc has no memory");
    pthread_mutex_init(&d->lock, NULL);
    d->room = state->room;
    *out = d;
    return TIELINE_OK;
}

static int64_t last_error(struct tieline_state *state, uint8_t *out, size_t capacity)
{
    size_t len = strlen(why);
    (void)state;
    if (capacity) memcpy(out, why, len < capacity ? len : capacity);
    return (int64_t)len;
}

/* The variables that an operator may set. The variables take effect in contexts that are opened afterwards. `tieline
   config` lists them. */
#define TEXT(field, text) .field = (const uint8_t *)text, .field##_len = sizeof text - 1
static const char room_name[] = "TIELINE_LOOPBACK_ROOM";
static const struct tieline_config_var variables[] = {
    { .size = sizeof *variables, TEXT(name, "TIELINE_LOOPBACK_ROOM"), TEXT(default_value, "256"),
      TEXT(doc, "The number of messages that may wait for their receiver before sends return AGAIN."),
      .kind = TIELINE_CONFIG_COUNT, .least = 64, .most = SLOTS },
};

static int32_t configure(const struct tieline_host *host, uint64_t *room)
{
    struct tieline_config_value value = { .size = sizeof value };
    int32_t status;
    if (host->size < offsetof(struct tieline_host, clock_ns)) return TIELINE_OK; /* a host without variables */
    if ((status = host->config_declare(host->context, variables, 1))) return status; /* the host has the error text */
    status = host->config_get(host->context, (const uint8_t *)room_name, sizeof room_name - 1, &value);
    if (!status) *room = value.number;
    return status;
}

static void quiesce(struct tieline_state *state) { free(state); }

int32_t tieline_provider_v1(const struct tieline_host *host, struct tieline_provider_ops *out)
{
    struct tieline_provider_ops ops = {
        .abi_minor = TIELINE_ABI_MINOR, .query_domains = query_domains, .open_domain = open_domain,
        .last_error = last_error, .domain = &domain_ops, .interface = &interface_ops, .endpoint = &endpoint_ops,
        .quiesce = quiesce };
    int32_t status;
    if (!host || !out) return TIELINE_INVALID;
    if (!(ops.state = calloc(1, sizeof *ops.state))) return TIELINE_NO_MEMORY;
    ops.state->room = SLOTS;
    if ((status = configure(host, &ops.state->room))) {
        free(ops.state);
        return status;
    }
    tieline_write_record(out, &ops, sizeof ops);
    out->size = sizeof ops;
    return TIELINE_OK;
}
