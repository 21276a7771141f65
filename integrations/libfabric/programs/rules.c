/* The order of operations to a peer, addresses of memory, addresses of endpoints, and calls that are refused. One process with one
   endpoint, which is its own peer. */
#define WANTED (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC)
#include "opened.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fi_tagged.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SELF = 0, KEY = 7, LONG = 300000, ROUNDS = 40 };
static uint8_t from[LONG], to[ROUNDS][LONG];

/* FI_ORDER_SAS: short and long messages match receives in the order in which they were sent. */
static void sends(void) {
    static const size_t lens[] = {1, LONG, 0, 5000, 64, 70000};
    enum { MANY = sizeof lens / sizeof *lens };
    for (int i = 0; i < ROUNDS; i++)
        EXPECT(fi_trecv(ep, to[i], LONG, NULL, FI_ADDR_UNSPEC, 0, UINT64_MAX, to[i]) == 0);
    for (int i = 0; i < ROUNDS; i++)
        EXPECT(POSTED(fi_tsend(ep, from, lens[i % MANY], NULL, SELF, (uint64_t)i, NULL)) == 0);
    for (int left = 2 * ROUNDS; left > 0; left--) {
        struct fi_cq_err_entry entry = next();
        EXPECT(entry.err == 0);
        if (entry.flags & FI_RECV)
            EXPECT(entry.op_context == to[entry.tag] && entry.len == lens[entry.tag % MANY]);
    }
}

/* FI_ORDER_ATOMIC_WAW, RAW, WAR and RAR: nothing waits between these atomics. A masked swap takes several steps at the target. */
static void atomics(void) {
    static uint64_t memory, operand[5] = {1, 2, 100, 7, 0xf0}, mask = 0xf0, before[3];
    struct fid_mr *mr;
    EXPECT(fi_mr_reg(domain, &memory, 8, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL) == 0);
    for (int i = 0; i < 100; i++) {
        EXPECT(POSTED(fi_atomic(ep, &operand[0], 1, NULL, SELF, 0, KEY, FI_UINT64, FI_ATOMIC_WRITE, NULL)) == 0);
        EXPECT(POSTED(fi_atomic(ep, &operand[1], 1, NULL, SELF, 0, KEY, FI_UINT64, FI_ATOMIC_WRITE, NULL)) == 0);
        EXPECT(POSTED(fi_compare_atomic(ep, &operand[4], 1, NULL, &mask, NULL, &before[2], NULL, SELF, 0, KEY, FI_UINT64, FI_MSWAP,
                                        NULL)) == 0);
        EXPECT(POSTED(fi_fetch_atomic(ep, &operand[2], 1, NULL, &before[0], NULL, SELF, 0, KEY, FI_UINT64, FI_SUM, NULL)) == 0);
        EXPECT(POSTED(fi_fetch_atomic(ep, NULL, 1, NULL, &before[1], NULL, SELF, 0, KEY, FI_UINT64, FI_ATOMIC_READ, NULL)) == 0);
        EXPECT(POSTED(fi_atomic(ep, &operand[3], 1, NULL, SELF, 0, KEY, FI_UINT64, FI_ATOMIC_WRITE, NULL)) == 0);
        for (int left = 6; left > 0; left--)
            EXPECT(next().err == 0);
        EXPECT(before[2] == 2 && before[0] == 0xf2 && before[1] == 0xf2 + 100 && memory == 7);
    }
    EXPECT(fi_close(&mr->fid) == 0);
}

static void refused(void) {
    struct iovec iov = {from, 8};
    struct fi_rma_iov remote = {0, 8, KEY};
    struct fi_ioc ioc = {from, 1};
    struct fi_rma_ioc remote_ioc = {0, 1, KEY};
    struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = SELF};
    struct fi_msg_tagged tagged = {.msg_iov = &iov, .iov_count = 1, .addr = SELF};
    struct fi_msg_rma rma = {.msg_iov = &iov, .iov_count = 1, .addr = SELF, .rma_iov = &remote, .rma_iov_count = 1};
    struct fi_msg_atomic atomic = {.msg_iov = &ioc, .iov_count = 1, .addr = SELF, .rma_iov = &remote_ioc, .rma_iov_count = 1,
                                   .datatype = FI_UINT64, .op = FI_SUM};
    static const uint64_t flags[] = {FI_TRIGGER, FI_FENCE};
    for (int i = 0; i < 2; i++) {
        EXPECT(fi_sendmsg(ep, &message, flags[i]) == -FI_EOPNOTSUPP && fi_recvmsg(ep, &message, flags[i]) == -FI_EOPNOTSUPP);
        EXPECT(fi_tsendmsg(ep, &tagged, flags[i]) == -FI_EOPNOTSUPP && fi_trecvmsg(ep, &tagged, flags[i]) == -FI_EOPNOTSUPP);
        EXPECT(fi_writemsg(ep, &rma, flags[i]) == -FI_EOPNOTSUPP && fi_readmsg(ep, &rma, flags[i]) == -FI_EOPNOTSUPP);
        EXPECT(fi_atomicmsg(ep, &atomic, flags[i]) == -FI_EOPNOTSUPP);
    }
    EXPECT(fi_inject(ep, from, info->tx_attr->inject_size + 1, SELF) == -FI_EMSGSIZE);
    EXPECT(fi_send(ep, from, 8, NULL, 1000, NULL) == -FI_EINVAL);
    EXPECT(fi_cq_read(cq, NULL, 0) == -FI_EAGAIN);
}

/* Keys of the provider or of the application, and remote addresses that are offsets or virtual addresses, in a domain of their
   own. The application may change the answer of fi_getinfo within what it offers. */
static void memory_modes(void) {
    static uint8_t memory[4096];
    static const int modes[] = {0, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED,
                                FI_MR_BASIC, FI_MR_SCALABLE};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        int mode = modes[i], is_virtual = mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC);
        struct fi_info *own = fi_dupinfo(info);
        struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
        struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
        struct fid_domain *domain;
        struct fid_ep *ep;
        struct fid_av *av;
        struct fid_mr *mr;
        struct fi_cq_err_entry entry;
        struct fid_cq *queue;
        uint8_t name[64];
        size_t len = sizeof name;
        own->domain_attr->mr_mode = mode;
        EXPECT(fi_domain(fabric, own, &domain, NULL) == 0 && fi_endpoint(domain, own, &ep, NULL) == 0);
        EXPECT(fi_av_open(domain, &av_attr, &av, NULL) == 0 && fi_cq_open(domain, &cq_attr, &queue, NULL) == 0);
        EXPECT(fi_ep_bind(ep, &av->fid, 0) == 0 && fi_ep_bind(ep, &queue->fid, FI_TRANSMIT | FI_RECV) == 0 && fi_enable(ep) == 0);
        EXPECT(fi_getname(&ep->fid, name, &len) == 0 && fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
        /* The number of a key refers to other memory before: with a virtual address, to memory that begins later. */
        ssize_t taken, said;
        EXPECT(fi_mr_reg(domain, memory + 2048, 4, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL) == 0);
        uint64_t first = is_virtual ? (uint64_t)(uintptr_t)(memory + 2048) : 0;
        while ((said = fi_write(ep, from, 1, NULL, 0, first, fi_mr_key(mr), NULL)) == -FI_EAGAIN)
            fi_cq_read(queue, NULL, 0);
        while ((taken = fi_cq_read(queue, &entry, 1)) == -FI_EAGAIN)
            ;
        EXPECT(said == 0 && taken == 1 && fi_close(&mr->fid) == 0);
        EXPECT(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL) == 0);
        EXPECT(!!(mode & (FI_MR_PROV_KEY | FI_MR_BASIC)) == (fi_mr_key(mr) != KEY));
        uint64_t at = 1000 + (is_virtual ? (uint64_t)(uintptr_t)memory : 0);
        memset(memory, 0, sizeof memory);
        from[0] = (uint8_t)(i + 1);
        while ((said = fi_write(ep, from, 1, NULL, 0, at, fi_mr_key(mr), NULL)) == -FI_EAGAIN)
            fi_cq_read(queue, NULL, 0);
        EXPECT(said == 0);
        while ((taken = fi_cq_read(queue, &entry, 1)) == -FI_EAGAIN)
            ;
        EXPECT(taken == 1 && memory[1000] == i + 1);
        /* An address outside the memory is refused. */
        said = fi_write(ep, from, 1, NULL, 0, at + sizeof memory, fi_mr_key(mr), NULL);
        if (said == 0) {
            while ((taken = fi_cq_read(queue, &entry, 1)) == -FI_EAGAIN)
                ;
            EXPECT(taken == -FI_EAVAIL && fi_cq_readerr(queue, &entry, 0) == 1 && entry.err != 0);
        }
        EXPECT(fi_close(&mr->fid) == 0 && fi_close(&ep->fid) == 0 && fi_close(&av->fid) == 0);
        EXPECT(fi_close(&queue->fid) == 0 && fi_close(&domain->fid) == 0);
        fi_freeinfo(own);
    }
}

/* A poll set with the queue. */
static void sets(void) {
    struct fi_poll_attr attr = {0};
    struct fid_poll *set;
    void *contexts[2];
    EXPECT(fi_poll_open(domain, &attr, &set) == 0 && fi_poll_add(set, &cq->fid, 0) == 0);
    EXPECT(fi_poll_add(set, &av->fid, 0) == -FI_EINVAL && fi_poll(set, contexts, 2) == 0);
    EXPECT(fi_recv(ep, to[0], 8, NULL, FI_ADDR_UNSPEC, to[0]) == 0 && POSTED(fi_inject(ep, from, 8, SELF)) == 0);
    while (fi_poll(set, contexts, 2) == 0)
        ;
    EXPECT(contexts[0] == cq->fid.context && next().op_context == to[0] && fi_poll(set, contexts, 2) == 0);
    EXPECT(fi_poll_del(set, &cq->fid, 0) == 0 && fi_poll_del(set, &cq->fid, 0) == -FI_EINVAL);
    EXPECT(fi_close(&set->fid) == 0);
}

/* A port that no socket has. */
static int free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 && getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    EXPECT(close(fd) == 0);
    return ntohs(at.sin_port);
}

/* A host and a port instead of an address: the endpoint that was opened there is found. */
static void places(void) {
    char service[8];
    struct fi_info *there, *peer;
    struct fid_ep *other;
    fi_addr_t address, by_name;
    uint8_t name[64], looked_up[64];
    size_t len = sizeof name;
    sprintf(service, "%d", free_port());
    EXPECT(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", service, FI_SOURCE, info, &there) == 0 && there->src_addrlen == 56);
    EXPECT(fi_endpoint(domain, there, &other, NULL) == 0);
    EXPECT(fi_ep_bind(other, &av->fid, 0) == 0 && fi_ep_bind(other, &cq->fid, FI_TRANSMIT | FI_RECV) == 0 && fi_enable(other) == 0);
    EXPECT(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", service, 0, info, &peer) == 0 && peer->dest_addrlen == 56);
    EXPECT(fi_av_insert(av, peer->dest_addr, 1, &address, 0, NULL) == 1);
    EXPECT(fi_recv(other, to[0], 8, NULL, FI_ADDR_UNSPEC, to[0]) == 0);
    DONE(fi_send(ep, from, 8, NULL, address, NULL) /* its own entry, or that of the receive */);
    EXPECT(next().err == 0);
    EXPECT(fi_getname(&other->fid, name, &len) == 0 && len == 56);
    len = sizeof looked_up;
    EXPECT(fi_av_lookup(av, address, looked_up, &len) == 0 && len == 56 && memcmp(name, looked_up, len) == 0);
    EXPECT(fi_av_insertsvc(av, "127.0.0.1", service, &by_name, 0, NULL) == 1 && by_name != address);
    EXPECT(fi_recv(other, to[0], 8, NULL, FI_ADDR_UNSPEC, to[0]) == 0);
    DONE(fi_send(ep, from, 8, NULL, by_name, NULL));
    EXPECT(next().err == 0);
    EXPECT(fi_close(&other->fid) == 0);
    fi_freeinfo(there);
    fi_freeinfo(peer);
    EXPECT(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "no service", 0, info, &peer) == -FI_ENODATA);
}

int main(void) {
    uint8_t name[64];
    size_t len = sizeof name;
    open_all();
    EXPECT(fi_getname(&ep->fid, name, &len) == 0 && fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
    sends();
    atomics();
    refused();
    memory_modes();
    sets();
    places();
    close_all();
    printf("rules: passed\n");
    return 0;
}
