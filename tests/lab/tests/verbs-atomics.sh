about="every atomic, by 4 processes on 2 hosts concurrently, executed by one device for all of them, or by the target's processor"
timeout=150
job() {
    local rank bad=
    for rank in 0 1; do
        TIELINE_RANK=$((2 * ${HOST#h} + rank)) timeout 100 "$TARGET/debug/examples/atomics" > words.$rank 2>&1 &
    done
    for job in $(jobs -p); do wait "$job" || bad=yes; done
    cat words.*
    [ -z "$bad" ] || fail "an update was lost, or an atomic failed"
    [ "$HOST" != h0 ] || grep -q 'none lost' words.0 || fail "nothing was counted"
}
every() {
    verbs_job
    built examples/atomics libtieline_shm.so
    export TIELINE_PROVIDERS=shm,verbs,tcp-connect TIELINE_SIZE=4 TIELINE_ATOMICS=device
    job
    export TIELINE_ATOMICS=cpu TIELINE_RENDEZVOUS=$H0:29401
    job
}
