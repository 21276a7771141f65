about="two devices of each host on separate networks are both connected by rdmacm, even if one has no rdmacm of its own"
devices=2
timeout=120
# connected_by CONNECTORS: checks that both devices carry data, and that these connectors have formed the
# connections.
connected_by() {
    local device
    rails 1 || fail "the job did not end well"
    grep 'rdmacm.*used for connection' words | sed 's/.*verbs:\(rxe.\)\/rdmacm .*connect \(.*\) by it/\2 by \1/' > by
    cat by
    [ "$HOST" = h1 ] || [ "$(paste -s -d ';' by)" = "$1" ] || fail "that is not \`$1\`"
    for device in rxe0 rxe1; do
        [ "$HOST" = h1 ] || grep -q "verbs:$device/rc to .*used for .*RMA" words || fail "$device is not used"
    done
}
every() {
    verbs_job
    by_rdmacm
    connected_by 'verbs:rxe0/rc by rxe0;verbs:rxe1/rc by rxe1'
    # One side forms the connections of its second device over its first device, whose network is the first
    # network of the other side.
    [ "$HOST" = h1 ] || export TIELINE_CONNECT_VERBS_RXE1=verbs:rxe0/rdmacm
    export TIELINE_RENDEZVOUS=$H0:29401
    connected_by 'verbs:rxe0/rc, verbs:rxe1/rc by rxe0'
}
