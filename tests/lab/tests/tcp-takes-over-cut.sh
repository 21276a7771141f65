about="the link of the only device is cut during traffic: the endpoint ends with the reason, and the next one goes over tcp"
devices=2
timeout=120
every() {
    verbs_job
    gives_up_soon
    # The second link carries only tcp.
    export TIELINE_PROVIDERS=verbs,tcp,tcp-connect TIELINE_VERBS_DEVICES=rxe0 TIELINE_TCP_INTERFACES=eth1 TIELINE_RENDEZVOUS=$H0_1:29400
    [ $HOST = h0 ] || once_running cut_link
    rails 3 1 || fail "the job did not go on"
    [ $HOST = h0 ] || return 0
    the_loss_is_survived
    tcp_took_over
}
