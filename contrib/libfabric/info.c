/*
 * The provider's offer: one entry of type RDM, or nothing. This file opens no Tieline object, because libfabric calls it in
 * every process that queries its providers.
 */
#include "fi.h"
#include <stdlib.h>
#include <string.h>

#define PROVIDER_VERSION FI_VERSION(0, 1)
#define TX_CAPS (FI_MSG | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE)
#define RX_CAPS (FI_MSG | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define DOMAIN_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define CAPS (TX_CAPS | RX_CAPS | DOMAIN_CAPS)
#define OP_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)
#define SIZE 1024

struct fi_provider provider;

/* Returns the modifiers of a capability that was requested without any: all of them. */
static uint64_t modifiers(uint64_t caps) {
    if ((caps & (FI_RMA | FI_ATOMIC)) && !(caps & (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)))
        caps |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    if ((caps & FI_MSG) && !(caps & (FI_SEND | FI_RECV)))
        caps |= FI_SEND | FI_RECV;
    return caps;
}

static bool fits_ep(const struct fi_ep_attr *ep) {
    return (ep->protocol == FI_PROTO_UNSPEC) && ep->max_msg_size <= MAX_MESSAGE && ep->tx_ctx_cnt <= 1 && ep->rx_ctx_cnt <= 1 &&
           ep->max_order_raw_size == 0 && ep->max_order_war_size == 0 && ep->max_order_waw_size == 0 && ep->auth_key_size == 0;
}

static bool fits_domain(const struct fi_domain_attr *domain) {
    return (domain->name == NULL || strcmp(domain->name, "tieline") == 0) && domain->control_progress != FI_PROGRESS_AUTO &&
           domain->data_progress != FI_PROGRESS_AUTO && domain->mr_key_size <= 8 && domain->cq_data_size == 0 &&
           (domain->caps & ~DOMAIN_CAPS) == 0 && domain->auth_key_size == 0 && domain->mr_iov_limit <= 1;
}

static bool fits(const struct fi_info *hints) {
    const struct fi_tx_attr *tx = hints->tx_attr;
    const struct fi_rx_attr *rx = hints->rx_attr;
    if ((hints->caps & ~CAPS) || hints->addr_format != FI_FORMAT_UNSPEC ||
        (hints->dest_addr && hints->dest_addrlen != sizeof(struct address)))
        return false;
    if (tx && ((tx->caps & ~(TX_CAPS | DOMAIN_CAPS)) || (tx->op_flags & ~OP_FLAGS) || (tx->msg_order & ~FI_ORDER_SAS) ||
               (tx->comp_order & ~FI_ORDER_NONE) || tx->inject_size > MAX_INJECT || tx->iov_limit > 1 || tx->rma_iov_limit > 1))
        return false;
    if (rx && ((rx->caps & ~(RX_CAPS | DOMAIN_CAPS)) || (rx->op_flags & ~FI_COMPLETION) || (rx->msg_order & ~FI_ORDER_SAS) ||
               (rx->comp_order & ~FI_ORDER_NONE) || rx->total_buffered_recv || rx->iov_limit > 1))
        return false;
    if (hints->fabric_attr && hints->fabric_attr->name && strcmp(hints->fabric_attr->name, "tieline") != 0)
        return false;
    return (!hints->ep_attr || fits_ep(hints->ep_attr)) && (!hints->domain_attr || fits_domain(hints->domain_attr));
}

static void fill(struct fi_info *info, const struct fi_info *hints) {
    static const struct fi_tx_attr no_tx;
    static const struct fi_rx_attr no_rx;
    static const struct fi_domain_attr no_domain;
    const struct fi_tx_attr *tx = hints && hints->tx_attr ? hints->tx_attr : &no_tx;
    const struct fi_rx_attr *rx = hints && hints->rx_attr ? hints->rx_attr : &no_rx;
    const struct fi_domain_attr *domain = hints && hints->domain_attr ? hints->domain_attr : &no_domain;
    uint64_t asked = hints ? hints->caps : 0;

    info->caps = modifiers(asked ? asked : CAPS) | DOMAIN_CAPS;
    info->addr_format = FI_FORMAT_UNSPEC;
    info->tx_attr->caps = info->caps & (TX_CAPS | DOMAIN_CAPS);
    info->tx_attr->op_flags = tx->op_flags;
    info->tx_attr->msg_order = FI_ORDER_SAS;
    info->tx_attr->inject_size = MAX_INJECT;
    info->tx_attr->size = SIZE;
    info->tx_attr->iov_limit = 1;
    info->tx_attr->rma_iov_limit = 1;
    info->rx_attr->caps = info->caps & (RX_CAPS | DOMAIN_CAPS);
    info->rx_attr->op_flags = rx->op_flags;
    info->rx_attr->msg_order = FI_ORDER_SAS;
    info->rx_attr->size = SIZE;
    info->rx_attr->iov_limit = 1;

    info->ep_attr->type = FI_EP_RDM;
    info->ep_attr->protocol = FI_PROTO_UNSPEC;
    info->ep_attr->protocol_version = 1;
    info->ep_attr->max_msg_size = MAX_MESSAGE;
    info->ep_attr->tx_ctx_cnt = 1;
    info->ep_attr->rx_ctx_cnt = 1;

    info->domain_attr->threading = domain->threading ? domain->threading : FI_THREAD_DOMAIN;
    info->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    info->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    info->domain_attr->resource_mgmt = FI_RM_ENABLED;
    info->domain_attr->av_type = domain->av_type;
    /* Remote addresses are always offsets, and local buffers need no registration. */
    info->domain_attr->mr_mode =
        domain->mr_mode == FI_MR_SCALABLE ? FI_MR_SCALABLE : domain->mr_mode & (FI_MR_ALLOCATED | FI_MR_PROV_KEY);
    info->domain_attr->mr_key_size = 8;
    info->domain_attr->cq_cnt = SIZE;
    info->domain_attr->ep_cnt = SIZE;
    info->domain_attr->tx_ctx_cnt = SIZE;
    info->domain_attr->rx_ctx_cnt = SIZE;
    info->domain_attr->max_ep_tx_ctx = 1;
    info->domain_attr->max_ep_rx_ctx = 1;
    info->domain_attr->mr_iov_limit = 1;
    info->domain_attr->caps = DOMAIN_CAPS;
    info->domain_attr->mr_cnt = 1 << 16;
}

int get_info(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
             struct fi_info **info) {
    (void)version;
    *info = NULL;
    /* Layered providers request MSG and DGRAM for their own use, so these types are refused first. */
    if (hints && hints->ep_attr && hints->ep_attr->type != FI_EP_UNSPEC && hints->ep_attr->type != FI_EP_RDM)
        return -FI_ENODATA;
    /* The provider has no host and service names; a service without a node is only a hint. */
    if (node && !(flags & FI_SOURCE))
        return -FI_ENODATA;
    (void)service;
    if (hints && !fits(hints))
        return -FI_ENODATA;
    /* BASIC promises remote addresses, but this provider uses offsets. */
    if (hints && hints->domain_attr && hints->domain_attr->mr_mode == FI_MR_BASIC)
        return -FI_ENODATA;
    struct fi_info *answer = fi_allocinfo();
    if (!answer)
        return -FI_ENOMEM;
    fill(answer, hints);
    answer->domain_attr->name = strdup("tieline");
    answer->fabric_attr->name = strdup("tieline");
    answer->fabric_attr->prov_version = PROVIDER_VERSION;
    if (hints && hints->dest_addr && (answer->dest_addr = malloc(hints->dest_addrlen))) {
        memcpy(answer->dest_addr, hints->dest_addr, hints->dest_addrlen);
        answer->dest_addrlen = hints->dest_addrlen;
    }
    if (!answer->domain_attr->name || !answer->fabric_attr->name || (hints && hints->dest_addr && !answer->dest_addr)) {
        fi_freeinfo(answer);
        return -FI_ENOMEM;
    }
    *info = answer;
    return 0;
}

static void cleanup(void) {}

struct fi_provider provider = {
    .version = PROVIDER_VERSION,
    .name = "tieline",
    .getinfo = get_info,
    .fabric = fabric_open,
    .cleanup = cleanup,
};

FI_EXT_INI {
    provider.fi_version = fi_version();
    return &provider;
}
