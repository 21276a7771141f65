about="a job of 8 processes on 2 hosts: shared memory inside a host, rc between them, from an unchanged example"
timeout=150
every() {
    verbs_job
    built examples/halo
    export TIELINE_PROVIDERS=shm,verbs TIELINE_SIZE=8 TIELINE_VERBS_RX_BUFFERS=256
    local rank bad=
    for rank in 0 1 2 3; do
        TIELINE_RANK=$((4 * ${HOST#h} + rank)) "$TARGET/debug/examples/halo" > words.$rank 2>&1 &
    done
    for job in $(jobs -p); do wait "$job" || bad=yes; done
    cat words.*
    [ -z "$bad" ] || fail "a rank failed"
}
