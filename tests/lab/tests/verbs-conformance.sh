about="the modules rc (reliable connections) and ud (datagrams) of provider verbs do everything that a provider must do"
timeout=300
conformance() {
    need tieline-conformance
    built libtieline_verbs.so
    # Times that suit an emulated machine: a dead peer is given up after some seconds, a slow one is not.
    export TIELINE_VERBS_ACK_TIMEOUT=200ms TIELINE_FAILURE_TIMEOUT=$((8 * SLOWNESS))s
    tieline-conformance "$TARGET/debug/libtieline_verbs.so" --module "$1"
}
h0() { conformance rc; }
h1() { conformance ud; }
