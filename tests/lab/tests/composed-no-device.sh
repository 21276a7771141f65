about="on a host without RDMA tieline info has one line about that, and no other"
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
    # The count excludes lines with file names, because a file name contains the
    # provider's name.
    [ "$(grep -v 'libtieline_' report | grep -c verbs)" = 1 ] || fail "it is said more than once"
}
