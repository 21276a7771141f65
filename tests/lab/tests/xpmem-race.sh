about="two processes access each other's memory by xpmem while both map, unmap and discard: no wrong byte, the others survive any kill, and nothing leaks"
timeout=60
modules=1
hosts=1
devices=0
cpus=2
core=1
h0() {
    built examples/xpmem_race examples/xpmem_kills
    load xpmem
    for time in 1 2 3; do
        "$TARGET/debug/examples/xpmem_race" 4 || fail "run $time"
        nothing_attached
    done
    "$TARGET/debug/examples/xpmem_kills" 30 || fail "see above"
    nothing_attached
    unload xpmem
}
