about="where Yama forbids shm-cma until the next boot a pair goes by knem, and by messages where that is left out"
timeout=60
modules=1
hosts=1
devices=0
cpus=2
own_boot=1
h0() {
    built examples/single_copy libtieline_shm_knem.so
    load knem
    yama 3
    "$TARGET/debug/examples/single_copy" cma_until_the_next_boot || fail "see above"
    nothing_pinned
    unload knem
}
