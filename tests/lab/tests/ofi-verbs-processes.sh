about="libfabric's verbs;ofi_rxm between processes: a provider's requirements for messages, puts and gets, and for the death of a peer"
hosts=1
timeout=240
h0() {
    over_ofi_verbs
    for some in process killed put; do
        checks libtieline_ofi.so rdm --filter "$some" > "$some" 2>&1
        local status=$?
        cat "$some"
        [ "$status" = 0 ] || fail "the checks of $some ended with $status"
    done
    # Checks of capabilities that a module does not claim are skipped. The following checks
    # must run.
    for check in two_processes_exchange_messages put_and_get_reach_another_process \
        a_killed_peer_is_reported_and_posting_to_it_fails a_peer_killed_in_mid_stream_leaves_whole_messages \
        a_put_to_a_killed_peer_fails a_put_writes_exactly_its_range; do
        cat process killed put | grep -q "^ofi:verbs:rxe0/rdm $check: ok" || fail "$check has not run"
    done
}
