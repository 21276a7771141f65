/*
 * Counts the instructions that a program executes between one send and the next, for `cargo xtask bench --lab`.
 *
 *     steps FROM COUNT PROGRAM ARGUMENTS...
 *
 * Soft RoCE's doorbell is a write() of the command POST_SEND. The program runs normally until it has rung FROM doorbells; then it
 * is single-stepped until COUNT more. For each of these a line gives three counts: the instructions between two doorbells, the
 * instructions in the driver's library, and the entries into that library (including the send):
 *
 *     steps 511 172 3
 *
 * Kernel code that is mapped into the program and returns the time (vDSO) is not counted: its number of retries depends on the
 * emulator.
 *
 * After each doorbell the program is held until a packet has arrived and then no packet for a short time, so that the awaited data
 * is present when the program polls. If the hold was too short, the count includes turns of a waiting loop, so the smallest of
 * several counts is used. The hold is short, because some programs do additional work after a pause.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <rdma/ib_user_verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PACKETS "/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts"
#define DRIVER "/librxe-"
#define CLOCK "[vdso]"
#define LOOK 2 /* ms */
#define QUIET 5    /* looks without a packet, once there was one */
#define PATIENCE 50 /* looks for the first */

/* The address range of a file's mapped code. */
struct code {
    uint64_t from, to;
};

static pid_t child;
static struct code driver_code, clock_code;

static void die(const char *what)
{
    fprintf(stderr, "steps: %s: %s\n", what, strerror(errno));
    if (child > 0) {
        kill(child, SIGKILL);
    }
    exit(1);
}

/* Lets the program continue, and waits until it stops again. Other signals of the program are delivered to it. */
static void on(int request)
{
    int status, signal = 0;
    for (;;) {
        if (ptrace(request, child, 0, signal) < 0 || waitpid(child, &status, 0) < 0) {
            die("the program is gone");
        }
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            child = 0;
            errno = 0;
            die("the program ended before all of it was counted");
        }
        signal = WSTOPSIG(status);
        if (signal == SIGTRAP || signal == (SIGTRAP | 0x80)) {
            return;
        }
    }
}

static uint64_t word(uint64_t address)
{
    return (uint64_t)ptrace(PTRACE_PEEKDATA, child, address, 0);
}

static struct user_regs_struct registers(void)
{
    struct user_regs_struct now;
    if (ptrace(PTRACE_GETREGS, child, 0, &now) < 0) {
        die("the registers cannot be read");
    }
    return now;
}

/* Checks whether the system call that is about to be made is a doorbell. */
static int is_doorbell(const struct user_regs_struct *at, uint64_t number)
{
    return number == SYS_write && at->rdx >= 8 && at->rdi > 2 && (uint32_t)word(at->rsi) == IB_USER_VERBS_CMD_POST_SEND;
}

/* Checks whether the instruction at this address is `syscall` (0f 05). */
static int is_syscall(uint64_t address)
{
    return (word(address) & 0xffff) == 0x050f;
}

static long packets(void)
{
    long count = -1;
    FILE *file = fopen(PACKETS, "r");
    if (!file || fscanf(file, "%ld", &count) != 1) {
        die(PACKETS);
    }
    fclose(file);
    return count;
}

/* Holds the program until its packets are answered. `seen` is the number of packets that had arrived before they were sent. */
static void hold(long seen)
{
    int came = 0;
    for (int quiet = 0; quiet < (came ? QUIET : PATIENCE); quiet++) {
        long before = seen;
        nanosleep(&(struct timespec){0, LOOK * 1000000}, NULL);
        seen = packets();
        if (seen != before) {
            came = 1;
            quiet = -1;
        }
    }
}

/* Finds the executable mapping of the first file whose path contains this name. */
static struct code mapped(const char *file_name)
{
    char name[64], line[512];
    struct code code = {0, 0};
    snprintf(name, sizeof name, "/proc/%d/maps", child);
    FILE *file = fopen(name, "r");
    if (!file) {
        die(name);
    }
    while (!code.to && fgets(line, sizeof line, file)) {
        char rights[8];
        uint64_t from, to;
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && rights[2] == 'x' && strstr(line, file_name)) {
            code = (struct code){from, to};
        }
    }
    fclose(file);
    return code;
}

static int is_in(uint64_t address, struct code code)
{
    return address >= code.from && address < code.to;
}

/* Single-steps from the end of one doorbell to the end of the next. */
static void interval(long *steps, long *driver, long *entries)
{
    struct user_regs_struct at = registers();
    int inside = is_in(at.rip, driver_code);
    *steps = *driver = *entries = 0;
    for (;;) {
        int rings = is_doorbell(&at, at.rax) && is_syscall(at.rip);
        *steps += !is_in(at.rip, clock_code);
        on(PTRACE_SINGLESTEP);
        at = registers();
        *driver += inside;
        int was = inside;
        inside = is_in(at.rip, driver_code);
        /* A call stores the return address below the previous top of the stack; after a return, the instruction pointer equals the
           value that was just popped. */
        if (inside && !was && word(at.rsp - 8) != at.rip) {
            ++*entries;
        }
        if (rings) {
            return;
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: steps FROM COUNT PROGRAM ARGUMENTS...\n");
        return 2;
    }
    long from = atol(argv[1]), count = atol(argv[2]);
    child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execvp(argv[3], argv + 3);
        perror(argv[3]);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) {
        die(argv[3]);
    }
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    long seen = packets();
    for (long rung = 0; rung < from;) {
        seen = packets();
        on(PTRACE_SYSCALL);
        struct user_regs_struct at = registers();
        int rings = is_doorbell(&at, at.orig_rax);
        on(PTRACE_SYSCALL);
        rung += rings;
    }
    driver_code = mapped(DRIVER);
    clock_code = mapped(CLOCK);
    for (long i = 0; i < count; i++) {
        long steps, driver, entries;
        hold(seen);
        seen = packets();
        interval(&steps, &driver, &entries);
        printf("steps %ld %ld %ld\n", steps, driver, entries);
        fflush(stdout);
    }
    /* The rest of the program runs normally, so that the other side receives its end. */
    ptrace(PTRACE_DETACH, child, 0, 0);
    if (waitpid(child, &status, 0) < 0) {
        die("wait");
    }
    return 0;
}
