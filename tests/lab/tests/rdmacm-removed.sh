about="a device that is removed while rdmacm forms connections, or during transfers, ends both sides with the reason"
timeout=120
every() {
    local process
    verbs_job
    gives_up_soon
    by_rdmacm
    [ $HOST = h0 ] || once_running remove_device
    traffic 60
    failed_with "$lost"
    [ $HOST = h0 ] || until_true add_device

    built examples/verbs_crossing
    export TIELINE_RENDEZVOUS=$H0:29401 TIELINE_CONNECT_TIMEOUT=$((10 * SLOWNESS))s TIELINE_VERBS_TX_DEPTH=16
    # The test has many rounds, so that the device is removed while connections
    # are forming.
    "$TARGET/debug/examples/verbs_crossing" 200 1000 > words 2>&1 &
    process=$!
    if [ $HOST = h1 ]; then
        until_true eval '[ "$(queue_pairs | wc -l)" -gt 20 ]'
        remove_device
    fi
    wait $process
    [ $? = 3 ] || fail "$(cat words)"
    cat words
    grep -q '^failed: ' words || fail "the reason is not said"
}
