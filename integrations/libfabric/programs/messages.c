/*
 * Tagged messages, data for the completion queue, buffers for several messages, senders, counters and waiting, tested directly
 * through libfabric by one process with two endpoints.
 */
#define WANTED (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT)
#define CQ_WAIT FI_WAIT_FD
#include "opened.h"
#include <poll.h>
#include <rdma/fi_tagged.h>

/* The second endpoint, which has counters and completes on request only. */
static struct fid_ep *other;
static struct fid_cq *other_cq;
static struct fid_cntr *sent, *written;
enum { SELF = 0, OTHER = 1, LONG = 3 << 20 };
static uint8_t from[LONG], to[LONG];

static void open_other(void) {
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
    uint8_t name[64];
    size_t len = sizeof name;
    EXPECT(fi_cq_open(domain, &cq_attr, &other_cq, NULL) == 0);
    EXPECT(fi_cntr_open(domain, NULL, &sent, NULL) == 0 && fi_cntr_open(domain, NULL, &written, NULL) == 0);
    EXPECT(fi_endpoint(domain, info, &other, NULL) == 0);
    EXPECT(fi_ep_bind(other, &av->fid, 0) == 0);
    EXPECT(fi_ep_bind(other, &other_cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) == 0);
    EXPECT(fi_enable(other) == 0);
    /* Some applications bind counters only after this. */
    EXPECT(fi_ep_bind(other, &sent->fid, FI_SEND) == 0 && fi_ep_bind(other, &written->fid, FI_WRITE) == 0);
    EXPECT(fi_getname(&ep->fid, name, &len) == 0 && fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
    EXPECT(fi_getname(&other->fid, name, &len) == 0 && fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
}

/* The next entry of a receive; entries of sends are passed over. */
static struct fi_cq_err_entry received(void) {
    struct fi_cq_err_entry entry;
    do
        entry = next();
    while (!(entry.flags & FI_RECV) && !entry.err);
    return entry;
}

static void fill(size_t len, uint8_t seed) {
    for (size_t i = 0; i < len; i++)
        from[i] = (uint8_t)(i * 31 + seed);
    memset(to, 0, len);
}

static void tags(void) {
    static const size_t lens[] = {0, 8, 300, 20000, 65536, LONG};
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++)
        for (int is_early = 0; is_early < 2; is_early++) {
            size_t len = lens[n];
            uint64_t tag = 0x500 + n, data = 0x123456789abcdef0 + n;
            fill(len, (uint8_t)(n + 1));
            if (!is_early)
                EXPECT(fi_trecv(ep, to, sizeof to, NULL, FI_ADDR_UNSPEC, 0x100 + n, 0xff00, to) == 0);
            EXPECT(POSTED(fi_tsenddata(other, from, len, NULL, data, SELF, tag, from)) == 0);
            if (is_early) {
                for (int i = 0; i < 100; i++)
                    fi_cq_read(cq, NULL, 0);
                EXPECT(fi_trecv(ep, to, sizeof to, NULL, FI_ADDR_UNSPEC, tag, 0, to) == 0);
            }
            struct fi_cq_err_entry entry = received();
            EXPECT(entry.err == 0 && entry.op_context == to && entry.len == len && entry.tag == tag && entry.data == data);
            EXPECT(entry.flags == (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA) && memcmp(from, to, len) == 0);
        }
    /* Of two receives that match, the first posted one gets the message; a message without data has no such flag. */
    static uint8_t first[8], second[8];
    EXPECT(fi_trecv(ep, first, 8, NULL, FI_ADDR_UNSPEC, 1, UINT64_MAX, first) == 0);
    EXPECT(fi_trecv(ep, second, 8, NULL, FI_ADDR_UNSPEC, 9, 0, second) == 0);
    EXPECT(POSTED(fi_tinject(other, "tag nine", 8, SELF, 9)) == 0 && POSTED(fi_tinject(other, "tag nine", 8, SELF, 9)) == 0);
    struct fi_cq_err_entry entry = received();
    EXPECT(entry.op_context == first && entry.flags == (FI_RECV | FI_TAGGED));
    EXPECT(received().op_context == second && memcmp(first, "tag nine", 8) == 0);
    /* A canceled receive takes no message. */
    EXPECT(fi_trecv(ep, first, 8, NULL, FI_ADDR_UNSPEC, 11, 0, first) == 0 && fi_cancel(&ep->fid, first) == 0);
    EXPECT(received().err == FI_ECANCELED && fi_cancel(&ep->fid, first) == -FI_ENOENT);
}

static struct fi_cq_err_entry looked(uint64_t tag, uint64_t flags, void *context, void *buf, size_t len) {
    struct iovec iov = {buf, len};
    struct fi_msg_tagged message = {.msg_iov = &iov, .iov_count = buf ? 1 : 0, .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context};
    EXPECT(fi_trecvmsg(ep, &message, flags) == 0);
    return received();
}

static void peeks(void) {
    static const size_t lens[] = {100, LONG};
    struct fi_context2 context;
    for (size_t n = 0; n < 2; n++) {
        size_t len = lens[n];
        fill(len, 7);
        EXPECT(looked(77, FI_PEEK, &context, NULL, 0).err == FI_ENOMSG);
        for (int i = 0; i < 3; i++)
            EXPECT(POSTED(fi_tsend(other, from, len, NULL, SELF, 77, NULL)) == 0);
        struct fi_cq_err_entry entry;
        do
            entry = looked(77, FI_PEEK, &context, NULL, 0);
        while (entry.err == FI_ENOMSG);
        EXPECT(entry.err == 0 && entry.len == len && entry.tag == 77 && entry.op_context == &context);
        /* The first is claimed and received, the second is claimed and discarded, the third is discarded at once. */
        EXPECT(looked(77, FI_PEEK | FI_CLAIM, &context, NULL, 0).len == len);
        entry = looked(77, FI_CLAIM, &context, to, sizeof to);
        EXPECT(entry.err == 0 && entry.len == len && memcmp(from, to, len) == 0);
        do
            entry = looked(77, FI_PEEK | FI_CLAIM, &context, NULL, 0);
        while (entry.err == FI_ENOMSG);
        EXPECT(looked(77, FI_CLAIM | FI_DISCARD, &context, NULL, 0).err == 0);
        do
            entry = looked(77, FI_PEEK | FI_DISCARD, &context, NULL, 0);
        while (entry.err == FI_ENOMSG);
        EXPECT(entry.err == 0 && looked(77, FI_PEEK, &context, NULL, 0).err == FI_ENOMSG);
    }
    /* All of these sends completed without an error. */
    uint64_t count = fi_cntr_read(sent);
    while (fi_cntr_readerr(sent) == 0 && fi_cntr_read(sent) < count)
        fi_cq_read(cq, NULL, 0);
    EXPECT(fi_cntr_readerr(sent) == 0);
}

/* Receives from one sender, and the sender in the completion. */
static void senders(void) {
    static uint8_t mine[8], others[8];
    struct fi_cq_tagged_entry entry;
    fi_addr_t source;
    ssize_t taken;
    for (int tagged = 0; tagged < 2; tagged++) {
        EXPECT(tagged ? fi_trecv(ep, mine, 8, NULL, SELF, 5, 0, mine) == 0 : fi_recv(ep, mine, 8, NULL, SELF, mine) == 0);
        EXPECT(tagged ? fi_trecv(ep, others, 8, NULL, OTHER, 5, 0, others) == 0 : fi_recv(ep, others, 8, NULL, OTHER, others) == 0);
        EXPECT((tagged ? POSTED(fi_tinject(other, "other...", 8, SELF, 5)) : POSTED(fi_inject(other, "other...", 8, SELF))) == 0);
        while ((taken = fi_cq_readfrom(cq, &entry, 1, &source)) == -FI_EAGAIN)
            ;
        EXPECT(taken == 1 && entry.op_context == others && source == OTHER);
        EXPECT((tagged ? POSTED(fi_tinject(ep, "myself..", 8, SELF, 5)) : POSTED(fi_inject(ep, "myself..", 8, SELF))) == 0);
        while ((taken = fi_cq_readfrom(cq, &entry, 1, &source)) == -FI_EAGAIN)
            ;
        EXPECT(taken == 1 && entry.op_context == mine && source == SELF && memcmp(mine, "myself..", 8) == 0);
    }
}

static void several(void) {
    static uint8_t room[256];
    struct iovec iov = {room, sizeof room};
    struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = room};
    size_t least = 64, got = 0, size = sizeof got;
    EXPECT(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least) == 0);
    EXPECT(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &got, &size) == 0 && got == least);
    EXPECT(fi_recvmsg(ep, &message, FI_MULTI_RECV | FI_COMPLETION) == 0);
    fill(60, 3);
    for (int i = 0; i < 4; i++)
        EXPECT(POSTED(fi_injectdata(other, from, 60, (uint64_t)i, SELF)) == 0);
    for (int i = 0; i < 4; i++) {
        struct fi_cq_err_entry entry = received();
        EXPECT(entry.err == 0 && entry.op_context == room && entry.len == 60 && entry.data == (uint64_t)i);
        EXPECT((uint8_t *)entry.buf == room + i * 64 && memcmp(entry.buf, from, 60) == 0);
        /* The last message leaves less than the minimum, so the buffer returns with it. */
        EXPECT(!!(entry.flags & FI_MULTI_RECV) == (i == 3));
        if (i == 3)
            break;
    }
    /* A message that no buffer has room for waits. The last buffer returns all the same, and a further one takes the message. */
    EXPECT(fi_recvmsg(ep, &message, FI_MULTI_RECV | FI_COMPLETION) == 0);
    for (int i = 0; i < 2; i++)
        EXPECT(POSTED(fi_injectdata(other, from, 150, (uint64_t)i, SELF)) == 0);
    struct fi_cq_err_entry entry = received();
    EXPECT(entry.err == 0 && entry.len == 150 && entry.data == 0 && !(entry.flags & FI_MULTI_RECV));
    entry = next();
    EXPECT(entry.err == 0 && entry.op_context == room && entry.flags == FI_MULTI_RECV);
    EXPECT(fi_recvmsg(ep, &message, FI_MULTI_RECV | FI_COMPLETION) == 0);
    entry = received();
    EXPECT(entry.err == 0 && entry.len == 150 && entry.data == 1 && entry.buf == room);
    EXPECT(fi_cancel(&ep->fid, room) == 0 && next().err == FI_ECANCELED);
}

static void pieces(void) {
    static uint8_t parts[3][100];
    struct iovec out[2] = {{from, 150}, {from + 200, 150}}, in[3] = {{parts[0], 100}, {parts[1], 100}, {parts[2], 100}};
    fill(400, 9);
    EXPECT(fi_recvv(ep, in, NULL, 3, FI_ADDR_UNSPEC, in) == 0);
    EXPECT(POSTED(fi_sendv(other, out, NULL, 2, SELF, NULL)) == 0);
    struct fi_cq_err_entry entry = received();
    EXPECT(entry.err == 0 && entry.len == 300);
    EXPECT(memcmp(parts[0], from, 100) == 0 && memcmp(parts[1], from + 100, 50) == 0 && memcmp(parts[1] + 50, from + 200, 50) == 0);
    EXPECT(memcmp(parts[2], from + 250, 100) == 0);
}

/* Puts with data, puts that the target counts, and puts without an entry. */
static void counted(void) {
    static uint8_t memory[LONG];
    struct fid_mr *mr;
    struct fid_cntr *arrived;
    EXPECT(fi_cntr_open(domain, NULL, &arrived, NULL) == 0);
    EXPECT(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 3, FI_RMA_EVENT, &mr, NULL) == 0);
    EXPECT(fi_mr_bind(mr, &arrived->fid, FI_REMOTE_WRITE) == 0 && fi_mr_enable(mr) == 0);
    fill(LONG, 5);
    EXPECT(POSTED(fi_write(other, from, LONG, NULL, SELF, 0, 3, NULL)) == 0);
    EXPECT(fi_cntr_wait(written, 1, 30000) == 0 && memcmp(memory, from, LONG) == 0);
    EXPECT(fi_cntr_wait(arrived, 1, 30000) == 0);
    EXPECT(POSTED(fi_writedata(other, from + 1, 100, NULL, 42, SELF, 0, 3, NULL)) == 0);
    struct fi_cq_err_entry entry = next();
    EXPECT(entry.err == 0 && entry.data == 42 && entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA));
    EXPECT(memcmp(memory, from + 1, 100) == 0 && fi_cntr_wait(arrived, 2, 30000) == 0);
    EXPECT(fi_cntr_wait(written, 2, 30000) == 0 && fi_cntr_wait(written, 3, 10) == -FI_ETIMEDOUT);
    /* An error ends a wait, also one that begins after the error, unless the application has read the number of errors. */
    for (int i = 0; i < 2; i++) {
        struct fi_cq_err_entry failed;
        EXPECT(POSTED(fi_write(other, from, 8, NULL, SELF, 0, 99, NULL)) == 0);
        while (fi_cq_read(other_cq, &failed, 1) == -FI_EAGAIN)
            ;
        EXPECT(fi_cq_readerr(other_cq, &failed, 0) == 1 && failed.err == FI_EKEYREJECTED);
        EXPECT(i == 0 ? fi_cntr_wait(written, 3, 30000) == -FI_EAVAIL : fi_cntr_readerr(written) == 2);
        EXPECT(fi_cntr_wait(written, 3, 10) == -FI_ETIMEDOUT);
    }
    struct fi_cq_tagged_entry none;
    EXPECT(fi_cq_read(other_cq, &none, 1) == -FI_EAGAIN);
    EXPECT(fi_close(&arrived->fid) == -FI_EBUSY && fi_close(&mr->fid) == 0 && fi_close(&arrived->fid) == 0);
}

static void waits(void) {
    struct fi_cq_tagged_entry entry;
    struct fid *fids[1] = {&cq->fid};
    int fd = -1;
    EXPECT(fi_cq_sread(cq, &entry, 1, NULL, 20) == -FI_EAGAIN);
    EXPECT(fi_control(&cq->fid, FI_GETWAIT, &fd) == 0 && fd >= 0);
    EXPECT(fi_recv(ep, to, 8, NULL, FI_ADDR_UNSPEC, to) == 0);
    while (fi_trywait(fabric, fids, 1) == -FI_EAGAIN)
        EXPECT(fi_cq_read(cq, &entry, 1) == -FI_EAGAIN);
    EXPECT(POSTED(fi_inject(other, "wake up!", 8, SELF)) == 0);
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    EXPECT(poll(&poll_fd, 1, 10000) == 1);
    EXPECT(fi_cq_sread(cq, &entry, 1, NULL, 10000) == 1 && entry.op_context == to);
    EXPECT(fi_cq_signal(cq) == 0 && fi_cq_sread(cq, &entry, 1, NULL, -1) == -FI_EAGAIN);
}

/* A message that is reported when the provider has a copy arrives, although its endpoint is closed at once. */
static void message_before_close(void) {
    struct fid_ep *third;
    fill(8, 9);
    EXPECT(fi_endpoint(domain, info, &third, NULL) == 0);
    EXPECT(fi_ep_bind(third, &av->fid, 0) == 0);
    EXPECT(fi_ep_bind(third, &other_cq->fid, FI_TRANSMIT | FI_RECV) == 0 && fi_enable(third) == 0);
    EXPECT(fi_trecv(ep, to, 8, NULL, FI_ADDR_UNSPEC, 0x900, 0, to) == 0);
    EXPECT(POSTED(fi_tinject(third, from, 8, SELF, 0x900)) == 0);
    EXPECT(fi_close(&third->fid) == 0);
    struct fi_cq_err_entry entry = received();
    EXPECT(entry.err == 0 && entry.tag == 0x900 && entry.len == 8 && memcmp(from, to, 8) == 0);
}

int main(void) {
    open_all();
    open_other();
    tags();
    peeks();
    senders();
    several();
    pieces();
    counted();
    waits();
    message_before_close();
    EXPECT(fi_close(&other->fid) == 0 && fi_close(&other_cq->fid) == 0);
    EXPECT(fi_close(&sent->fid) == 0 && fi_close(&written->fid) == 0);
    close_all();
    printf("messages: passed\n");
    return 0;
}
