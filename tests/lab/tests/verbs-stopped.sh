about="a process, sender or receiver, that is stopped for longer than TIELINE_FAILURE_TIMEOUT and resumed, loses nothing"
timeout=90
core=1
stop_for_a_while() {
    local process
    process=$(pidof verbs_traffic)
    [ $HOST = h1 ] || sleep 1
    kill -STOP "$process" && sleep $((5 * SLOWNESS)) && kill -CONT "$process"
}
every() {
    verbs_job
    gives_up_soon
    once_running stop_for_a_while
    traffic $((7 * SLOWNESS)) || fail "the stream broke"
    grep -q 'sent [1-9]\|received [1-9].* in order' words || fail "nothing was sent"
}
