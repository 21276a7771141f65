about="two devices of each host, each on a separate network"
devices=2
timeout=90
# The queue pair has a long timeout (-u 18: it resends after about a second). With the default timeout, the queue
# pair fails after half a second. An emulated host may respond later than that, and the other side would then wait
# without limit.
h0() { serve 18515 ib_send_lat -d rxe1 -x "$(gid_index rxe1)" -u 18 -n 100 -F; }
h1() {
    [ "$(ibv_devinfo -l | grep -c rxe)" = 2 ] || fail "not two devices"
    await port-18515
    ib_send_lat -d rxe1 -x "$(gid_index rxe1)" -u 18 -n 100 -F "$H0_1"
}
