about="/dev/xpmem answers as its table says, row by row, and nothing of it is left"
timeout=60
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/xpmem_table
    load xpmem
    # No process may look into another's memory by a system call: xpmem does not ask that.
    yama 1
    "$TARGET/debug/examples/xpmem_table" || fail "see the rows"
    nothing_attached
    unload xpmem
}
