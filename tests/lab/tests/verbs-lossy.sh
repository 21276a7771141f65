about="connections form and messages arrive once and in order over links that lose 5 % and reorder"
timeout=120
core=1
every() {
    verbs_job
    lossy 120ms
    traffic 4 || fail "the stream broke"
    grep -q 'sent [1-9]\|received [1-9].* in order' words || fail "nothing was sent"
}
