about="too low a limit of locked memory is reported where it is met, with the way to raise it"
hosts=1
timeout=60
memory() {
    # Root's rights would lift the limit.
    plain bash -c 'ulimit -l "$1"; shift; exec "$@"' - "$1" "$TARGET/debug/examples/verbs_memory" "${@:2}" | tee words
}
h0() {
    built libtieline_verbs.so libtieline_tcp_connect.so examples/verbs_memory
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_PROVIDERS=verbs,tcp-connect
    TIELINE_MODULES='*/ud' memory 64 open
    grep -q 'failed: .*locked memory is 64 KiB.*ulimit -l' words || fail "opening an interface does not say it"
    # Reliable connections lock no memory before the first connection is made.
    memory 64 open
    grep -q opened words || fail "what nobody uses keeps a worker from being opened"
    TIELINE_MODULES='^*/ud' memory 64 hold < /dev/null
    grep -q 'failed: .*locked memory is 64 KiB.*ulimit -l' words || fail "the first connection does not say it"
    memory 8192 register 16777216
    grep -q 'warning: verbs:rxe0 .*registering 16777216 bytes.*ulimit -l' words || fail "registering does not say it"
    memory 16384 open
    grep -q opened words || fail "a sufficient limit is not enough"
}
