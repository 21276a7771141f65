about="the message-passing runtime of the tests as a job of 8 ranks on 2 hosts: every part, by rc between them and over shared memory inside"
timeout=240
every() {
    verbs_job
    built examples/parts
    export TIELINE_PROVIDERS=shm,verbs TIELINE_SIZE=8 TIELINE_VERBS_RX_BUFFERS=256
    local rank bad=
    for rank in 0 1 2 3; do
        TIELINE_RANK=$((4 * ${HOST#h} + rank)) "$TARGET/debug/examples/parts" > words.$rank 2>&1 &
    done
    for job in $(jobs -p); do wait "$job" || bad=yes; done
    cat words.*
    [ -z "$bad" ] || fail "a rank failed"
    [ "$HOST" != h0 ] || grep -q "^locks on 8 ranks: ok" words.0 || fail "not every part was played"
}
