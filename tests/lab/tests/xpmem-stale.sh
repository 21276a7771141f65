about="with the race of the real xpmem enabled, a page that its owner discards is still read: the other tests would detect it"
timeout=60
modules=1
hosts=1
devices=0
cpus=2
h0() {
    built examples/xpmem_race
    load xpmem stale_us=50
    if "$TARGET/debug/examples/xpmem_race" 4 > words; then
        fail "no page was stale: $(cat words)"
    fi
    tail -n 3 words
    grep -q 'was announced before' words || fail "it fails for another reason: $(tail -n 3 words)"
    [ "$(counter xpmem stale)" -gt 0 ] || fail "the switch does nothing"
    nothing_attached
    unload xpmem
}
