about="/dev/xpmem behaves as its table says, row by row, and nothing leaks"
timeout=60
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/xpmem_table
    load xpmem
    # The test forbids system calls that access another process's memory: xpmem does not check that
    # permission.
    yama 1
    "$TARGET/debug/examples/xpmem_table" || fail "see the rows"
    nothing_attached
    unload xpmem
}
