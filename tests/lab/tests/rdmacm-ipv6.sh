about="rdmacm connects with IPv6 addresses only"
hosts=1
timeout=120
check() {
    tieline check "$TARGET/debug/libtieline_verbs.so" --module rdmacm --limit $((60 * SLOWNESS)) --filter "$1"
}
h0() {
    need tieline
    built libtieline_verbs.so
    export TIELINE_VERBS_ACK_TIMEOUT=200ms
    ip -6 address add fd00:77::1/64 dev eth0 nodad && ip -4 address del "$H0/24" dev eth0 || skip "no IPv6"
    check two_processes_exchange && check a_killed_peer
    status=$?
    ip -4 address add "$H0/24" dev eth0
    ip -6 address del fd00:77::1/64 dev eth0
    return $status
}
