about="a link that is cut takes its device's port down; once restored, it carries messages again"
timeout=60
port_is() { grep -q "$1" /sys/class/infiniband/rxe0/ports/1/state; }
h0() {
    cut_link
    until_true port_is DOWN
    signal cut
    await unreachable
    mend_link
    until_true port_is ACTIVE
    serve 18515 stdbuf -oL ibv_rc_pingpong -d rxe0 -g "$(gid_index rxe0)" -n 20
}
h1() {
    await cut
    busybox ping -c 1 -W 1 "$H0" && fail "an answer came over a link that is cut"
    signal unreachable
    await port-18515
    stdbuf -oL ibv_rc_pingpong -d rxe0 -g "$GID" -n 20 "$H0"
}
