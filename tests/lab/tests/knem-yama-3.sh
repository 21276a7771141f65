about="where Yama forbids shm-cma until the next boot, a pair uses xpmem, then knem, and without both messages"
timeout=60
modules=1
hosts=1
devices=0
cpus=2
last=1
h0() {
    built examples/single_copy libtieline_shm_knem.so libtieline_shm_xpmem.so
    load xpmem
    load knem
    yama 3
    "$TARGET/debug/examples/single_copy" cma_until_the_next_boot || fail "see above"
    nothing_pinned
    nothing_attached
    unload knem
    unload xpmem
}
