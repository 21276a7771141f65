about="a foreign client at rdmacm's port is refused, and the job is not affected"
timeout=90
core=1
every() {
    verbs_job
    need rping
    by_rdmacm
    traffic 8 || fail "the stream does not run"
    grep -q 'sent [1-9]\|received [1-9]' words || fail "nothing was sent"
}
listening() { rdma resource show cm_id | sed -n 's/.*state LISTEN .*:\([0-9]*\) *dst.*/\1/p;s/.*state LISTEN .*src-addr [^ ]*:\([0-9]*\) .*/\1/p' | head -1; }
h0() {
    { await running > /dev/null && rdma resource show cm_id && signal port "$(listening)"; } &
    every
}
h1() {
    {
        port=$(await port)
        rping -c -a "$H0" -p "$port" -C 1 && touch let-in
        echo "a stranger at port $port: $?"
    } &
    every
    [ -e let-in ] && fail "the stranger was let in"
    true
}
