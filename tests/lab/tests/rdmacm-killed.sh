about="a peer connected by rdmacm is killed: that is reported with the reason, and nothing hangs"
timeout=90
every() {
    verbs_job
    gives_up_soon
    by_rdmacm
    kill_in_traffic
}
