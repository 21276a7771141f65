about="with direct access by xpmem who is in the middle of one dies with its peer, and nobody else; who is killed in one harms nobody"
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
