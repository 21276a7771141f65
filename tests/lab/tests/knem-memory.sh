about="memory of every kind, registered before and after it is filled, with forks and programs started on either side, is right over knem and xpmem, and a child keeps its own bytes"
timeout=240
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_knem.so libtieline_shm_xpmem.so
    # A fork copies huge pages for the child, and a region's pages are freed shortly after the region.
    echo 64 > /proc/sys/vm/nr_hugepages
    load xpmem
    load knem
    before=$(pinned_pages)
    "$TARGET/debug/examples/single_copy" over_knem without_io_uring over_xpmem over_direct || fail "see above"
    nothing_pinned
    nothing_attached
    # The kernel releases pages shortly after the end of their process.
    until_true eval '[ "$(pinned_pages)" = "$before" ]'
    unload knem
    unload xpmem
}
