/* An injected message is with the transport when the call returns: the receiver gets it, though the sender makes no further call. The
   sender is a process that waits for a word of the receiver, as a program in a call of its launcher does. With the argument `bursts`,
   the transport is not filled: over TCP, the end of a full connection's data waits for later calls. */
#define WANTED (FI_MSG | FI_TAGGED)
#include "opened.h"
#include <poll.h>
#include <rdma/fi_tagged.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

enum { PEER = 0, TAG = 5, LONG = 4096, TRIES = 2000, MOST = 1 << 20, BURST = 20 };
static int line, only_bursts;
static uint8_t bytes[LONG];

static void say(const void *what, size_t len) {
    EXPECT(write(line, what, len) == (ssize_t)len);
}

static void hear(void *what, size_t len) {
    EXPECT(read(line, what, len) == (ssize_t)len);
}

/* Injects numbered messages until the transport has accepted none for a while. Returns their number. */
static uint64_t fill(size_t len) {
    uint64_t count = 0;
    for (int refused = 0; refused < TRIES && count < MOST;) {
        memcpy(bytes, &count, sizeof count);
        ssize_t said = fi_tinjectdata(ep, bytes, len, count, PEER, TAG);
        EXPECT(said == 0 || said == -FI_EAGAIN);
        if (said)
            EXPECT(fi_cq_read(cq, NULL, 0) == -FI_EAGAIN);
        refused = said ? refused + 1 : 0;
        count += said == 0;
    }
    return count;
}

static void sender(void) {
    uint8_t name[64];
    char word;
    hear(name, sizeof name);
    open_all();
    EXPECT(fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
    EXPECT(POSTED(fi_tinject(ep, "first", 6, PEER, TAG)) == 0);
    say("", 1);
    hear(&word, 1);
    for (int i = 0; i < BURST; i++)
        EXPECT((i % 2 ? fi_tinjectdata(ep, "next", 5, 0, PEER, TAG) : fi_tinject(ep, "next", 5, PEER, TAG)) == 0);
    hear(&word, 1);
    for (size_t len = 8; !only_bursts && len <= LONG; len *= LONG / 8) {
        uint64_t count = fill(len);
        EXPECT(count > 0 && count < MOST);
        say(&count, sizeof count);
        hear(&word, 1);
    }
    close_all();
}

static void receive(size_t len, const void *expected) {
    EXPECT(fi_trecv(ep, bytes, LONG, NULL, FI_ADDR_UNSPEC, TAG, 0, bytes) == 0);
    struct fi_cq_err_entry entry = next();
    EXPECT(entry.err == 0 && entry.len == len && memcmp(bytes, expected, len < 8 ? len : 8) == 0);
}

static void receiver(void) {
    uint8_t name[64] = {0};
    size_t len = sizeof name;
    open_all();
    EXPECT(fi_getname(&ep->fid, name, &len) == 0);
    say(name, sizeof name);
    /* The first message needs this side's progress, and none of the sender after its call. */
    struct pollfd words = {.fd = line, .events = POLLIN};
    while (poll(&words, 1, 0) == 0)
        EXPECT(fi_cq_read(cq, NULL, 0) == -FI_EAGAIN);
    char word;
    hear(&word, 1);
    receive(6, "first");
    say("", 1);
    /* So do the last ones of several messages between which the sender makes no other call. */
    for (int i = 0; i < BURST; i++)
        receive(5, "next");
    for (size_t size = 8; !only_bursts && size <= LONG; size *= LONG / 8) {
        /* This side makes no progress until the transport is full. */
        uint64_t count;
        say("", 1);
        hear(&count, sizeof count);
        for (uint64_t n = 0; n < count; n++)
            receive(size, &n);
    }
    say("", 1);
    close_all();
}

int main(int count, char **words) {
    int ends[2];
    only_bursts = count > 1 && strcmp(words[1], "bursts") == 0;
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    EXPECT(child >= 0);
    line = ends[child == 0];
    EXPECT(close(ends[child != 0]) == 0);
    if (child == 0) {
        EXPECT(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        sender();
        return 0;
    }
    receiver();
    int status;
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("handed: passed\n");
    return 0;
}
