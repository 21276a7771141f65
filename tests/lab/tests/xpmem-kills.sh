about="kills at every step of a copy by xpmem, on either side: survivors continue, learn the reason, and nothing stays attached"
timeout=240
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_xpmem.so
    load xpmem
    "$TARGET/debug/examples/single_copy" copies_by_xpmem || fail "see above"
    nothing_attached
    unload xpmem
}
