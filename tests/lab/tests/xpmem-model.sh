about="memory that is cold to xpmem is left to cma until attaching it would have paid, by what was measured where the process runs: the access that attaches is the one that this says, also where faults are made dear"
timeout=90
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_xpmem.so
    load xpmem
    yama 0
    "$TARGET/debug/examples/single_copy" what_was_measured || fail "see above"
    nothing_attached
    unload xpmem
}
