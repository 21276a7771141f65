about="one of two devices is removed during traffic: operations in flight on it fail with the reason, the rest goes over the other"
devices=2
timeout=180
every() {
    verbs_job
    gives_up_soon
    [ $HOST = h0 ] || once_running cut_link eth1
    rails 3 1 || fail "the job did not go on"
    [ $HOST = h0 ] || return 0
    the_loss_is_survived
    [ "$(grep -c '^messages over' words)" = 1 ] || fail "the endpoint did not survive, though its messages go elsewhere"
}
