about="two devices of each host, each on a network of its own"
unsteady="messages between second devices of soft RoCE are sometimes lost for good; the cause is not known"
devices=2
h0() { serve 18515 stdbuf -oL ibv_rc_pingpong -d rxe1 -g "$(gid_index rxe1)" -n 100; }
h1() {
    [ "$(ibv_devinfo -l | grep -c rxe)" = 2 ] || fail "not two devices"
    await port-18515
    stdbuf -oL ibv_rc_pingpong -d rxe1 -g "$(gid_index rxe1)" -n 100 "$H0_1"
}
