about="one line of tieline info says why the device is not used, and what to do"
timeout=120

# says WORDS: checks that the last report contains these words, with any line
# breaks.
says() { tr -s ' \n' ' ' < report | grep -qF -- "$*" || { cat report; fail "it does not say: $*"; }; }
why() {
    tieline info --why --all > report 2>&1 || { cat report; fail "tieline info ended with $?"; }
    grep -A2 'verbs' report
}
prepare() {
    need tieline
    built examples/hello
    verbs_job
    export TIELINE_PROVIDERS=verbs,tcp-connect
}

h0() {
    prepare
    export TIELINE_PROVIDERS=shm,verbs,tcp-connect
    echo "== its port is down"
    cut_link
    until_true grep -q DOWN /sys/class/infiniband/rxe0/ports/1/state
    why
    says "verbs:rxe0 not used rxe0 port 1 is DOWN, not ACTIVE: bring up its network device (\`rdma link\` names it), or see the cable and the switch"
    mend_link
    until_true grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state

    echo "== nobody may open it"
    # libibverbs then tries other paths, and reports the result of the last one.
    chmod 000 /dev/infiniband/uverbs*
    plain tieline info --why --all > report 2>&1 || { cat report; fail "tieline info ended with $?"; }
    grep -A2 'verbs' report
    chmod 666 /dev/infiniband/uverbs*
    says "verbs:rxe0 not used rxe0 cannot be opened, see who may read and write /dev/infiniband/uverbs*"

    echo "== a variable leaves it out"
    TIELINE_PROVIDERS='^verbs' tieline info --why --all > report 2>&1 || fail "tieline info ended with $?"
    grep verbs report
    says "verbs left out by TIELINE_PROVIDERS=^verbs"

    echo "== its devices are left out"
    TIELINE_VERBS_DEVICES='mlx5_*' tieline info --why --all > report 2>&1 || fail "tieline info ended with $?"
    grep -A1 verbs report
    says 'verbs not used TIELINE_VERBS_DEVICES="mlx5_*" lets none of rxe0 port 1 through'

    echo "== the peer has an address of another kind"
    signal devices-are-back
    export TIELINE_PROVIDERS=verbs,tcp-connect
    timeout 60 "$TARGET/debug/examples/hello" > report 2>&1 && fail "it is reached"
    cat report
    says "verbs:rxe0/rc: this port's address is"
    says "one is IPv4 and the other is not"
}
h1() {
    prepare
    await devices-are-back > /dev/null
    # The first entry is the link-local IPv6 address.
    TIELINE_VERBS_GID_INDEX=0 timeout 60 "$TARGET/debug/examples/hello" > report 2>&1 && fail "it is reached"
    cat report
    says "one is IPv4 and the other is not"
}
