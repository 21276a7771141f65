about="a receiver that looks rarely stops its sender, and loses nothing"
timeout=90
prepare() {
    [ -e "$TARGET/debug/libtieline_verbs.so" ] || skip "libtieline_verbs.so is not built"
    [ -x "$TARGET/debug/examples/verbs_traffic" ] || skip "the example verbs_traffic is not built"
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_SECRET=lab TIELINE_SIZE=2 TIELINE_RANK=${HOST#h}
    export TIELINE_RENDEZVOUS=$H0:29400 TIELINE_PROVIDERS=verbs,tcp-connect TIELINE_VERBS_ACK_TIMEOUT=1s
}

every() {
    prepare
    timeout 60 "$TARGET/debug/examples/verbs_traffic" 4 100 | tee words || fail "the stream broke"
    grep -q 'sent [1-9]\|received [1-9].* in order' words || fail "nothing was sent"
}
