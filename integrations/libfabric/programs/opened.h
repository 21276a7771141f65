/* Code that programs for direct use of libfabric share: a Tieline endpoint with a queue, and checks of its
   completions. */
#ifndef OPENED_H
#define OPENED_H

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The capabilities, the way of waiting and the progress that the program asks for. */
#ifndef WANTED
#define WANTED (FI_MSG | FI_RMA | FI_ATOMIC)
#endif
#ifndef CQ_WAIT
#define CQ_WAIT FI_WAIT_NONE
#endif
#ifndef PROGRESS
#define PROGRESS FI_PROGRESS_UNSPEC
#endif

#define EXPECT(holds)                                                                                                \
    do {                                                                                                             \
        if (!(holds)) {                                                                                              \
            fprintf(stderr, "line %d: %s\n", __LINE__, #holds);                                                      \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

static struct fid_cq *cq;
static struct fid_ep *ep;

/* Waits for the next completion, and returns its entry. A failed operation's entry contains the error in `err`. */
static struct fi_cq_err_entry next(void) {
    struct fi_cq_err_entry entry = {0};
    ssize_t taken;
    do
        taken = fi_cq_read(cq, &entry, 1);
    while (taken == -FI_EAGAIN);
    if (taken == -FI_EAVAIL)
        EXPECT(fi_cq_readerr(cq, &entry, 0) == 1);
    else
        EXPECT(taken == 1);
    return entry;
}

/* Repeats the call while it returns -FI_EAGAIN, with progress between the calls. Returns the last result. */
#define POSTED(call)                                                                                                 \
    ({                                                                                                               \
        ssize_t said;                                                                                                \
        while ((said = (call)) == -FI_EAGAIN)                                                                        \
            fi_cq_read(cq, NULL, 0);                                                                                 \
        said;                                                                                                        \
    })

#define DONE(call)                                                                                                   \
    do {                                                                                                             \
        EXPECT(POSTED(call) == 0);                                                                                   \
        EXPECT(next().err == 0);                                                                                     \
    } while (0)

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;

/* Opens all objects. The caller chooses keys, addresses are offsets, and a send completes only after its delivery. */
static void open_all(void) {
    struct fi_info *hints = fi_allocinfo(), *none;
    hints->fabric_attr->prov_name = strdup("tieline");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = WANTED;
    hints->domain_attr->data_progress = hints->domain_attr->control_progress = PROGRESS;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->domain_attr->mr_mode = 0;
    EXPECT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0 && !info->next);
    EXPECT(info->domain_attr->mr_mode == 0 && strcmp(info->fabric_attr->prov_name, "tieline") == 0);
    /* Other types of endpoint are not offered. */
    hints->ep_attr->type = FI_EP_DGRAM;
    EXPECT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &none) == -FI_ENODATA);
    hints->ep_attr->type = FI_EP_MSG;
    EXPECT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &none) == -FI_ENODATA);
    fi_freeinfo(hints);

    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = CQ_WAIT};
    EXPECT(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
    EXPECT(fi_domain(fabric, info, &domain, NULL) == 0);
    EXPECT(fi_av_open(domain, &av_attr, &av, NULL) == 0);
    EXPECT(fi_cq_open(domain, &cq_attr, &cq, NULL) == 0);
    EXPECT(fi_endpoint(domain, info, &ep, NULL) == 0);
    EXPECT(fi_ep_bind(ep, &av->fid, 0) == 0 && fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV) == 0);
    EXPECT(fi_enable(ep) == 0);
}

static void close_all(void) {
    /* An object in use cannot be closed; the objects are closed in this order. */
    EXPECT(fi_close(&domain->fid) == -FI_EBUSY && fi_close(&cq->fid) == -FI_EBUSY && fi_close(&av->fid) == -FI_EBUSY);
    EXPECT(fi_close(&ep->fid) == 0 && fi_close(&cq->fid) == 0 && fi_close(&av->fid) == 0);
    EXPECT(fi_close(&domain->fid) == 0 && fi_close(&fabric->fid) == 0);
    fi_freeinfo(info);
}

#endif
