about="a receiver that polls rarely blocks its sender, and loses nothing"
timeout=90
every() {
    verbs_job
    traffic 4 100 || fail "the stream broke"
    grep -q 'sent [1-9]\|received [1-9].* in order' words || fail "nothing was sent"
}
