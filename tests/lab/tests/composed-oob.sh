about="rc is wired by datagrams that the application carries through its own socket"
timeout=90
every() {
    verbs_job
    built examples/carried
    # Only oob can form the connections: ud and tcp-connect are disabled.
    export TIELINE_PROVIDERS=verbs TIELINE_MODULES='^*/ud' TIELINE_CONNECT=oob
    timeout 60 "$TARGET/debug/examples/carried" | tee words || fail "nothing came about"
    [ "$HOST" != h0 ] || grep -qF 'message verbs:rxe0/rc, RMA verbs:rxe0/rc, atomic emulated, connect oob/callbacks}' words ||
        fail "it went another way"
    [ "$HOST" != h1 ] || grep -q 'rank 1 was greeted' words || fail "nobody was greeted"
}
