about="/dev/knem behaves as its table says, row by row, and nothing leaks"
timeout=60
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/knem_table
    load knem
    "$TARGET/debug/examples/knem_table" || fail "see the rows"
    nothing_pinned
    unload knem
    # The second part of the test uses an engine for copies.
    load knem dma=1 delay_ms=20
    "$TARGET/debug/examples/knem_table" engine || fail "see the rows"
    unload knem
}
