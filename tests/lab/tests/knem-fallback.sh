about="a pair for which cma or knem is left out, forbidden, or gone is served by the next lane, says why once, and others stay on theirs"
timeout=180
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_knem.so
    load knem
    "$TARGET/debug/examples/single_copy" falls_back || fail "see above"
    nothing_pinned
    unload knem
}
