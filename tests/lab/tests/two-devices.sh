about="two devices of each host, each on a network of its own"
devices=2
timeout=90
# The queue pair is patient (-u 18: about a second before it sends again): the default gives up after half a second,
# which an emulated host may be late by, and the other side then waits for good.
h0() { serve 18515 ib_send_lat -d rxe1 -x "$(gid_index rxe1)" -u 18 -n 100 -F; }
h1() {
    [ "$(ibv_devinfo -l | grep -c rxe)" = 2 ] || fail "not two devices"
    await port-18515
    ib_send_lat -d rxe1 -x "$(gid_index rxe1)" -u 18 -n 100 -F "$H0_1"
}
