about="thousands of connections that both sides open at once, over links that lose 5 %, reorder and duplicate: one for each pair"
timeout=200
# Connections in a round, and rounds.
by_ud="250 4"
by_tcp="250 4"

# crossing CONNECTIONS ROUNDS: those of the last round are looked at from outside, too, while they stand.
crossing() {
    local pid
    rm -f end
    stdbuf -oL "$TARGET/debug/examples/verbs_crossing" "$1" "$2" "$PWD/end" > words 2>&1 &
    pid=$!
    until_true eval "grep -q standing words || ! kill -0 $pid"
    # Our queue pair and the peer's, of every connection.
    rdma resource show qp | sed -n 's/.* lqpn \([0-9]*\) rqpn \([0-9]*\) type RC .*/\1 \2/p' | sort > "$RESULTS/$HOST.pairs"
    signal "counted-$TIELINE_RENDEZVOUS-$HOST"
    await "counted-$TIELINE_RENDEZVOUS-$([ "$HOST" = h0 ] && echo h1 || echo h0)" > /dev/null
    : > end
    wait $pid || fail "$(cat words)"
    cat words
    [ "$(wc -l < "$RESULTS/$HOST.pairs")" = "$1" ] ||
        fail "the device has $(wc -l < "$RESULTS/$HOST.pairs") reliable connections, and there are $1 pairs"
    awk '{ print $2, $1 }' "$RESULTS/h1.pairs" | sort | cmp - "$RESULTS/h0.pairs" ||
        fail "the two ends of a connection do not name each other"
    echo "each of $1 queue pairs here is connected to one there, and that one to it"
}
every() {
    built examples/verbs_crossing
    verbs_job
    # One completion queue of soft RoCE has room for all of them; and it counts no repetition, as verbs-lossy says.
    export TIELINE_VERBS_TX_DEPTH=16 TIELINE_VERBS_ACK_TIMEOUT=250ms TIELINE_VERBS_RETRY_COUNT=7
    netem loss 5% delay 1ms reorder 25% duplicate 1% || fail "tc netem"
    crossing $by_ud
    export TIELINE_MODULES='^*/ud' TIELINE_RENDEZVOUS=$H0:29401
    crossing $by_tcp
}
