about="a pair for which cma, xpmem or knem is left out, forbidden, or gone falls back by one lane and reports the reason once; other pairs keep their lanes"
timeout=240
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_knem.so libtieline_shm_xpmem.so
    load xpmem
    load knem
    "$TARGET/debug/examples/single_copy" falls_back xpmem_is_first || fail "see above"
    nothing_pinned
    nothing_attached
    unload knem
    unload xpmem
}
