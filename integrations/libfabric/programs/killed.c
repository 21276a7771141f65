/* A stopped peer, and a killed peer: no operation ends early, every accepted operation ends, and posts do not return -FI_EAGAIN
   forever. */
#define WANTED (FI_MSG | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_MULTI_RECV)
#include "opened.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEY = 5, LEN = 4096, MANY = 64 };

/* Receives all messages and is the target of puts, until it is killed. */
static void be_the_peer(int to) {
    static uint8_t memory[LEN], received[MANY][8];
    uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE;
    uint8_t name[64];
    size_t len = sizeof name;
    struct fid_mr *mr;
    /* The peer ends together with its parent, even if the parent fails. */
    EXPECT(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    open_all();
    EXPECT(fi_mr_reg(domain, memory, sizeof memory, access, 0, KEY, 0, &mr, NULL) == 0);
    for (int i = 0; i < MANY; i++)
        EXPECT(fi_recv(ep, received[i], sizeof received[i], NULL, FI_ADDR_UNSPEC, received[i]) == 0);
    EXPECT(fi_getname(&ep->fid, name, &len) == 0 && write(to, name, sizeof name) == sizeof name);
    for (;;) {
        struct fi_cq_err_entry entry = next();
        EXPECT(entry.err == 0 && fi_recv(ep, entry.op_context, 8, NULL, FI_ADDR_UNSPEC, entry.op_context) == 0);
    }
}

int main(void) {
    static uint8_t bytes[LEN], word[8], only[8], any[8];
    uint8_t name[64];
    int ends[2];
    EXPECT(pipe(ends) == 0);
    pid_t peer = fork();
    if (peer == 0)
        be_the_peer(ends[1]);
    EXPECT(peer > 0 && close(ends[1]) == 0 && read(ends[0], name, sizeof name) == sizeof name);
    open_all();
    EXPECT(fi_av_insert(av, name, 1, NULL, 0, NULL) == 1 && fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
    for (int i = 0; i < MANY; i++)
        DONE(fi_send(ep, word, sizeof word, NULL, 0, word));
    DONE(fi_write(ep, bytes, sizeof bytes, NULL, 0, 0, KEY, bytes));

    /* While the peer is stopped, a send does not complete. The test bounds the number of polls rather than the time. */
    int status;
    EXPECT(kill(peer, SIGSTOP) == 0 && waitpid(peer, &status, WUNTRACED) == peer && WIFSTOPPED(status));
    /* A second address with the same name needs no lookup, which the peer would have to answer. */
    struct iovec iov = {word, sizeof word};
    struct fi_msg again = {.msg_iov = &iov, .iov_count = 1, .addr = 1, .context = word};
    struct fi_cq_err_entry at_once = {0};
    EXPECT(fi_sendmsg(ep, &again, FI_COMPLETION | FI_INJECT_COMPLETE) == 0);
    EXPECT(fi_cq_read(cq, &at_once, 1) == 1 && at_once.op_context == word);
    EXPECT(POSTED(fi_send(ep, word, sizeof word, NULL, 0, word)) == 0);
    for (int i = 0; i < 1000; i++) {
        struct fi_cq_err_entry none;
        EXPECT(fi_cq_read(cq, &none, 1) == -FI_EAGAIN);
    }
    EXPECT(kill(peer, SIGCONT) == 0 && next().err == 0);

    /* The peer is killed while messages are in flight: each accepted one ends as failed, and later operations
       fail. */
    EXPECT(kill(peer, SIGSTOP) == 0 && waitpid(peer, &status, WUNTRACED) == peer);
    int posted = 0, ended = 0, failed = 0, only_ended = 0;
    EXPECT(fi_recv(ep, only, sizeof only, NULL, 0, only) == 0 && fi_recv(ep, any, sizeof any, NULL, FI_ADDR_UNSPEC, any) == 0);
    for (; posted < MANY; posted++)
        EXPECT(POSTED(fi_send(ep, word, sizeof word, NULL, 0, word)) == 0);
    EXPECT(kill(peer, SIGKILL) == 0 && waitpid(peer, &status, 0) == peer && WIFSIGNALED(status));
    /* A receive that only the peer can match ends as well. */
    for (; ended < posted + 1; ended++) {
        struct fi_cq_err_entry entry = next();
        failed += entry.err != 0;
        only_ended += entry.op_context == only;
    }
    EXPECT(failed == posted + 1 && only_ended == 1);
    /* A message fails by its entry. One without an entry fails in its call. */
    EXPECT(POSTED(fi_send(ep, word, sizeof word, NULL, 0, word)) == 0);
    struct fi_cq_err_entry entry = next();
    EXPECT(entry.op_context == word && (entry.err == FI_ENOTCONN || entry.err == FI_EHOSTUNREACH));
    EXPECT(POSTED(fi_inject(ep, word, sizeof word, 0)) < 0);
    ssize_t said = POSTED(fi_write(ep, bytes, sizeof bytes, NULL, 0, 0, KEY, bytes));
    EXPECT(said < 0 || next().err != 0);
    /* A further such receive ends at once; a receive from anybody stays. */
    EXPECT(fi_recv(ep, word, sizeof word, NULL, 0, word) == 0);
    entry = next();
    EXPECT(entry.op_context == word && entry.err != 0);
    again.addr = 0;
    EXPECT(fi_recvmsg(ep, &again, FI_MULTI_RECV) == 0);
    entry = next();
    EXPECT(entry.op_context == word && entry.err != 0);
    EXPECT(fi_cq_read(cq, NULL, 0) == -FI_EAGAIN && fi_cancel(&ep->fid, any) == 0);
    entry = next();
    EXPECT(entry.op_context == any && entry.err == FI_ECANCELED);
    close_all();
    printf("killed: passed\n");
    return 0;
}
