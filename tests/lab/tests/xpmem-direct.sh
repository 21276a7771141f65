about="with direct access by xpmem a process in the middle of an access dies with its peer, and no other does; killing the accessor harms no process"
timeout=120
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/single_copy libtieline_shm_xpmem.so
    load xpmem
    "$TARGET/debug/examples/single_copy" dies_with_its_peer || fail "see above"
    nothing_attached
    unload xpmem
}
