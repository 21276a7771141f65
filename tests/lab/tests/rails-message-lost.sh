about="the device that carries messages goes away: the endpoint ends in words, and the next one takes the other device"
devices=2
timeout=120
h0() {
    verbs_job
    gives_up_soon
    built examples/rails
    : > words
    { until_true grep -q 'running after 0' words && signal running; } &
    stdbuf -oL "$TARGET/debug/examples/rails" 3 1 2>&1 | tee words
    [ "${PIPESTATUS[0]}" = 0 ] || fail "the job did not go on"
    grep -q 'failed: .*\(did not acknowledge\|could not send\|is down\|was removed\|acknowledged nothing\|neither completed\)' words ||
        fail "the loss is not said"
    grep -q '^messages over verbs:rxe0/rc' words || fail "messages did not begin on rxe0"
    grep '^messages over' words | tail -n 1 | grep -q 'verbs:rxe1/rc.*verbs:rxe1/rc' || fail "rxe1 did not take over"
    grep -q 'running after [1-9]' words || fail "nothing went on after the loss"
}
h1() {
    verbs_job
    gives_up_soon
    built examples/rails
    once_running remove_device rxe0
    "$TARGET/debug/examples/rails"
}
