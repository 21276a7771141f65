/*
 * Features that Open MPI does not use, tested directly through libfabric by one process that is its own peer. The features are keys
 * chosen by the caller, a reused key number, unknown keys, atomics checked by value, messages of up to 5 MiB, and truncation.
 */
#include "opened.h"

static void puts_gets_and_keys(fi_addr_t self) {
    static uint8_t first[20000], second[20000], mine[20000];
    uint64_t access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    struct fid_mr *mr, *other;
    EXPECT(fi_mr_reg(domain, first, sizeof first, access, 0, 7, 0, &mr, NULL) == 0 && fi_mr_key(mr) == 7);
    EXPECT(fi_mr_reg(domain, second, sizeof second, access, 0, 7, 0, &other, NULL) == -FI_ENOKEY);
    for (size_t i = 0; i < sizeof mine; i++)
        mine[i] = (uint8_t)(i * 7 + 1);
    /* A put with a copy, a put without a copy, and an injected put. */
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
    /* A put beyond the end of the region writes nothing, and the connection stays up. */
    ssize_t said = POSTED(fi_write(ep, mine, 100, NULL, self, sizeof first - 99, 7, NULL));
    EXPECT(said < 0 || next().err != 0);

    /* The same key number refers to other memory: the cached key is resolved again. */
    EXPECT(fi_close(&mr->fid) == 0);
    EXPECT(fi_mr_reg(domain, second, sizeof second, access, 0, 7, 0, &mr, NULL) == 0);
    DONE(fi_write(ep, mine, 100, NULL, self, 0, 7, NULL));
    EXPECT(memcmp(second, mine, 100) == 0);
    /* The number refers to longer memory than before, so a put beyond the old length is in range. */
    EXPECT(fi_close(&mr->fid) == 0 && fi_mr_reg(domain, first, 4, access, 0, 7, 0, &mr, NULL) == 0);
    DONE(fi_write(ep, mine, 4, NULL, self, 0, 7, NULL));
    EXPECT(fi_close(&mr->fid) == 0 && fi_mr_reg(domain, second, 4096, access, 0, 7, 0, &mr, NULL) == 0);
    memset(second, 0, 8);
    DONE(fi_write(ep, mine, 8, NULL, self, 0, 7, NULL));
    EXPECT(memcmp(second, mine, 8) == 0);
    /* A put with an unknown key number. */
    said = POSTED(fi_write(ep, mine, 100, NULL, self, 0, 8, NULL));
    EXPECT(said == -FI_EKEYREJECTED || (said == 0 && next().err == FI_EKEYREJECTED));
    EXPECT(fi_close(&mr->fid) == 0);
    said = POSTED(fi_write(ep, mine, 100, NULL, self, 0, 7, NULL));
    EXPECT(said == -FI_EKEYREJECTED || (said == 0 && next().err == FI_EKEYREJECTED));
}

static void atomics(fi_addr_t self) {
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
    /* A masked swap writes the bits of the mask. */
    uint64_t mask = 0xff00;
    operand = 0x1234;
    DONE(fi_compare_atomic(ep, &operand, 1, NULL, &mask, NULL, &before, NULL, self, 24, 9, FI_UINT64, FI_MSWAP, NULL));
    EXPECT(before == 5 && words[3] == 0x1205);
    /* An injected compare-and-swap has an entry, and its operand may change at once. */
    struct fi_ioc from = {&operand, 1}, expected = {&compare, 1}, result = {&before, 1};
    struct fi_rma_ioc remote = {24, 1, 9};
    struct fi_msg_atomic message = {.msg_iov = &from, .iov_count = 1, .addr = self, .rma_iov = &remote, .rma_iov_count = 1,
                                    .datatype = FI_UINT64, .op = FI_CSWAP, .context = &from};
    compare = 0x1205;
    EXPECT(POSTED(fi_compare_atomicmsg(ep, &message, &expected, NULL, 1, &result, NULL, 1, FI_INJECT)) == 0);
    operand = 0;
    EXPECT(next().op_context == &from && before == 0x1205 && words[3] == 0x1234);
    EXPECT(fi_atomicvalid(ep, FI_UINT64, FI_MAX, &count) == 0 && count == 1);
    EXPECT(fi_atomicvalid(ep, FI_INT64, FI_MAX, &count) == -FI_EOPNOTSUPP);
    EXPECT(fi_atomicvalid(ep, FI_DOUBLE, FI_SUM, &count) == -FI_EOPNOTSUPP);
    EXPECT(fi_compare_atomicvalid(ep, FI_INT32, FI_MSWAP, &count) == 0 && count == 1);
    EXPECT(fi_close(&mr->fid) == 0);
    /* The number refers to memory of another alignment than before. */
    EXPECT(fi_mr_reg(domain, (uint8_t *)words + 1, 8, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 9, 0, &mr, NULL) == 0);
    ssize_t said = POSTED(fi_atomic(ep, &operand, 1, NULL, self, 0, 9, FI_UINT64, FI_SUM, NULL));
    EXPECT(said < 0 || next().err != 0);
    EXPECT(fi_close(&mr->fid) == 0);
    EXPECT(fi_mr_reg(domain, words, sizeof words, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 9, 0, &mr, NULL) == 0);
    DONE(fi_atomic(ep, &operand, 1, NULL, self, 8, 9, FI_UINT64, FI_ATOMIC_WRITE, NULL));
    EXPECT(words[1] == operand && fi_close(&mr->fid) == 0);
}

static void messages(fi_addr_t self) {
    static const size_t lens[] = {0, 1, 5000, 9000, 65536, 200000, 5 << 20};
    static uint8_t from[5 << 20], to[5 << 20];
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++) {
        /* The receive is posted before the send in the first round, and after the send in the second. */
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
        /* A receive into a buffer that is too short: the buffer is filled, and an error reports the missing length. */
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
    uint8_t name[64], shorter[8];
    size_t len = sizeof shorter;
    open_all();
    EXPECT(fi_getname(&ep->fid, shorter, &len) == -FI_ETOOSMALL && len <= sizeof name);
    EXPECT(fi_getname(&ep->fid, name, &len) == 0);
    EXPECT(fi_av_insert(av, name, 1, NULL, 0, NULL) == 1);
    messages(0);
    puts_gets_and_keys(0);
    atomics(0);
    close_all();
    printf("direct: passed\n");
    return 0;
}
