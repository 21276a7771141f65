about="connections form and messages come once and in order over links that lose 5 % and reorder"
timeout=120
every() {
    verbs_job
    # Soft RoCE repeats a transfer of 16 packets several times until it has come in order, and without 7 counts them.
    export TIELINE_VERBS_ACK_TIMEOUT=120ms TIELINE_VERBS_RETRY_COUNT=7
    netem loss 5% delay 1ms reorder 25% duplicate 1% || fail "tc netem"
    traffic 4 || fail "the stream broke"
    grep -q 'sent [1-9]\|received [1-9].* in order' words || fail "nothing was sent"
}
