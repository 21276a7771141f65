about="path MTU, GID and devices are those of the settings, and a wrong value is refused with the available ones"
hosts=1
timeout=60
memory() { timeout 40 "$TARGET/debug/examples/verbs_memory" "$@"; }
h0() {
    built libtieline_verbs.so libtieline_tcp_connect.so examples/verbs_memory
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_PROVIDERS=verbs,tcp-connect TIELINE_VERBS_ACK_TIMEOUT=1s
    mkfifo input
    TIELINE_VERBS_PATH_MTU=512 memory hold < input > words &
    exec 3> input
    until_true grep -q standing words
    # rxe keeps the attributes of a queue pair; the kernel shows them.
    rdma -d resource show qp link rxe0/1 | tee pairs
    grep -q 'type RC state RTS' pairs || fail "no queue pair is ready to send"
    grep 'type RC state RTS' pairs | grep -q "path-mtu\|comm" || fail "the queue pairs are not shown"
    exec 3>&-
    wait $! || fail "it ended badly"
    TIELINE_VERBS_DEVICES='^rxe*' memory open > words && fail "a device that is left out is used"
    grep -q 'lets none of rxe0 port 1 through' words || fail "the filter is not named: $(cat words)"
    TIELINE_VERBS_GID_INDEX=77 memory open > words && fail "a GID that is not there is used"
    grep -q 'no GID with index 77' words || fail "the GIDs are not named: $(cat words)"
    TIELINE_VERBS_PARTITION_KEY=0x8002 memory open > words && fail "a partition that is not there is used"
    grep -q 'no partition key 0x8002' words || fail "the partition is not named: $(cat words)"
    other=$(($(gid_index rxe0) - 1))
    TIELINE_VERBS_GID_INDEX=$other memory hold < /dev/null | grep standing || fail "another GID does not work"
    TIELINE_VERBS_PARTITION_KEY=0xffff TIELINE_VERBS_TRAFFIC_CLASS=96 memory hold < /dev/null | grep standing ||
        fail "a partition key and a traffic class do not work"
}
