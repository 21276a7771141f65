about="whoever is killed at whatever step of a copy by knem or cma, on either side: survivors go on, hear why, and nothing stays pinned"
timeout=240
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_knem.so
    load knem
    before=$(pinned_pages)
    "$TARGET/debug/examples/single_copy" copies_by_knem copies_by_cma || fail "see above"
    nothing_pinned
    # The kernel lets pages go a moment after who held them.
    until_true eval '[ "$(pinned_pages)" = "$before" ]'
    unload knem
}
