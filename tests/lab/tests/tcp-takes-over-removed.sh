about="the only device is removed during traffic: the endpoint ends with the reason, and the next one goes over tcp"
timeout=120
core=1
every() {
    verbs_job
    gives_up_soon
    export TIELINE_PROVIDERS=verbs,tcp,tcp-connect
    [ $HOST = h0 ] || once_running remove_device
    rails 3 1 || fail "the job did not go on"
    [ $HOST = h0 ] || return 0
    the_loss_is_survived
    tcp_took_over
}
