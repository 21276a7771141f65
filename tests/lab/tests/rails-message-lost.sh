about="the device that carries messages is removed: the endpoint ends with the reason, and the next one uses the other device"
devices=2
timeout=120
every() {
    verbs_job
    gives_up_soon
    [ $HOST = h0 ] || once_running remove_device rxe0
    rails 3 1 || fail "the job did not go on"
    [ $HOST = h0 ] || return 0
    the_loss_is_survived
    grep -q '^messages over verbs:rxe0/rc' words || fail "messages did not begin on rxe0"
    grep '^messages over' words | tail -n 1 | grep -q 'verbs:rxe1/rc.*verbs:rxe1/rc' || fail "rxe1 did not take over"
}
