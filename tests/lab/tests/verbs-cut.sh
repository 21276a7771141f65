about="a link that is cut in mid-stream ends the connection in words, on both sides"
unsteady="on a busy machine the side whose own link is up was seen to hang for more than a minute; the cause is not known"
timeout=90
every() {
    verbs_job
    gives_up_soon
    [ $HOST = h0 ] || once_running cut_link
    traffic 60
    failed_with "$lost"
}
