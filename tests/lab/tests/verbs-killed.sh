about="a killed peer is reported with the reason, and nothing hangs"
timeout=90
core=1
every() {
    verbs_job
    gives_up_soon
    kill_in_traffic
}
