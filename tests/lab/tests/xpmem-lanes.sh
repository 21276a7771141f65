about="where Yama forbids shm-cma, puts go by shm-xpmem, otherwise by shm-cma, without both by shm-knem, and their bytes arrive"
timeout=180
modules=1
hosts=1
devices=0
cpus=2
core=1
# takes: checks the path of puts from a process without root's rights to its peer, which is in the last
# column.
takes() {
    plain tieline perf --test "$1" --size 64k --iterations 3 --verify > moved 2>&1 || {
        cat moved
        fail "$1 by $2 failed"
    }
    cat moved
    grep -q "$2" moved || fail "$1: the path is not $2"
}
h0() {
    need tieline
    built libtieline_shm_xpmem.so libtieline_shm_knem.so
    # The test excludes providers, because a list of providers to use would also set the order of
    # preference.
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_PROVIDERS=^tcp,verbs
    load knem
    load xpmem
    yama 0
    takes put_lat 'shm-cma/copy'
    # Direct access is preferred when the memory has been accessed before.
    TIELINE_SHM_XPMEM_ACCESS=direct takes put_lat 'shm-xpmem/attach'
    TIELINE_SHM_XPMEM_ACCESS=direct takes fadd_lat 'shm-xpmem/attach'
    yama 2
    takes put_lat 'shm-xpmem/attach'
    takes get_lat 'shm-xpmem/attach'
    nothing_attached
    tieline info --why --all > why 2>&1
    grep 'shm-xpmem' why || fail "info --why --all does not name it"
    # Closing the device would also end the objects of another library in the process that has opened
    # the device.
    tieline info --why --all > why 2>&1 9<> /dev/xpmem
    grep 'something else in this process has /dev/xpmem open' why || fail "it shares the device: $(cat why)"
    TIELINE_PROVIDERS=^tcp,verbs,shm-xpmem takes put_lat 'shm-knem/copy'
    unload xpmem
    takes get_lat 'shm-knem/copy'
    unload knem
    takes put_lat 'shm/ring'
}
