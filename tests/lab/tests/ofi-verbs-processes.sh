about="libfabric's verbs;ofi_rxm between processes: what a provider must do with messages, puts and gets, and as one is killed"
hosts=1
timeout=240
h0() {
    over_ofi_verbs
    for some in process killed put; do
        checks libtieline_ofi.so rdm --filter "$some" | tee words
        grep -q '^[1-9][0-9]* passed, 0 failed' words || fail "the checks of $some do not pass"
    done
}
