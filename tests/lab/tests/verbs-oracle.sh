about="random programs of puts, gets, atomics, messages of any length, flushes and fences keep all guarantees over rc, and over ud alone, between contexts of one process"
core=1
timeout=150
each() {
    verbs_job
    built examples/oracle
    unset TIELINE_SIZE TIELINE_RANK TIELINE_RENDEZVOUS
    TIELINE_ORACLE_SEED=$1 TIELINE_ORACLE_PROGRAMS=15 "$TARGET/debug/examples/oracle"
}
h0() { TIELINE_MODULES='^*/ud' each 1; }
h1() {
    TIELINE_ATOMICS=device each 2
    TIELINE_MODULES='^*/rc' each 3
}
