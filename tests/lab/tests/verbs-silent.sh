about="a link that is down for a while, and restored in time, loses and duplicates nothing"
timeout=90
core=1
silent_for_a_while() { netem loss 100% && sleep 2 && netem_off; }
every() {
    verbs_job
    [ $HOST = h0 ] || once_running silent_for_a_while
    traffic 5 || fail "the stream broke"
    grep -q 'sent [1-9]\|received [1-9].* in order' words || fail "nothing was sent"
}
