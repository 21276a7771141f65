about="random programs of puts, gets, atomics, messages of any length, flushes and fences keep all guarantees over xpmem, attached and direct, and over knem"
timeout=180
modules=1
hosts=1
devices=0
cpus=2
programs() {
    echo "$1:"
    TIELINE_PROVIDERS=$1 TIELINE_ORACLE_SEED=$2 TIELINE_ORACLE_PROGRAMS=10 "$TARGET/debug/examples/oracle" || fail "over $1: see above"
}
h0() {
    built examples/oracle libtieline_shm_xpmem.so libtieline_shm_knem.so
    export TIELINE_PROVIDER_PATH=$TARGET/debug
    load xpmem
    load knem
    programs shm-xpmem,shm 11
    TIELINE_SHM_XPMEM_ACCESS=direct programs shm-xpmem,shm 12
    programs shm-knem,shm 13
    nothing_pinned
    nothing_attached
    unload knem
    unload xpmem
}
