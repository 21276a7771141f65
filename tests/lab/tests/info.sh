about="on a host with RDMA tieline info says what is used and why"
hosts=1
core=1
h0() {
    need tieline
    tieline info --why --all | tee report || fail "tieline info ended with $?"
    grep -q 'shm/ring .*used' report || fail "no shared memory"
    tieline info --json > /dev/null || fail "tieline info --json ended with $?"
}
