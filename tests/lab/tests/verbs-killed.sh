about="a peer that is killed is reported in words, and nothing hangs"
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
h0() {
    : > words
    watch &
    stream
    [ $status = 3 ] || fail "it ended with $status, not with the reason"
    grep -q 'failed: .*the peer' words || fail "the reason is not said"
}
h1() {
    stream & 
    await running
    kill -9 $(pidof verbs_traffic) || fail "there is nothing to kill"
    wait
    true
}
