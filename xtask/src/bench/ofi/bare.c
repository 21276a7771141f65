/* Loops of fi_sendmsg, fi_writemsg and fi_readmsg between two processes on loopback, for `cargo xtask bench`:
 *
 *     bare PROVIDER TEST BYTES SECONDS
 *
 * send_lat   the latency of a message: half of a ping and its pong
 * put_lat    as send_lat, by writes that complete at the target, which polls its memory
 * get_lat    a single read
 * put_bw     a stream of writes, of which 16 are in flight
 * memory     the growth of this process's memory by an endpoint, and by a peer that sends and receives messages
 *
 * The output is the nanoseconds of one operation (the median over batches) for latency tests, and bytes per second for
 * streams.
 */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVES = 64, SLOT = 8256, WINDOW = 16, LONGEST = 4 << 20 };

static struct fid_ep *ep;
static struct fid_cq *cq;
static fi_addr_t peer;
static struct fi_context2 contexts[RECEIVES + WINDOW];
static char *receives, *memory, *local;
static uint64_t key;
static long arrived, ended;

static void must(const char *what, long code)
{
    if (code) {
        fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-code));
        exit(1);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Returns the memory of this process without program files that was written, as `tieline footprint` counts it. */
static long written(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long all = 0, kib;
    if (!file)
        must("smaps_rollup", -FI_ENOENT);
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "Pss_Anon: %ld", &kib) == 1 || sscanf(line, "Pss_Shmem: %ld", &kib) == 1)
            all += kib * 1024;
    fclose(file);
    return all;
}

static void receive(long n)
{
    struct iovec iov = { receives + n * SLOT, SLOT };
    struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &contexts[n] };
    long code;
    do
        code = fi_recvmsg(ep, &msg, FI_COMPLETION);
    while (code == -FI_EAGAIN);
    must("fi_recvmsg", code);
}

static void look(void)
{
    struct fi_cq_data_entry entries[16];
    long count = fi_cq_read(cq, entries, 16);
    if (count == -FI_EAGAIN)
        return;
    if (count < 0) {
        struct fi_cq_err_entry error = { 0 };
        fi_cq_readerr(cq, &error, 0);
        must("a completion", -error.err);
    }
    for (long i = 0; i < count; i++) {
        long n = (struct fi_context2 *)entries[i].op_context - contexts;
        if (n < RECEIVES) {
            arrived++;
            receive(n);
        } else {
            ended++;
        }
    }
}

static void send_one(long bytes)
{
    struct iovec iov = { local, bytes };
    struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = peer, .context = &contexts[RECEIVES] };
    long code;
    while ((code = fi_sendmsg(ep, &msg, FI_COMPLETION)) == -FI_EAGAIN)
        look();
    must("fi_sendmsg", code);
}

static void transfer(int put, void *from, long bytes, long n)
{
    struct iovec iov = { from, bytes };
    struct fi_rma_iov there = { 0, bytes, key };
    struct fi_msg_rma msg = { .msg_iov = &iov, .iov_count = 1, .addr = peer, .rma_iov = &there, .rma_iov_count = 1,
                              .context = &contexts[RECEIVES + n] };
    long code;
    for (;;) {
        code = put ? fi_writemsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE) : fi_readmsg(ep, &msg, FI_COMPLETION);
        if (code != -FI_EAGAIN)
            break;
        look();
    }
    must("fi_writemsg", code);
}

/* One turn of a ping-pong; `first` begins. */
static void turn(const char *test, int first, long bytes, long n)
{
    for (int half = 0; half < 2; half++) {
        int mine = first == (half == 0);
        if (!strcmp(test, "send_lat")) {
            long before = ended;
            if (mine) {
                send_one(bytes);
                while (ended == before)
                    look();
            } else {
                while (arrived <= n)
                    look();
            }
        } else if (mine) {
            /* The last byte identifies the turn. */
            long before = ended;
            local[bytes - 1] = (char)(n + 1);
            transfer(1, local, bytes, 0);
            while (ended == before)
                look();
        } else {
            while (*(volatile char *)(memory + bytes - 1) != (char)(n + 1))
                look();
        }
    }
}

static int by_size(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    const char *test = argv[2];
    long bytes = atol(argv[3]);
    double seconds = atof(argv[4]);
    int to[2], back[2];
    must("pipe", pipe(to) | pipe(back));
    pid_t child = fork();
    int first = child != 0;
    if (!first)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(first ? 0 : 1);
    int memory_alone = !strcmp(test, "memory");
    if (memory_alone)
        test = "send_lat";
    long before = written();

    struct fi_info *hints = fi_allocinfo(), *info;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->fabric_attr->prov_name = strdup(argv[1]);
    hints->addr_format = FI_SOCKADDR_IN;
    must("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_mr *mr;
    must("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    must("fi_domain", fi_domain(fabric, info, &domain, NULL));
    struct fi_cq_attr cq_attr = { .size = 1024, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD };
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 64 };
    must("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
    must("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
    must("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
    must("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
    must("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
    must("fi_enable", fi_enable(ep));
    long of_endpoint = written() - before;
    receives = calloc(RECEIVES, SLOT);
    memory = aligned_alloc(4096, LONGEST);
    local = aligned_alloc(4096, LONGEST);
    memset(memory, 0, LONGEST);
    memset(local, 0, LONGEST);
    must("fi_mr_reg", fi_mr_reg(domain, memory, LONGEST, FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE, 0,
                                7, 0, &mr, NULL));
    for (long n = 0; n < RECEIVES; n++)
        receive(n);

    char name[64] = { 0 };
    size_t len = sizeof(name);
    must("fi_getname", fi_getname(&ep->fid, name, &len));
    if (write(first ? to[1] : back[1], name, 64) != 64 || read(first ? back[0] : to[0], name, 64) != 64)
        return 1;
    before = written();
    must("fi_av_insert", fi_av_insert(av, name, 1, &peer, 0, NULL) - 1);
    key = 7;

    int turns = strstr(test, "_lat") && strcmp(test, "get_lat");
    /* The first batch of a stream forms the connection, and is not counted. */
    long n = 0, warm = strstr(test, "_bw") ? 256 : 50;
    if (!turns && !first) {
        /* The target sleeps while there is nothing to do, as Tieline does, because the kernel's side of the connection
           runs on the same processor. */
        int fd;
        must("FI_GETWAIT", fi_control(&cq->fid, FI_GETWAIT, &fd));
        while (!arrived) {
            look();
            struct fid *fids[] = { &cq->fid };
            if (fi_trywait(fabric, fids, 1) == 0) {
                struct pollfd one = { .fd = fd, .events = POLLIN };
                poll(&one, 1, 100);
            }
        }
        return 0;
    }
    int stop = 0;
    long most = memory_alone ? 0 : 1 << 20;
    double *batches = calloc(most + 1, sizeof(double)), begin = 0, all = 0;
    long count = 0, total = 0;
    while (!stop) {
        double start = now();
        if (turns) {
            turn(test, first, bytes, n++);
        } else if (!strcmp(test, "get_lat")) {
            long before = ended;
            transfer(0, local, bytes, 0);
            while (ended == before)
                look();
            n++;
        } else {
            long base = ended;
            for (long i = 0; i < 256; i++) {
                while (i - (ended - base) >= WINDOW)
                    look();
                transfer(1, local, bytes, i % WINDOW);
            }
            while (ended - base < 256)
                look();
            n += 256;
        }
        double took = now() - start;
        long done = strstr(test, "_lat") ? 1 : 256;
        if (n <= warm) {
            begin = now();
        } else if (count < most) {
            batches[count++] = took / done / (turns ? 2 : 1);
            all += took;
            total += done;
        }
        /* Both sides stop at the same turn: the first side announces the end after each batch. */
        char more = now() - begin < seconds * 1e9;
        if (turns && n % 64 == 0) {
            if (first ? write(to[1], &more, 1) != 1 : read(to[0], &more, 1) != 1)
                return 1;
            stop = !more;
        } else if (!turns) {
            stop = !more;
        }
    }
    if (!first)
        return 0;
    if (!turns)
        send_one(8);
    if (memory_alone) {
        printf("{\"endpoint_bytes\":%ld,\"peer_bytes\":%ld}\n", of_endpoint, written() - before);
    } else {
        qsort(batches, count, sizeof(double), by_size);
        double rate = total / (all / 1e9);
        printf("{\"p50_ns\":%.1f,\"messages_per_second\":%.1f,\"bytes_per_second\":%.1f}\n", batches[count / 2], rate,
               rate * bytes * (turns ? 2 : 1));
    }
    fflush(stdout);
    /* The last message arrives while a side still polls. */
    double until = now() + 2e9;
    while (waitpid(child, NULL, WNOHANG) == 0 && now() < until)
        look();
    kill(child, SIGKILL);
    _exit(0);
}
