about="one of two devices goes away in mid-traffic: what was under way on it fails in words, the rest goes over the other"
devices=2
timeout=180
h0() {
    verbs_job
    gives_up_soon
    built examples/rails
    : > words
    { until_true grep -q 'running after 0' words && signal running; } &
    stdbuf -oL "$TARGET/debug/examples/rails" 3 1 2>&1 | tee words
    [ "${PIPESTATUS[0]}" = 0 ] || fail "the job did not go on"
    grep -q 'failed: .*\(did not acknowledge\|could not send\|is down\|acknowledged nothing\|neither completed\)' words ||
        fail "the loss is not said"
    grep -q 'running after [1-9]' words || fail "nothing went on after the loss"
    [ "$(grep -c '^messages over' words)" = 1 ] || fail "the endpoint did not survive, though its messages go elsewhere"
}
h1() {
    verbs_job
    gives_up_soon
    built examples/rails
    once_running cut_link eth1
    "$TARGET/debug/examples/rails"
}
