about="processes that are killed at random moments, while they send, receive or connect, are reported with the reason"
timeout=150
port=29400
# round VICTIM PROGRAM ARGUMENTS...: runs the program on both hosts, and kills the victim's process at a random
# moment.
round() {
    local victim=$1 program=$2 process moment
    shift 2
    built "examples/$program"
    port=$((port + 1))
    export TIELINE_RENDEZVOUS=$H0:$port
    until_true eval '[ "$(queue_pairs | wc -l)" = 0 ]'
    if [ $HOST = $victim ]; then
        "$TARGET/debug/examples/$program" "$@" > killed &
        process=$!
        until_true eval '[ "$(queue_pairs | wc -l)" -gt 0 ]'
        moment=$((RANDOM % 3)).$((RANDOM % 10))
        echo "$program killed after $moment s"
        sleep $moment
        kill -KILL $process || fail "there is nothing to kill"
        wait $process
        await "survived-$port" > /dev/null
    else
        "$TARGET/debug/examples/$program" "$@" > words 2>&1
        [ $? = 3 ] || fail "the survivor ended with another status: $(cat words)"
        cat words
        grep -q '^failed: ' words || fail "the reason is not said"
        signal "survived-$port"
    fi
}
every() {
    verbs_job
    gives_up_soon
    export TIELINE_CONNECT_TIMEOUT=$((5 * SLOWNESS))s
    round h0 verbs_traffic 60
    round h1 verbs_crossing 60 1000
    round h0 verbs_crossing 60 1000
}
