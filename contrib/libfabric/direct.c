/*
 * What Open MPI does not ask for, asked for by libfabric's interface itself, of one process that is its own peer: keys that the caller
 * chooses, a number that is used again, keys that are nobody's, atomics by their values, messages of any length, truncation.
 */
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

#define EXPECT(holds)                                                                                                \
    do {                                                                                                             \
        if (!(holds)) {                                                                                              \
            fprintf(stderr, "line %d: %s\n", __LINE__, #holds);                                                      \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

static struct fid_cq *cq;
static struct fid_ep *ep;

/* The next completion, or an error's number as it is. */
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

/* Posts until it is taken: an address, or a key, is asked for first. */
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

static void puts_gets_and_keys(struct fid_domain *domain, fi_addr_t self) {
    static uint8_t first[20000], second[20000], mine[20000];
    uint64_t access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    struct fid_mr *mr, *other;
    EXPECT(fi_mr_reg(domain, first, sizeof first, access, 0, 7, 0, &mr, NULL) == 0 && fi_mr_key(mr) == 7);
    EXPECT(fi_mr_reg(domain, second, sizeof second, access, 0, 7, 0, &other, NULL) == -FI_ENOKEY);
    for (size_t i = 0; i < sizeof mine; i++)
        mine[i] = (uint8_t)(i * 7 + 1);
    /* Copied, from where it lies, and injected. */
    DONE(fi_write(ep, mine, 100, NULL, self, 5, 7, &mr));
    EXPECT(memcmp(first + 5, mine, 100) == 0 && first[4] == 0 && first[105] == 0);
    DONE(fi_write(ep, mine, sizeof mine, NULL, self, 0, 7, &mr));
    EXPECT(memcmp(first, mine, sizeof mine) == 0);
    memset(first, 0, 8);
    EXPECT(POSTED(fi_inject_write(ep, mine, 8, self, 0, 7)) == 0);
    for (volatile uint8_t *last = first + 7; *last != 50;)
        fi_cq_read(cq, NULL, 0);
    memset(mine, 0, sizeof mine);
    DONE(fi_read(ep, mine, sizeof mine, NULL, self, 0, 7, NULL));
    EXPECT(memcmp(first, mine, sizeof mine) == 0 && mine[0] == 1 && mine[7] == 50);
    /* Behind the end of the region nothing is written, and the connection stands. */
    ssize_t said = POSTED(fi_write(ep, mine, 100, NULL, self, sizeof first - 99, 7, NULL));
    EXPECT(said < 0 || next().err != 0);

    /* The same number for other memory: what was kept of the key is asked for once more. */
    EXPECT(fi_close(&mr->fid) == 0);
    EXPECT(fi_mr_reg(domain, second, sizeof second, access, 0, 7, 0, &mr, NULL) == 0);
    DONE(fi_write(ep, mine, 100, NULL, self, 0, 7, NULL));
    EXPECT(memcmp(second, mine, 100) == 0);
    /* A number that nobody has. */
    said = POSTED(fi_write(ep, mine, 100, NULL, self, 0, 8, NULL));
    EXPECT(said == -FI_EKEYREJECTED || (said == 0 && next().err == FI_EKEYREJECTED));
    EXPECT(fi_close(&mr->fid) == 0);
    said = POSTED(fi_write(ep, mine, 100, NULL, self, 0, 7, NULL));
    EXPECT(said == -FI_EKEYREJECTED || (said == 0 && next().err == FI_EKEYREJECTED));
}

static void atomics(struct fid_domain *domain, fi_addr_t self) {
    static uint64_t words[4] = {10, 20, 30, 40};
    uint64_t operand = 5, compare = 20, before = 0;
    uint32_t narrow = 7, narrow_before = 0;
    size_t count = 0;
    struct fid_mr *mr;
    EXPECT(fi_mr_reg(domain, words, sizeof words, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 9, 0, &mr, NULL) == 0);
    DONE(fi_fetch_atomic(ep, &operand, 1, NULL, &before, NULL, self, 0, 9, FI_UINT64, FI_SUM, NULL));
    EXPECT(before == 10 && words[0] == 15);
    DONE(fi_compare_atomic(ep, &operand, 1, NULL, &compare, NULL, &before, NULL, self, 8, 9, FI_UINT64, FI_CSWAP, NULL));
    EXPECT(before == 20 && words[1] == 5);
    DONE(fi_compare_atomic(ep, &operand, 1, NULL, &compare, NULL, &before, NULL, self, 16, 9, FI_UINT64, FI_CSWAP, NULL));
    EXPECT(before == 30 && words[2] == 30);
    DONE(fi_atomic(ep, &operand, 1, NULL, self, 24, 9, FI_UINT64, FI_ATOMIC_WRITE, NULL));
    EXPECT(words[3] == 5);
    DONE(fi_fetch_atomic(ep, NULL, 1, NULL, &before, NULL, self, 16, 9, FI_UINT64, FI_ATOMIC_READ, NULL));
    EXPECT(before == 30 && words[2] == 30);
    DONE(fi_fetch_atomic(ep, &narrow, 1, NULL, &narrow_before, NULL, self, 0, 9, FI_UINT32, FI_BOR, NULL));
    EXPECT(narrow_before == 15 && words[0] == 15);
    EXPECT(fi_atomicvalid(ep, FI_UINT64, FI_MAX, &count) == 0 && count == 1);
    EXPECT(fi_atomicvalid(ep, FI_INT64, FI_MAX, &count) == -FI_EOPNOTSUPP);
    EXPECT(fi_atomicvalid(ep, FI_DOUBLE, FI_SUM, &count) == -FI_EOPNOTSUPP);
    EXPECT(fi_close(&mr->fid) == 0);
}

static void messages(fi_addr_t self) {
    static const size_t lens[] = {0, 1, 5000, 9000, 65536, 200000, 5 << 20};
    static uint8_t from[5 << 20], to[5 << 20];
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++) {
        /* Received before it is sent, and after. */
        for (int is_early = 0; is_early < 2; is_early++) {
            size_t len = lens[n];
            for (size_t i = 0; i < len; i++)
                from[i] = (uint8_t)(i * 13 + n + (size_t)is_early);
            memset(to, 0, len);
            if (!is_early)
                EXPECT(fi_recv(ep, to, sizeof to, NULL, FI_ADDR_UNSPEC, to) == 0);
            EXPECT(POSTED(fi_send(ep, from, len, NULL, self, from)) == 0);
            if (is_early) {
                fi_cq_read(cq, NULL, 0);
                EXPECT(fi_recv(ep, to, sizeof to, NULL, FI_ADDR_UNSPEC, to) == 0);
            }
            void *seen = NULL;
            for (int end = 0; end < 2; end++) {
                struct fi_cq_err_entry entry = next();
                EXPECT(entry.err == 0 && entry.op_context != seen);
                EXPECT(entry.op_context == to ? (entry.flags & FI_RECV) && entry.len == len : entry.op_context == from);
                seen = entry.op_context;
            }
            EXPECT(memcmp(from, to, len) == 0);
        }
        /* Into a buffer that is too short: what fits, and an error that says how much did not. */
        if (lens[n] > 1) {
            EXPECT(fi_recv(ep, to, lens[n] / 2, NULL, FI_ADDR_UNSPEC, to) == 0);
            EXPECT(POSTED(fi_send(ep, from, lens[n], NULL, self, from)) == 0);
            for (int end = 0; end < 2; end++) {
                struct fi_cq_err_entry entry = next();
                if (entry.op_context == to)
                    EXPECT(entry.err == FI_ETRUNC && entry.olen == lens[n] - lens[n] / 2);
                else
                    EXPECT(entry.err == 0);
            }
        }
    }
    EXPECT(fi_recv(ep, to, 8, NULL, FI_ADDR_UNSPEC, to) == 0);
    EXPECT(fi_cancel(&ep->fid, to) == 0 && next().err == FI_ECANCELED);
}

int main(void) {
    struct fi_info *hints = fi_allocinfo(), *info, *none;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    uint8_t name[64], shorter[8];
    size_t len = sizeof shorter;

    hints->fabric_attr->prov_name = strdup("tieline");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->domain_attr->mr_mode = 0;
    EXPECT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0 && !info->next);
    EXPECT(info->domain_attr->mr_mode == 0 && strcmp(info->fabric_attr->prov_name, "tieline") == 0);
    /* What is not offered: other types of endpoint, tags. */
    hints->ep_attr->type = FI_EP_DGRAM;
    EXPECT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &none) == -FI_ENODATA);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps |= FI_TAGGED;
    EXPECT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &none) == -FI_ENODATA);

    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
    EXPECT(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
    EXPECT(fi_domain(fabric, info, &domain, NULL) == 0);
    EXPECT(fi_av_open(domain, &av_attr, &av, NULL) == 0);
    EXPECT(fi_cq_open(domain, &cq_attr, &cq, NULL) == 0);
    EXPECT(fi_endpoint(domain, info, &ep, NULL) == 0);
    EXPECT(fi_ep_bind(ep, &av->fid, 0) == 0 && fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV) == 0);
    EXPECT(fi_enable(ep) == 0);
    EXPECT(fi_getname(&ep->fid, shorter, &len) == -FI_ETOOSMALL && len <= sizeof name);
    EXPECT(fi_getname(&ep->fid, name, &len) == 0);
    EXPECT(fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);

    messages(0);
    puts_gets_and_keys(domain, 0);
    atomics(domain, 0);

    /* What is in use cannot be closed; the rest in this order. */
    EXPECT(fi_close(&domain->fid) == -FI_EBUSY && fi_close(&cq->fid) == -FI_EBUSY && fi_close(&av->fid) == -FI_EBUSY);
    EXPECT(fi_close(&ep->fid) == 0 && fi_close(&cq->fid) == 0 && fi_close(&av->fid) == 0);
    EXPECT(fi_close(&domain->fid) == 0 && fi_close(&fabric->fid) == 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    printf("direct: passed\n");
    return 0;
}
