about="the module rdm of provider ofi over libfabric's verbs;ofi_rxm meets all requirements of a provider"
by_name="it takes a quarter of an hour, and ofi-verbs-processes does some of it"
hosts=1
timeout=900
h0() {
    over_ofi_verbs
    checks libtieline_ofi.so rdm > words 2>&1
    local status=$?
    cat words
    [ "$status" = 0 ] || fail "it ended with $status"
    # Checks of capabilities that a module does not claim are skipped. At least this number of checks
    # must run.
    [ "$(grep -c '^ofi:verbs:rxe0/rdm .*: ok' words)" -ge 110 ] || fail "too much of it was skipped"
}
