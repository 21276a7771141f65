/* A peer that reads its queue seldom answers the first operation to it after some reads, not after thousands. */
#define WANTED (FI_MSG | FI_RMA | FI_ATOMIC)
#include "opened.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 50000, MOST = 1000 };

static int be_the_peer(int to) {
    static uint8_t bytes[8];
    struct fi_cq_err_entry entry;
    uint8_t name[64];
    size_t len = sizeof name;
    int reads = 0;
    EXPECT(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    open_all();
    EXPECT(fi_recv(ep, bytes, sizeof bytes, NULL, FI_ADDR_UNSPEC, bytes) == 0);
    /* After so many reads without an entry, rare polls are as rare as they become. */
    for (int i = 0; i < MANY; i++)
        EXPECT(fi_cq_read(cq, &entry, 1) == -FI_EAGAIN);
    EXPECT(fi_getname(&ep->fid, name, &len) == 0 && write(to, name, sizeof name) == sizeof name);
    for (; fi_cq_read(cq, &entry, 1) == -FI_EAGAIN; reads++) {
        EXPECT(reads < MOST);
        usleep(2000);
    }
    /* The sender waits for the delivery. */
    close_all();
    return 0;
}

int main(void) {
    static uint8_t bytes[8];
    uint8_t name[64];
    int ends[2], status;
    EXPECT(pipe(ends) == 0);
    pid_t peer = fork();
    if (peer == 0)
        return be_the_peer(ends[1]);
    EXPECT(peer > 0 && close(ends[1]) == 0 && read(ends[0], name, sizeof name) == sizeof name);
    open_all();
    EXPECT(fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
    DONE(fi_send(ep, bytes, sizeof bytes, NULL, 0, bytes));
    EXPECT(waitpid(peer, &status, 0) == peer && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close_all();
    printf("seldom: passed\n");
    return 0;
}
