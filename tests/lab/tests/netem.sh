about="RDMA works over a link that loses, delays and reorders packets"
timeout=60
# The messages have one packet: soft RoCE repeats longer messages until they have arrived in order, at most eight
# times, and a link that reorders one packet in four may need more repetitions.
h0() {
    # The side that finishes first exits and does not resend a lost last packet: the other side, which runs here,
    # would then wait without limit.
    serve 18515 timeout 20 stdbuf -oL ibv_rc_pingpong -d rxe0 -g "$GID" -n 200 -s 1024 || echo "the last acknowledgement was lost"
    netem delay 50ms || fail "tc netem"
    signal slow
    await seen
}
h1() {
    netem loss 5% delay 1ms reorder 25% || fail "tc netem"
    await port-18515
    stdbuf -oL ibv_rc_pingpong -d rxe0 -g "$GID" -n 200 -s 1024 "$H0" || fail "messages did not come through"
    tc -s qdisc show dev eth0
    tc -s qdisc show dev eth0 | grep -q 'dropped [1-9]' || fail "nothing was lost"
    netem_off
    await slow
    # The test reads the fastest round trip, in whole milliseconds: `round-trip min/avg/max = 50.312/...`.
    busybox ping -c 3 "$H0" | tee trips || fail "no way to $H0"
    fastest=$(sed -n 's/.*max = \([0-9]*\)\..*/\1/p' trips)
    [ "$fastest" -ge 50 ] || fail "a round trip takes $fastest ms on a link that delays by 50"
    signal seen
}
