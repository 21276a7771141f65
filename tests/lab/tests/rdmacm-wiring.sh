about="rc is wired by rdmacm alone, and tieline info says so"
timeout=90
every() {
    verbs_job
    need tieline
    by_rdmacm
    tieline info --why --all > report || fail "tieline info ended with $?"
    grep rdmacm report
    grep -q 'rdmacm .*used .*for connection' report || fail "rdmacm is not what forms connections"
    traffic 3 || fail "the stream does not run when rdmacm carries the connection"
    grep -q 'sent [1-9]\|received [1-9]' words || fail "nothing was sent"
}
