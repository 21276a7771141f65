/*
 * A complete connection-only provider in C: datagrams between the connectors of one process.
 *
 *     cc -Wall -Werror -std=c11 -shared -fPIC -I include -o libtieline_letterbox.so docs/examples/letterbox.c
 *     tieline check ./libtieline_letterbox.so
 *
 * A connector is a ring of events and an eventfd. Its address consists of the process and a number that is never
 * reused. A datagram to a number that no longer exists is returned as PEER_LEFT with the reason.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "tieline_provider.h"

TIELINE_PROVIDER_NOTE("letterbox", "0.1.0", 0);

enum { SLOTS = 64, LONGEST = 4096 };

struct address { char magic[8]; uint64_t pid, number; };
struct item { uint32_t kind; int32_t status; uint64_t header; size_t len; uint8_t data[LONGEST]; };
struct tieline_connector {
    struct tieline_connector *next;
    struct address address;
    int wake;
    int again, room; /* a send returned AGAIN; there is room since */
    uint64_t head, tail, shown; /* items head..tail are full; the core holds the first `shown` */
    struct item items[SLOTS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all boxes: connectors belong to different threads */
static struct tieline_connector *boxes;
static uint64_t last_number;
static _Thread_local const char *why = "";

static int32_t fail(int32_t status, const char *text) { why = text; return status; }

/* ---- the connector ---- */

static int put(struct tieline_connector *b, uint32_t kind, int32_t status, uint64_t header, const void *data, size_t len)
{
    struct item *item = &b->items[b->tail % SLOTS];
    uint64_t one = 1;
    if (b->tail - b->head == SLOTS) return 0; /* AGAIN: nothing was sent, which bounds the memory */
    item->kind = kind, item->status = status, item->header = header, item->len = len;
    if (len) memcpy(item->data, data, len);
    b->tail++;
    return write(b->wake, &one, sizeof one) == sizeof one;
}

static const char *parse(struct address *to, const uint8_t *bytes, size_t len)
{
    if (len != sizeof *to) return "the address is no letterbox's: its length is wrong";
    memcpy(to, bytes, len);
    if (memcmp(to->magic, "letterb", 8)) return "the address is no letterbox's";
    if (to->pid != (uint64_t)getpid()) return "letterboxes are reached by their own process only";
    return NULL;
}

static int32_t reachable(struct tieline_connector *b, const uint8_t *address, size_t len)
{
    struct address to;
    const char *no = parse(&to, address, len);
    (void)b;
    return no ? fail(TIELINE_UNREACHABLE, no) : TIELINE_OK;
}

static int32_t send(struct tieline_connector *own, const uint8_t *address, size_t len, const uint8_t *datagram,
                    size_t size)
{
    static const char gone[] = "that letterbox is closed";
    struct tieline_connector *b;
    struct address to;
    int done;
    if (size > LONGEST) return TIELINE_TOO_LARGE;
    if (parse(&to, address, len)) return TIELINE_UNREACHABLE;
    pthread_mutex_lock(&lock);
    for (b = boxes; b && b->address.number != to.number;) b = b->next;
    if (b) done = put(b, TIELINE_EVENT_DATAGRAM, 0, 0, datagram, size);
    else done = put(own, TIELINE_EVENT_PEER_LEFT, TIELINE_UNREACHABLE, tieline_address_hash(address, len), gone, sizeof gone - 1);
    own->again = !done;
    pthread_mutex_unlock(&lock);
    return done ? TIELINE_OK : TIELINE_AGAIN;
}

static int64_t poll(struct tieline_connector *b, struct tieline_event *out, uint32_t max)
{
    uint64_t one = 1;
    uint32_t n = 0;
    pthread_mutex_lock(&lock);
    b->room = 0;
    b->head += b->shown; /* release the events that the previous call returned */
    for (struct tieline_connector *other = boxes; other && b->shown; other = other->next) {
        if (!other->again) continue;
        other->again = 0, other->room = 1; /* a sender that sleeps after AGAIN retries */
        if (write(other->wake, &one, sizeof one) < 0) { /* already readable */ }
    }
    for (; n < max && b->head + n < b->tail; n++) {
        struct item *item = &b->items[(b->head + n) % SLOTS];
        out[n] = (struct tieline_event){ .kind = item->kind, .status = item->status, .header = item->header,
                                         .data = item->data, .len = item->len };
    }
    b->shown = n;
    pthread_mutex_unlock(&lock);
    return n;
}

static int32_t arm(struct tieline_connector *b)
{
    uint64_t count;
    int32_t busy;
    pthread_mutex_lock(&lock);
    busy = b->room || b->head + b->shown < b->tail;
    if (!busy && read(b->wake, &count, sizeof count) < 0) { /* already quiet */ }
    pthread_mutex_unlock(&lock);
    return busy;
}

static int32_t event_fd(struct tieline_connector *b) { return b->wake; }

static int64_t box_address(struct tieline_connector *b, uint8_t *out, size_t capacity)
{
    memcpy(out, &b->address, capacity < sizeof b->address ? capacity : sizeof b->address);
    return sizeof b->address;
}

static int32_t open_connector(struct tieline_domain *domain, const struct tieline_interface_params *in,
                              struct tieline_connector **out)
{
    struct tieline_interface_params params;
    struct tieline_connector *b;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    (void)domain;
    if (status) return status;
    if (params.module_len != 3 || memcmp(params.module, "box", 3))
        return fail(TIELINE_NO_DEVICE, "the only module is `box`");
    if (!(b = calloc(1, sizeof *b))) return TIELINE_NO_MEMORY;
    if ((b->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        free(b);
        return fail(TIELINE_NO_MEMORY, "no eventfd: too many open files");
    }
    pthread_mutex_lock(&lock);
    b->address = (struct address){ "letterb", (uint64_t)getpid(), ++last_number };
    b->next = boxes, boxes = b;
    pthread_mutex_unlock(&lock);
    *out = b;
    return TIELINE_OK;
}

static void close_connector(struct tieline_connector *b)
{
    struct tieline_connector **at = &boxes;
    pthread_mutex_lock(&lock);
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    pthread_mutex_unlock(&lock);
    close(b->wake);
    free(b);
}

static const struct tieline_connector_ops connector_ops = {
    .size = sizeof connector_ops, .poll = poll, .close = close_connector, .address = box_address,
    .reachable = reachable, .send = send, .arm = arm, .event_fd = event_fd };

/* ---- domain and provider ---- */

static int32_t query_modules(struct tieline_domain *domain, struct tieline_module_attr *out, size_t capacity, size_t *count)
{
    struct tieline_module_attr attr = {
        .size = sizeof attr, .name = "box", .role = TIELINE_ROLE_CONNECTION_ONLY,
        .connects = TIELINE_CONNECTS_TO_INTERFACE,
        .caps = TIELINE_CAP_PEER_FAILURE | TIELINE_CAP_EVENT_FD | TIELINE_CAP_NEEDS_POLL | TIELINE_CAP_LOCAL_ONLY,
        .priority = 1, .max_address_len = sizeof(struct address), .max_datagram = LONGEST, .reliable = 1,
    };
    (void)domain;
    *count = 1;
    if (capacity) tieline_write_record(out, &attr, sizeof attr);
    return TIELINE_OK;
}

static void close_domain(struct tieline_domain *domain) { (void)domain; }

static const struct tieline_domain_ops domain_ops = {
    .size = sizeof domain_ops, .close = close_domain, .query_modules = query_modules,
    .open_connector = open_connector };

static int32_t query_domains(struct tieline_state *state, struct tieline_domain_attr *out, size_t capacity, size_t *count)
{
    struct tieline_domain_attr attr = { .size = sizeof attr, .name = "letterbox" };
    (void)state;
    *count = 1;
    if (capacity) tieline_write_record(out, &attr, sizeof attr);
    return TIELINE_OK;
}

static int32_t open_domain(struct tieline_state *state, const struct tieline_domain_params *in,
                           struct tieline_domain **out)
{
    struct tieline_domain_params params;
    int32_t status = tieline_read_params(&params, sizeof params, in);
    (void)state;
    if (status) return status;
    if (params.name_len != 9 || memcmp(params.name, "letterbox", 9))
        return fail(TIELINE_NO_DEVICE, "the only domain is `letterbox`");
    *out = (struct tieline_domain *)&boxes; /* it has no state of its own */
    return TIELINE_OK;
}

static int64_t last_error(struct tieline_state *state, uint8_t *out, size_t capacity)
{
    size_t len = strlen(why);
    (void)state;
    memcpy(out, why, len < capacity ? len : capacity);
    return (int64_t)len;
}

int32_t tieline_provider_v1(const struct tieline_host *host, struct tieline_provider_ops *out)
{
    struct tieline_provider_ops ops = {
        .abi_minor = TIELINE_ABI_MINOR, .query_domains = query_domains, .open_domain = open_domain,
        .last_error = last_error, .domain = &domain_ops, .connector = &connector_ops };
    if (!host || !out) return TIELINE_INVALID;
    tieline_write_record(out, &ops, sizeof ops);
    out->size = sizeof ops;
    return TIELINE_OK;
}
