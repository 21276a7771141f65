about="connections form and messages come once and in order over links that lose 5 % and reorder"
unsteady="on a busy machine the device gives up before the loss is made good"
timeout=120
prepare() {
    [ -e "$TARGET/debug/libtieline_verbs.so" ] || skip "libtieline_verbs.so is not built"
    [ -x "$TARGET/debug/examples/verbs_traffic" ] || skip "the example verbs_traffic is not built"
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_SECRET=lab TIELINE_SIZE=2 TIELINE_RANK=${HOST#h}
    export TIELINE_RENDEZVOUS=$H0:29400 TIELINE_PROVIDERS=verbs,tcp-connect TIELINE_VERBS_ACK_TIMEOUT=1s
}

every() {
    prepare
    export TIELINE_VERBS_ACK_TIMEOUT=120ms
    netem loss 5% delay 1ms reorder 25% duplicate 1% || fail "tc netem"
    timeout 100 "$TARGET/debug/examples/verbs_traffic" 4 | tee words || fail "the stream broke"
    grep -q 'sent [1-9]\|received [1-9].* in order' words || fail "nothing was sent"
}
