about="memory of every kind, registered before and after it is filled, with forks and programs started on either side, is right over knem, xpmem, cma and messages, and a child's memory is its own"
timeout=240
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_knem.so libtieline_shm_xpmem.so
    # Some huge pages to set aside: a fork copies one for the child.
    echo 8 > /proc/sys/vm/nr_hugepages
    load xpmem
    load knem
    before=$(pinned_pages)
    "$TARGET/debug/examples/single_copy" over_knem over_xpmem over_direct over_cma over_messages || fail "see above"
    nothing_pinned
    nothing_attached
    # The kernel lets pages go a moment after who held them.
    until_true eval '[ "$(pinned_pages)" = "$before" ]'
    unload knem
    unload xpmem
}
