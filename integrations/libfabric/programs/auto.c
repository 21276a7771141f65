/* Automatic progress: a peer that makes no call answers, receives, and is the target of puts and gets. */
#define WANTED (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC)
#define PROGRESS FI_PROGRESS_AUTO
#include "opened.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEY = 5, LEN = 1 << 20 };
static uint8_t memory[LEN], mine[LEN];

static void be_the_peer(int to) {
    uint8_t name[64];
    size_t len = sizeof name;
    struct fid_mr *mr;
    EXPECT(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    open_all();
    EXPECT(info->domain_attr->data_progress == FI_PROGRESS_AUTO);
    EXPECT(fi_mr_reg(domain, memory, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL) == 0);
    memset(memory, 7, LEN);
    EXPECT(fi_recv(ep, mine, LEN, NULL, FI_ADDR_UNSPEC, mine) == 0);
    EXPECT(fi_getname(&ep->fid, name, &len) == 0 && write(to, name, sizeof name) == sizeof name);
    for (;;)
        pause();
}

int main(void) {
    uint8_t name[64];
    int ends[2], status;
    uint64_t one = 1, before = 0;
    EXPECT(pipe(ends) == 0);
    pid_t peer = fork();
    if (peer == 0)
        be_the_peer(ends[1]);
    EXPECT(peer > 0 && close(ends[1]) == 0 && read(ends[0], name, sizeof name) == sizeof name);
    open_all();
    EXPECT(fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
    DONE(fi_read(ep, mine, LEN, NULL, 0, 0, KEY, NULL));
    EXPECT(mine[0] == 7 && mine[LEN - 1] == 7);
    DONE(fi_write(ep, mine + 1, 100, NULL, 0, 0, KEY, NULL));
    DONE(fi_fetch_atomic(ep, &one, 1, NULL, &before, NULL, 0, 8, KEY, FI_UINT64, FI_SUM, NULL));
    EXPECT(before == 0x0707070707070707);
    /* The sends complete with the delivery: a rendezvous message when the peer has received it. */
    DONE(fi_send(ep, mine, LEN, NULL, 0, NULL));
    DONE(fi_send(ep, mine, 100, NULL, 0, NULL));
    close_all();
    EXPECT(kill(peer, SIGKILL) == 0 && waitpid(peer, &status, 0) == peer);
    printf("auto: passed\n");
    return 0;
}
