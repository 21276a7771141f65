about="rc is wired by ud, and by tcp-connect where ud is left out"
timeout=90
core=1
every() {
    verbs_job
    traffic 3 || fail "the stream does not run when ud carries the connection"
    grep -q 'sent [1-9]\|received [1-9]' words || fail "nothing was sent by way of ud"
    export TIELINE_MODULES='^*/ud' TIELINE_RENDEZVOUS=$H0:29401
    traffic 3 || fail "the stream does not run when tcp-connect carries the connection"
    grep -q 'sent [1-9]\|received [1-9]' words || fail "nothing was sent by way of tcp-connect"
}
