/* Fabrics, event queues (which stay empty), and domains, each of which is a Tieline context. */
#include "fi.h"
#include <stdlib.h>
#include <string.h>

static int eq_close(struct fid *fid) {
    free(fid);
    return 0;
}

static ssize_t eq_read(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, uint64_t flags) {
    (void)eq, (void)event, (void)buf, (void)len, (void)flags;
    return -FI_EAGAIN;
}

static ssize_t eq_readerr(struct fid_eq *eq, struct fi_eq_err_entry *buf, uint64_t flags) {
    (void)eq, (void)buf, (void)flags;
    return -FI_EAGAIN;
}

static ssize_t eq_write(struct fid_eq *eq, uint32_t event, const void *buf, size_t len, uint64_t flags) {
    (void)eq, (void)event, (void)buf, (void)len, (void)flags;
    return -FI_ENOSYS;
}

static ssize_t eq_sread(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, int timeout, uint64_t flags) {
    (void)eq, (void)event, (void)buf, (void)len, (void)timeout, (void)flags;
    return -FI_ENOSYS;
}

static const char *eq_strerror(struct fid_eq *eq, int prov_errno, const void *data, char *buf, size_t len) {
    (void)eq, (void)prov_errno, (void)data;
    if (buf && len)
        snprintf(buf, len, "none");
    return "none";
}

static int no_bind(struct fid *fid, struct fid *other, uint64_t flags) {
    (void)fid, (void)other, (void)flags;
    return -FI_ENOSYS;
}

static int no_control(struct fid *fid, int command, void *arg) {
    (void)fid, (void)command, (void)arg;
    return -FI_ENOSYS;
}

static int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) {
    (void)fid, (void)name, (void)flags, (void)ops, (void)context;
    return -FI_ENOSYS;
}

static struct fi_ops eq_fid_ops = {
    .size = sizeof(struct fi_ops), .close = eq_close, .bind = no_bind, .control = no_control, .ops_open = no_ops_open};
static struct fi_ops_eq eq_ops = {
    .size = sizeof(struct fi_ops_eq),
    .read = eq_read,
    .readerr = eq_readerr,
    .write = eq_write,
    .sread = eq_sread,
    .strerror = eq_strerror,
};

static int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context) {
    (void)fabric, (void)attr;
    struct fid_eq *made = calloc(1, sizeof *made);
    if (!made)
        return -FI_ENOMEM;
    made->fid = (struct fid){.fclass = FI_CLASS_EQ, .context = context, .ops = &eq_fid_ops};
    made->ops = &eq_ops;
    *eq = made;
    return 0;
}

static int no_pep(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep, void *context) {
    (void)fabric, (void)info, (void)pep, (void)context;
    return -FI_ENOSYS;
}

static int no_wait(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **wait) {
    (void)fabric, (void)attr, (void)wait;
    return -FI_ENOSYS;
}

static int no_trywait(struct fid_fabric *fabric, struct fid **fids, int count) {
    (void)fabric, (void)fids, (void)count;
    return -FI_ENOSYS;
}

static int no_domain2(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, uint64_t flags,
                      void *context) {
    (void)fabric, (void)info, (void)domain, (void)flags, (void)context;
    return -FI_ENOSYS;
}

static int fabric_close(struct fid *fid) {
    struct fabric *fabric = container_of(fid, struct fabric, fid.fid);
    if (fabric->users)
        return -FI_EBUSY;
    free(fabric);
    return 0;
}

static struct fi_ops fabric_fid_ops = {
    .size = sizeof(struct fi_ops), .close = fabric_close, .bind = no_bind, .control = no_control, .ops_open = no_ops_open};
static struct fi_ops_fabric fabric_ops = {
    .size = sizeof(struct fi_ops_fabric),
    .domain = domain_open,
    .passive_ep = no_pep,
    .eq_open = eq_open,
    .wait_open = no_wait,
    .trywait = no_trywait,
    .domain2 = no_domain2,
};

int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
    if (attr->name && strcmp(attr->name, "tieline") != 0)
        return -FI_ENODATA;
    struct fabric *made = calloc(1, sizeof *made);
    if (!made)
        return -FI_ENOMEM;
    made->fid.fid = (struct fid){.fclass = FI_CLASS_FABRIC, .context = context, .ops = &fabric_fid_ops};
    made->fid.ops = &fabric_ops;
    *fabric = &made->fid;
    return 0;
}

static int domain_close(struct fid *fid) {
    struct domain *domain = container_of(fid, struct domain, fid.fid);
    if (domain->users)
        return -FI_EBUSY;
    tieline_context_close(domain->context);
    pthread_mutex_destroy(&domain->lock);
    domain->fabric->users--;
    free(domain);
    return 0;
}

void domain_progress(struct domain *domain) {
    for (struct ep *ep = domain->eps; ep; ep = ep->next)
        ep_progress(ep);
}

static int no_sep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep, void *context) {
    (void)domain, (void)info, (void)sep, (void)context;
    return -FI_ENOSYS;
}

static int no_cntr(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context) {
    (void)domain, (void)attr, (void)cntr, (void)context;
    return -FI_ENOSYS;
}

static int no_poll(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **poll) {
    (void)domain, (void)attr, (void)poll;
    return -FI_ENOSYS;
}

static int no_stx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context) {
    (void)domain, (void)attr, (void)stx, (void)context;
    return -FI_ENOSYS;
}

static int no_srx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **srx, void *context) {
    (void)domain, (void)attr, (void)srx, (void)context;
    return -FI_ENOSYS;
}

static int no_query_collective(struct fid_domain *domain, enum fi_collective_op op, struct fi_collective_attr *attr, uint64_t flags) {
    (void)domain, (void)op, (void)attr, (void)flags;
    return -FI_ENOSYS;
}

static int no_endpoint2(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, uint64_t flags, void *context) {
    (void)domain, (void)info, (void)ep, (void)flags, (void)context;
    return -FI_ENOSYS;
}

static struct fi_ops domain_fid_ops = {
    .size = sizeof(struct fi_ops), .close = domain_close, .bind = no_bind, .control = no_control, .ops_open = no_ops_open};
static struct fi_ops_domain domain_ops = {
    .size = sizeof(struct fi_ops_domain),
    .av_open = av_open,
    .cq_open = cq_open,
    .endpoint = ep_open,
    .scalable_ep = no_sep,
    .cntr_open = no_cntr,
    .poll_open = no_poll,
    .stx_ctx = no_stx,
    .srx_ctx = no_srx,
    .query_atomic = atomic_query,
    .query_collective = no_query_collective,
    .endpoint2 = no_endpoint2,
};

int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context) {
    struct domain *made = calloc(1, sizeof *made);
    if (!made)
        return -FI_ENOMEM;
    /* Prevents Tieline over libfabric over Tieline. The user's own setting of providers takes precedence. */
    struct tieline_setting settings[] = {{"TIELINE_PROVIDERS", "^ofi"}};
    struct tieline_context_params params = {
        .size = sizeof params, .settings = settings, .settings_count = getenv("TIELINE_PROVIDERS") ? 0 : 1};
    int32_t status = tieline_context_open(&params, &made->context);
    if (status < 0) {
        FI_WARN(&provider, FI_LOG_DOMAIN, "%s\n", tieline_error_text());
        free(made);
        return fi_error(status);
    }
    made->fabric = container_of(fabric, struct fabric, fid);
    made->fabric->users++;
    made->own_keys = (info->domain_attr->mr_mode & FI_MR_PROV_KEY) != 0;
    pthread_mutex_init(&made->lock, NULL);
    made->fid.fid = (struct fid){.fclass = FI_CLASS_DOMAIN, .context = context, .ops = &domain_fid_ops};
    made->fid.ops = &domain_ops;
    made->fid.mr = &mr_ops;
    *domain = &made->fid;
    return 0;
}
