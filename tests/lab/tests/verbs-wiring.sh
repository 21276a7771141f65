about="rc is wired by ud, and by tcp-connect where ud is left out"
timeout=90
prepare() {
    [ -e "$TARGET/debug/libtieline_verbs.so" ] || skip "libtieline_verbs.so is not built"
    [ -x "$TARGET/debug/examples/verbs_traffic" ] || skip "the example verbs_traffic is not built"
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_SECRET=lab TIELINE_SIZE=2 TIELINE_RANK=${HOST#h}
    export TIELINE_RENDEZVOUS=$H0:29400 TIELINE_PROVIDERS=verbs,tcp-connect TIELINE_VERBS_ACK_TIMEOUT=1s
}

traffic() { timeout 40 "$TARGET/debug/examples/verbs_traffic" "$@"; }
every() {
    prepare
    traffic 3 | tee by-ud || fail "the stream does not run when ud carries the connection"
    export TIELINE_MODULES='^*/ud' TIELINE_RENDEZVOUS=$H0:29401
    [ -e "$TARGET/debug/libtieline_tcp_connect.so" ] || skip "libtieline_tcp_connect.so is not built"
    traffic 3 | tee by-tcp || fail "the stream does not run when tcp-connect carries the connection"
    grep -q 'sent [1-9]\|received [1-9]' by-ud || fail "nothing was sent"
    grep -q 'sent [1-9]\|received [1-9]' by-tcp || fail "nothing was sent"
}
