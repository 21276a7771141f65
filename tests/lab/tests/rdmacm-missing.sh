about="without librdmacm.so.1 or /dev/infiniband/rdma_cm one line says so, and another connector is used"
timeout=90
library() { ldconfig -p | sed -n 's/.*librdmacm.so.1 .*=> //p' | head -1; }
report() { tieline info --why --all > report || fail "tieline info ended with $?"; grep 'rdmacm\|tcp-connect' report; }
every() {
    verbs_job
    need tieline
    export TIELINE_MODULES='^*/ud' TIELINE_CONNECT=rdmacm,tcp-connect
    # This part of the test has its own mount namespace.
    mount --bind /dev/null "$(library)" || skip "no librdmacm.so.1 that could be hidden"
    report
    [ "$(grep -c 'rdmacm.*librdmacm.so.1 cannot be loaded' report)" = 1 ] || fail "it is not said in one line"
    grep -q 'tcp-connect/stream .*used .*for connection' report || fail "tcp-connect did not take its place"
    traffic 2 || fail "the stream does not run"
    umount "$(library)"

    mv /dev/infiniband/rdma_cm /dev/infiniband/away
    report
    mv /dev/infiniband/away /dev/infiniband/rdma_cm
    [ "$(grep -c 'rdmacm.*modprobe rdma_ucm' report)" = 1 ] || fail "it is not said in one line"
    grep -q 'tcp-connect/stream .*used .*for connection' report || fail "tcp-connect did not take its place"
}
