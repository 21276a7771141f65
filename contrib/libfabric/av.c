/* Address vectors: lists of names. Both types of vector number the names 0, 1, 2. A name is resolved at the first
   operation to it. */
#include "fi.h"
#include <stdlib.h>
#include <string.h>

static int av_close(struct fid *fid) {
    struct av *av = container_of(fid, struct av, fid.fid);
    if (av->users)
        return -FI_EBUSY;
    av->domain->users--;
    free(av->addresses);
    free(av);
    return 0;
}

static int av_bind(struct fid *fid, struct fid *other, uint64_t flags) {
    (void)fid, (void)flags;
    return other->fclass == FI_CLASS_EQ ? 0 : -FI_EINVAL;
}

static int no_control(struct fid *fid, int command, void *arg) {
    (void)fid, (void)command, (void)arg;
    return -FI_ENOSYS;
}

static int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) {
    (void)fid, (void)name, (void)flags, (void)ops, (void)context;
    return -FI_ENOSYS;
}

static bool is_address(const struct address *address) {
    return address->len > 0 && address->len <= sizeof address->name;
}

static int insert(struct fid_av *fid, const void *addr, size_t count, fi_addr_t *fi_addr, uint64_t flags, void *context) {
    struct av *av = container_of(fid, struct av, fid);
    const uint8_t *bytes = addr;
    int *errors = flags & FI_SYNC_ERR ? context : NULL;
    int good = 0;
    pthread_mutex_lock(&av->domain->lock);
    if (av->count + count > av->room) {
        size_t room = (av->count + count) * 2;
        struct address *more = realloc(av->addresses, room * sizeof *more);
        if (!more) {
            pthread_mutex_unlock(&av->domain->lock);
            return -FI_ENOMEM;
        }
        av->addresses = more;
        av->room = room;
    }
    for (size_t i = 0; i < count; i++) {
        struct address *place = &av->addresses[av->count];
        memcpy(place, bytes + i * sizeof *place, sizeof *place);
        bool is_good = is_address(place);
        /* A malformed address also gets a number. */
        if (!is_good)
            place->len = 0;
        if (fi_addr)
            fi_addr[i] = is_good ? av->count : FI_ADDR_NOTAVAIL;
        if (errors)
            errors[i] = is_good ? 0 : FI_EADDRNOTAVAIL;
        av->count++;
        good += is_good;
    }
    pthread_mutex_unlock(&av->domain->lock);
    return good;
}

static int insertsvc(struct fid_av *av, const char *node, const char *service, fi_addr_t *fi_addr, uint64_t flags,
                     void *context) {
    (void)av, (void)node, (void)service, (void)fi_addr, (void)flags, (void)context;
    return -FI_ENOSYS;
}

static int insertsym(struct fid_av *av, const char *node, size_t nodes, const char *service, size_t services,
                     fi_addr_t *fi_addr, uint64_t flags, void *context) {
    (void)av, (void)node, (void)nodes, (void)service, (void)services, (void)fi_addr, (void)flags, (void)context;
    return -FI_ENOSYS;
}

/* Removal has no effect: numbers are not reused, and connections stay open until the endpoint is closed. */
static int remove_addresses(struct fid_av *fid, fi_addr_t *fi_addr, size_t count, uint64_t flags) {
    struct av *av = container_of(fid, struct av, fid);
    int result = 0;
    (void)flags;
    pthread_mutex_lock(&av->domain->lock);
    for (size_t i = 0; i < count; i++) {
        if (fi_addr[i] < av->count)
            av->addresses[fi_addr[i]].len = 0;
        else
            result = -FI_EINVAL;
    }
    pthread_mutex_unlock(&av->domain->lock);
    return result;
}

static int lookup(struct fid_av *fid, fi_addr_t fi_addr, void *addr, size_t *len) {
    struct av *av = container_of(fid, struct av, fid);
    int result = -FI_EINVAL;
    pthread_mutex_lock(&av->domain->lock);
    if (fi_addr < av->count && av->addresses[fi_addr].len) {
        memcpy(addr, &av->addresses[fi_addr], *len < sizeof(struct address) ? *len : sizeof(struct address));
        *len = sizeof(struct address);
        result = 0;
    }
    pthread_mutex_unlock(&av->domain->lock);
    return result;
}

static const char *straddr(struct fid_av *av, const void *addr, char *buf, size_t *len) {
    (void)av;
    struct address address;
    char text[2 * sizeof address.name + 16] = "tieline:";
    memcpy(&address, addr, sizeof address);
    if (is_address(&address))
        for (size_t i = 0; i < address.len; i++)
            snprintf(text + strlen(text), 3, "%02x", address.name[i]);
    snprintf(buf, *len, "%s", text);
    *len = strlen(text) + 1;
    return buf;
}

static int no_set(struct fid_av *av, struct fi_av_set_attr *attr, struct fid_av_set **set, void *context) {
    (void)av, (void)attr, (void)set, (void)context;
    return -FI_ENOSYS;
}

static struct fi_ops av_fid_ops = {
    .size = sizeof(struct fi_ops), .close = av_close, .bind = av_bind, .control = no_control, .ops_open = no_ops_open};
static struct fi_ops_av av_ops = {
    .size = sizeof(struct fi_ops_av),
    .insert = insert,
    .insertsvc = insertsvc,
    .insertsym = insertsym,
    .remove = remove_addresses,
    .lookup = lookup,
    .straddr = straddr,
    .av_set = no_set,
};

int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context) {
    /* Named vectors would be shared between processes; FI_EVENT would insert in the background. Neither is supported. */
    if (attr && (attr->name || attr->flags))
        return -FI_ENOSYS;
    struct av *made = calloc(1, sizeof *made);
    if (!made)
        return -FI_ENOMEM;
    if (attr && attr->type == FI_AV_UNSPEC)
        attr->type = FI_AV_TABLE;
    made->domain = container_of(domain, struct domain, fid);
    made->domain->users++;
    made->fid.fid = (struct fid){.fclass = FI_CLASS_AV, .context = context, .ops = &av_fid_ops};
    made->fid.ops = &av_ops;
    *av = &made->fid;
    return 0;
}
