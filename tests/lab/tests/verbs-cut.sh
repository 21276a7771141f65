about="a link that is cut in mid-stream ends the connection in words, on both sides"
unsteady="on a busy machine the cut side does not always hear the reason"
timeout=90
prepare() {
    [ -e "$TARGET/debug/libtieline_verbs.so" ] || skip "libtieline_verbs.so is not built"
    [ -x "$TARGET/debug/examples/verbs_traffic" ] || skip "the example verbs_traffic is not built"
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_SECRET=lab TIELINE_SIZE=2 TIELINE_RANK=${HOST#h}
    export TIELINE_RENDEZVOUS=$H0:29400 TIELINE_PROVIDERS=verbs,tcp-connect TIELINE_VERBS_ACK_TIMEOUT=1s
}

stream() {
    prepare
    export TIELINE_VERBS_ACK_TIMEOUT=60ms TIELINE_FAILURE_TIMEOUT=4s
    timeout -k 1 60 stdbuf -oL "$TARGET/debug/examples/verbs_traffic" 60 > words
    status=$?
    cat words
}
# The stream runs once rank 0 has said so.
watch() {
    until_true grep -q running words
    signal running
}
ends_in_words() {
    [ $status = 3 ] || fail "it ended with $status, not with the reason"
    grep -q 'failed: .*\(did not acknowledge\|is down\|could not send\|acknowledged nothing\)' words || fail "the reason is not said"
}
h0() {
    : > words
    watch &
    stream
    ends_in_words
}
h1() {
    { await running > /dev/null && cut_link; } &
    stream
    ends_in_words
}
