about="connections form and messages come once and in order over links that lose 5 % and reorder"
unsteady="on a busy machine the device gives up before the loss is made good"
timeout=120
every() {
    verbs_job
    export TIELINE_VERBS_ACK_TIMEOUT=120ms
    netem loss 5% delay 1ms reorder 25% duplicate 1% || fail "tc netem"
    traffic 4 || fail "the stream broke"
    grep -q 'sent [1-9]\|received [1-9].* in order' words || fail "nothing was sent"
}
