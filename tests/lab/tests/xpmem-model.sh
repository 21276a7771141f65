about="memory that is cold to xpmem goes by cma until attaching it would have paid off: the access that attaches is the one predicted by the measured costs, even if faults are made expensive"
timeout=90
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_xpmem.so
    load xpmem
    yama 0
    "$TARGET/debug/examples/single_copy" measured_costs || fail "see above"
    nothing_attached
    unload xpmem
}
