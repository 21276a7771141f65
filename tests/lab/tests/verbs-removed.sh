about="a device that is removed in mid-stream ends the connection with the reason, on both sides"
timeout=90
core=1
every() {
    verbs_job
    gives_up_soon
    [ $HOST = h0 ] || once_running remove_device
    traffic 60
    failed_with "$lost"
}
