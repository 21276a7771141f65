/* Messages that nobody receives: the receiver keeps a bounded number of them, every receive still gets its message, and no post
   returns -FI_EAGAIN forever. One process with two endpoints, and then a peer that is killed. */
#define WANTED (FI_MSG | FI_TAGGED | FI_MULTI_RECV)
#include "opened.h"
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SELF = 0, OTHER = 1, LEN = 1024, MARK = 8 << 20, SLACK = 32 << 20, TRIES = 3000 };
static struct fid_ep *other;
static struct fid_cq *other_cq;
static uint8_t from[LEN], to[LEN];

static void open_other(void) {
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
    uint8_t name[64];
    size_t len = sizeof name;
    EXPECT(fi_cq_open(domain, &cq_attr, &other_cq, NULL) == 0);
    EXPECT(fi_endpoint(domain, info, &other, NULL) == 0);
    EXPECT(fi_ep_bind(other, &av->fid, 0) == 0 && fi_ep_bind(other, &other_cq->fid, FI_TRANSMIT | FI_RECV) == 0);
    EXPECT(fi_enable(other) == 0);
    EXPECT(fi_getname(&ep->fid, name, &len) == 0 && fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
    EXPECT(fi_getname(&other->fid, name, &len) == 0 && fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
}

static struct fi_cq_err_entry received(struct fid_cq *queue) {
    struct fi_cq_err_entry entry = {0};
    ssize_t taken;
    while ((taken = fi_cq_read(queue, &entry, 1)) == -FI_EAGAIN)
        ;
    EXPECT(taken == 1);
    return entry;
}

/* Sends numbered messages with tag 1 until the post is refused many times in succession. Returns the number of messages. */
static uint64_t flood(struct fid_ep *ep, uint64_t first) {
    uint64_t count = first;
    for (int refused = 0; refused < TRIES && count * LEN < 16 * MARK;) {
        memcpy(from, &count, sizeof count);
        ssize_t said = fi_tinject(ep, from, LEN, SELF, 1);
        EXPECT(said == 0 || said == -FI_EAGAIN);
        if (said)
            EXPECT(fi_cq_read(cq, NULL, 0) == -FI_EAGAIN);
        refused = said ? refused + 1 : 0;
        count += said == 0;
    }
    return count;
}

static void receive_all(uint64_t first, uint64_t end) {
    for (uint64_t got, n = first; n < end; n++) {
        EXPECT(fi_trecv(ep, to, LEN, NULL, FI_ADDR_UNSPEC, 1, 0, to) == 0);
        struct fi_cq_err_entry entry = received(cq);
        memcpy(&got, to, sizeof got);
        EXPECT(entry.len == LEN && entry.tag == 1 && got == n);
    }
}

static void bounded(void) {
    static uint8_t room[4096];
    struct iovec iov = {room, sizeof room};
    struct fi_msg several = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = room};
    struct fi_context2 context;
    struct fi_msg_tagged peek = {.addr = FI_ADDR_UNSPEC, .tag = 3, .context = &context};
    struct fi_cq_err_entry entry;

    /* The buffer for messages without a tag is always there. It accepts none of these messages. */
    EXPECT(fi_recvmsg(ep, &several, FI_MULTI_RECV) == 0);
    uint64_t count = flood(other, 0);
    EXPECT(count * LEN > MARK / 2 && count * LEN < MARK + SLACK);

    /* A receive waits for a message that was sent after the messages that wait. */
    EXPECT(fi_trecv(ep, to, LEN, NULL, FI_ADDR_UNSPEC, 2, 0, to) == 0);
    EXPECT(POSTED(fi_tinject(other, "two", 4, SELF, 2)) == 0);
    entry = received(cq);
    EXPECT(entry.tag == 2 && entry.len == 4 && strcmp((char *)to, "two") == 0);

    /* So does a search, and so does the buffer for messages without a tag. */
    count = flood(other, count);
    EXPECT(count * LEN < MARK + 2 * SLACK);
    EXPECT(POSTED(fi_tinject(other, "three", 6, SELF, 3)) == 0);
    ssize_t taken;
    do {
        /* The sender makes progress, as it would in its own process. */
        fi_cq_read(other_cq, NULL, 0);
        EXPECT(fi_trecvmsg(ep, &peek, FI_PEEK) == 0);
        while ((taken = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
            ;
        if (taken == -FI_EAVAIL)
            EXPECT(fi_cq_readerr(cq, &entry, 0) == 1 && entry.err == FI_ENOMSG);
    } while (taken != 1);
    EXPECT(entry.tag == 3 && entry.len == 6);
    count = flood(other, count);
    EXPECT(POSTED(fi_inject(other, "plain", 6, SELF)) == 0);
    entry = received(cq);
    EXPECT(entry.op_context == room && entry.len == 6 && strcmp((char *)room, "plain") == 0);

    /* Nothing waits for a further message, and it is accepted nevertheless. Then all messages are received in order. */
    uint64_t further = count;
    memcpy(from, &further, sizeof further);
    EXPECT(POSTED(fi_tinject(other, from, LEN, SELF, 1)) == 0);
    receive_all(0, count + 1);
    EXPECT(fi_trecv(ep, to, LEN, NULL, FI_ADDR_UNSPEC, 3, 0, to) == 0 && received(cq).tag == 3);
    EXPECT(fi_cancel(&ep->fid, room) == 0 && next().err == FI_ECANCELED);
}

/* An endpoint that sends to itself cannot receive in the meantime, so all of its messages are accepted at once. */
static void itself(void) {
    uint64_t end = 3 * MARK / LEN;
    for (uint64_t n = 0; n < end; n++) {
        memcpy(from, &n, sizeof n);
        EXPECT(POSTED(fi_tinject(ep, from, LEN, SELF, 1)) == 0);
    }
    receive_all(0, end);
}

/* Makes progress and receives nothing, until it is killed. */
static void be_the_peer(int out) {
    uint8_t name[64];
    size_t len = sizeof name;
    EXPECT(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    open_all();
    EXPECT(fi_getname(&ep->fid, name, &len) == 0 && write(out, name, sizeof name) == sizeof name);
    for (;;)
        EXPECT(fi_cq_read(cq, NULL, 0) == -FI_EAGAIN);
}

/* The messages that are held back for a peer fail when the peer is killed. */
static void killed(pid_t peer, const uint8_t *name) {
    struct fi_cq_err_entry entry;
    int status, ended = 0, failed = 0, posted = 0;
    fi_addr_t address;
    EXPECT(fi_av_insert(av, name, 1, &address, 0, NULL) == 1);
    for (int refused = 0; refused < TRIES; posted += !refused) {
        ssize_t said = fi_tsend(ep, from, LEN, NULL, address, 1, NULL);
        EXPECT(said == 0 || said == -FI_EAGAIN);
        refused = said ? refused + 1 : 0;
    }
    EXPECT(kill(peer, SIGKILL) == 0 && waitpid(peer, &status, 0) == peer);
    for (; ended < posted; ended++) {
        entry = next();
        failed += entry.err != 0;
    }
    /* The last 1024 messages waited in this process. A grant of 256 KiB that was on its way has released 228 of them. */
    EXPECT(failed >= 1024 - 228);
}

int main(void) {
    uint8_t name[64];
    int ends[2];
    EXPECT(pipe(ends) == 0);
    pid_t peer = fork();
    if (peer == 0)
        be_the_peer(ends[1]);
    EXPECT(peer > 0 && close(ends[1]) == 0 && read(ends[0], name, sizeof name) == sizeof name);
    open_all();
    open_other();
    bounded();
    itself();
    killed(peer, name);
    EXPECT(fi_close(&other->fid) == 0 && fi_close(&other_cq->fid) == 0);
    close_all();
    printf("flood: passed\n");
    return 0;
}
