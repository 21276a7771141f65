about="a host without RDMA says so in one line of tieline info, and nothing else is said of it"
hosts=1
devices=0
core=1
h0() {
    need tieline
    built libtieline_verbs.so
    export TIELINE_PROVIDER_PATH=$TARGET/debug
    tieline info --why --all > report 2>&1 || fail "tieline info ended with $?"
    cat report
    grep -q '^  verbs  *not used  *no device in /sys/class/infiniband; version ' report || fail "the line is not there"
    # The names of files apart, of which one is the provider's own, in the lines that follow.
    [ "$(grep -v 'libtieline_' report | grep -c verbs)" = 1 ] || fail "it is said more than once"
}
