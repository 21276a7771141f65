about="the module rdmacm of provider verbs (the connection manager) meets all requirements of a connector"
hosts=1
timeout=300
h0() {
    need tieline
    built libtieline_verbs.so
    # Timeouts for an emulated machine: a dead peer times out after some seconds, but a slow peer does
    # not.
    export TIELINE_VERBS_ACK_TIMEOUT=200ms TIELINE_FAILURE_TIMEOUT=8s TIELINE_CONNECT_TIMEOUT=15s
    tieline check "$TARGET/debug/libtieline_verbs.so" --module rdmacm --limit $((60 * SLOWNESS))
}
