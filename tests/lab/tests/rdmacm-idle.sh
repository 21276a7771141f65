about="connections of rdmacm that are closed for lack of use, or of room, and made again lose and reorder nothing"
hosts=1
timeout=200
check() {
    tieline check "$TARGET/debug/libtieline_verbs.so" --module rdmacm --limit $((60 * SLOWNESS)) --filter "$1"
}
h0() {
    need tieline
    built libtieline_verbs.so
    export TIELINE_VERBS_ACK_TIMEOUT=200ms TIELINE_VERBS_CM_IDLE=1ms TIELINE_VERBS_CM_CONNECTIONS=1
    check two_that_send && check two_processes_exchange && check two_threads && check wakes
}
