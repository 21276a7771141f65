about="where Yama forbids single copy, puts of a pair take another path, and their bytes arrive"
hosts=1
timeout=120
core=1
# takes: checks the path of puts from a process without root's rights to its peer, which
# is in the last column.
takes() {
    plain tieline perf --test put_lat --size 64k --iterations 3 --verify > puts 2>&1 || {
        cat puts
        fail "ptrace_scope $1: the puts failed"
    }
    cat puts
    grep -q "$2" puts || fail "ptrace_scope $1: the path is not $2"
}
h0() {
    need tieline
    export TIELINE_PROVIDERS=shm,shm-cma
    yama 0
    takes 0 'shm-cma/copy'
    # Each process permits access to the other processes of its user.
    yama 1
    takes 1 'shm-cma/copy'
    # Only an administrator may access other processes.
    yama 2
    takes 2 'shm/ring'
    plain tieline perf --test put_lat --path shm-cma > refused 2>&1 && fail "a path that Yama forbids was forced"
    cat refused
    grep -q 'cannot force the path shm-cma' refused || fail "it does not say that the path cannot be forced"
}
