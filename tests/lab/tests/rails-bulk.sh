about="large puts and gets are striped over both devices of a host, complete, and the report names both"
devices=2
timeout=120
# Prints the number of RDMA packets that a device has sent and received.
packets() {
    local counters=/sys/class/infiniband/$1/ports/1/hw_counters
    echo $(($(cat $counters/sent_pkts) + $(cat $counters/rcvd_pkts)))
}
every() {
    verbs_job
    unset TIELINE_PROVIDERS
    built examples/rails tieline
    first=$(packets rxe0) second=$(packets rxe1)
    stdbuf -oL "$TARGET/debug/examples/rails" 5 2>&1 | tee words
    [ "${PIPESTATUS[0]}" = 0 ] || fail "the job did not end well"
    first=$(($(packets rxe0) - first)) second=$(($(packets rxe1) - second))
    echo "rxe0 carried $first packets, rxe1 $second"
    # Messages and connections account for a few hundred packets of one device.
    [ $((first * 10)) -ge $(((first + second) * 3)) ] || fail "rxe0 carried less than 3 of 10 packets"
    [ $((second * 10)) -ge $(((first + second) * 3)) ] || fail "rxe1 carried less than 3 of 10 packets"
    [ $HOST = h0 ] || return 0
    grep -q '^[1-9][0-9]* rounds .* 0 failures' words || fail "no round was done, or some failed"
    for device in rxe0 rxe1; do
        grep -q "verbs:$device/rc to .*used for .*RMA" words || fail "the endpoint's report does not name $device"
        tieline info --why --all | grep -q "verbs:$device/rc" || fail "info does not name $device"
    done
}
