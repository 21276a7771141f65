about="kills at every step of a copy by knem or cma, on either side: survivors continue, learn the reason, and nothing stays pinned"
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
    # The kernel releases pages shortly after the end of their process.
    until_true eval '[ "$(pinned_pages)" = "$before" ]'
    unload knem
}
