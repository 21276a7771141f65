about="a job of 8 processes on 2 hosts: shared memory inside a host, rc between them, from an unchanged example"
timeout=150
every() {
    [ -e "$TARGET/debug/libtieline_verbs.so" ] || skip "libtieline_verbs.so is not built"
    [ -x "$TARGET/debug/examples/halo" ] || skip "the example halo is not built"
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_SECRET=lab TIELINE_SIZE=8 TIELINE_RENDEZVOUS=$H0:29400
    export TIELINE_PROVIDERS=shm,verbs TIELINE_VERBS_ACK_TIMEOUT=1s TIELINE_VERBS_RX_BUFFERS=256
    bad=
    first=$((4 * ${HOST#h}))
    for rank in 0 1 2 3; do
        TIELINE_RANK=$((first + rank)) timeout 130 "$TARGET/debug/examples/halo" > words.$rank 2>&1 &
    done
    for job in $(jobs -p); do wait "$job" || bad=yes; done
    cat words.*
    [ -z "$bad" ] || fail "a rank failed"
}
