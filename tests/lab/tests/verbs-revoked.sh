about="a put with the key of a region that was given up fails in words, and harms nothing else"
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
h0() {
    : > words
    stream
    [ $status = 3 ] || fail "it ended with $status, not with the reason"
    grep -qi 'failed: .*key' words || fail "the reason is not said"
}
h1() {
    prepare
    export TIELINE_FAILURE_TIMEOUT=4s
    timeout -k 1 60 "$TARGET/debug/examples/verbs_traffic" 60 1 revoke
    [ $? = 3 ] || fail "the target does not hear of the end"
}
