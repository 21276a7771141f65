about="the module rdmacm of provider verbs (the connection manager) does everything that a connector must do"
hosts=1
timeout=300
h0() {
    need tieline
    built libtieline_verbs.so
    # Times that suit an emulated machine: a dead peer is given up after some seconds, a slow one is not.
    export TIELINE_VERBS_ACK_TIMEOUT=200ms TIELINE_FAILURE_TIMEOUT=8s TIELINE_CONNECT_TIMEOUT=15s
    tieline check "$TARGET/debug/libtieline_verbs.so" --module rdmacm --limit $((60 * SLOWNESS))
}
