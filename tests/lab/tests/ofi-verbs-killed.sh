about="libfabric's verbs;ofi_rxm: a peer killed during messages and puts, on either side, is reported with the reason, and nothing hangs"
timeout=150
port=29440
# round VICTIM: runs traffic from h0 to h1, and kills the victim's process
# during the traffic.
round() {
    port=$((port + 1))
    export TIELINE_RENDEZVOUS=$H0:$port
    : > words
    [ "$HOST" != h0 ] || { until_true grep -q running words && signal "running-$port"; } &
    traffic 60 &
    if [ "$HOST" = "$1" ]; then
        await "running-$port" > /dev/null
        signal "killing-$port"
        kill -KILL $(pidof verbs_traffic) || fail "there is nothing to kill"
        wait
        await "survived-$port" > /dev/null
    else
        wait $!
        failed_with 'is gone\|has ended\|the peer'
        [ -e "$RESULTS/signals/killing-$port" ] || fail "it had failed before anybody was killed"
        [ "$HOST" != h0 ] || grep -q '^running by ofi:verbs:rxe0/rdm' words || fail "it ran by something else"
        signal "survived-$port"
    fi
}
every() {
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_SECRET=lab TIELINE_SIZE=2 TIELINE_RANK=${HOST#h}
    over_ofi_verbs
    gives_up_soon
    round h1
    round h0
}
