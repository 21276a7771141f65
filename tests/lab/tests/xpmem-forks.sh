about="a fork of either side of a copy by xpmem, cma or knem: the parents continue, the child keeps its own bytes, and opens the device itself"
timeout=90
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_xpmem.so libtieline_shm_knem.so
    load xpmem
    load knem
    "$TARGET/debug/examples/single_copy" a_fork_on_either_side || fail "see above"
    nothing_attached
    nothing_pinned
    unload knem
    unload xpmem
}
