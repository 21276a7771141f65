about="libfabric's verbs;ofi_rxm: left out with a reason until it is selected and its queues fit, then messages, puts and gets between two hosts"
timeout=150
core=1

# report SETTING...: prints the output of tieline info with these settings, in one line.
report() {
    env "$@" tieline info --why --all > words 2>&1 || fail "tieline info ended with $?: $(tail -n 3 words)"
    tr -s '\n ' ' ' < words
}
# job PORT SETTING...: runs puts, gets and messages from h0 to h1 with these settings; the output is in the file
# `words`.
job() {
    local port=$1
    shift
    (export TIELINE_RENDEZVOUS=$H0:$port "$@" && rails 1)
}

every() {
    need tieline
    built libtieline_ofi.so libtieline_tcp.so
    ldconfig -p | grep -q 'libfabric\.so\.1 ' || skip "no libfabric: install libfabric1"
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_LOG=info
    local all=TIELINE_PROVIDERS=ofi,tcp,tcp-connect asked=TIELINE_OFI_PROVIDERS=verbs
    if [ "$HOST" = h0 ]; then
        echo "nobody asks for verbs of libfabric:"
        report $all > line
        grep -q 'verbs;ofi_rxm on rxe0: by TIELINE_OFI_PROVIDERS=' line || fail "why it is not used is not said: $(cat line)"
    else
        echo "its queues do not fit:"
        report $all $asked | tee line
        grep -q 'set FI_UNIVERSE_SIZE to how many there are' line || fail "what to do is not said: $(cat line)"
    fi
    grep -q 'tcp/stream used' line || fail "nothing is used: $(cat line)"
    ! grep -q 'ofi:verbs:rxe0/rdm used' line || fail "it is used: $(cat line)"

    export TIELINE_SECRET=lab TIELINE_SIZE=2 TIELINE_RANK=${HOST#h}
    job 29431 $all $asked || fail "the job does not run without it"
    [ "$HOST" != h0 ] || grep -q '^messages over tcp/stream' words || fail "it does not run by tcp"

    echo "they fit:"
    over_ofi_verbs
    job 29432 || fail "the job does not run by verbs of libfabric"
    [ "$HOST" != h0 ] || grep -q '^messages over ofi:verbs:rxe0/rdm, puts and gets over ofi:verbs:rxe0/rdm' words ||
        fail "they run by something else"
}
