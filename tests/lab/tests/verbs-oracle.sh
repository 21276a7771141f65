about="random programs of puts, gets, atomics, messages, flushes and fences keep to the promises over rc and over ud, between two contexts of one process"
timeout=240
each() {
    verbs_job
    built examples/oracle
    unset TIELINE_SIZE TIELINE_RANK TIELINE_RENDEZVOUS
    TIELINE_ORACLE_SEED=1 TIELINE_ORACLE_PROGRAMS=${1:?} TIELINE_MODULES=$2 "$TARGET/debug/examples/oracle"
}
h0() { each 15 '^*/ud'; }
h1() { each 15 '^*/rc'; }
