about="where Yama forbids shm-cma, puts go by shm-knem, and without the module through shm, and their bytes arrive"
timeout=150
modules=1
hosts=1
devices=0
cpus=2
core=1
# takes: checks the path of puts from a process without root's rights to its peer, which
# is in the last column.
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
    built libtieline_shm_knem.so
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_PROVIDERS=shm,shm-cma,shm-knem
    load knem
    yama 0
    takes put_lat 'shm-cma/copy'
    yama 2
    takes put_lat 'shm-knem/copy'
    takes get_lat 'shm-knem/copy'
    nothing_pinned
    unload knem
    takes put_lat 'shm/ring'
}
