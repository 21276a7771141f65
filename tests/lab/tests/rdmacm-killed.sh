about="a peer that rdmacm has connected is killed: that is reported in words, and nothing hangs"
timeout=90
every() {
    verbs_job
    gives_up_soon
    by_rdmacm
    kill_in_traffic
}
