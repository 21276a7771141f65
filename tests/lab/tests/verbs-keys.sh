about="a key whose region is gone ends one connection with the reason, and the next one to the same peer works"
hosts=1
timeout=60
h0() {
    built libtieline_verbs.so libtieline_tcp_connect.so examples/verbs_memory
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_PROVIDERS=verbs,tcp-connect TIELINE_VERBS_ACK_TIMEOUT=1s
    timeout 40 "$TARGET/debug/examples/verbs_memory" revoke | tee words || fail "the second connection does not work"
    grep -q 'put by verbs:rxe0/rc' words || fail "it did not go over rc"
    grep -qi 'refused: .*key' words || fail "the key is not refused"
    grep -q 'again by verbs:rxe0/rc' words || fail "there is no second connection"
}
