about="tieline info --why --all shows in one line what was composed for a device, with every connection module"
hosts=1
timeout=120

# composed WORDS SETTING...: checks the line of rxe0 in the report under these settings.
composed() {
    local words=$1
    shift
    env "$@" tieline info --why --all > report 2>&1 || { cat report; fail "tieline info ended with $?: $*"; }
    grep '^  verbs:rxe0  *{' report
    sed 's/  *{/  {/' report | grep -qxF "  verbs:rxe0  $words" || { cat report; fail "$*: it is not $words"; }
    env "$@" tieline info --json | grep -qF "\"composed\": \"$words\"" || fail "$*: not so in JSON"
}
# says WORDS: checks that the report contains these words, with any line breaks.
says() { tr -s ' \n' ' ' < report | grep -qF -- "$*" || { cat report; fail "it does not say: $*"; }; }

h0() {
    need tieline
    built libtieline_verbs.so libtieline_tcp_connect.so libtieline_tcp.so
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_PROVIDERS=verbs,tcp-connect
    rc="message rc, RMA rc, atomic emulated"
    fallback="fallback: no module of verbs:rxe0 can carry a connection"

    composed "{$rc, connect ud}" A=
    says "tcp-connect/stream not needed closed again: verbs:rxe0 is connected by verbs:rxe0/ud"
    composed "{message rc, RMA rc, atomic rc, connect ud}" TIELINE_ATOMICS=device

    composed "{$rc, connect tcp-connect ($fallback)}" 'TIELINE_MODULES=^*/ud'
    says "verbs:rxe0/ud left out by TIELINE_MODULES=^*/ud"
    says "tcp-connect/stream used for connection: $fallback"
    composed "{message rc, RMA rc, atomic rc, connect tcp-connect ($fallback)}" \
        'TIELINE_MODULES=^*/ud' TIELINE_ATOMICS=device

    composed "{$rc, connect tcp-connect (TIELINE_CONNECT_POLICY=prefer)}" TIELINE_CONNECT_POLICY=prefer
    says "outranked by tcp-connect/stream: for connection"

    # No module forms connections for rc: the host uses tcp, which has a connection module.
    export TIELINE_PROVIDERS=verbs,tcp,tcp-connect
    composed "{$rc, connect none}" 'TIELINE_MODULES=^*/ud' 'TIELINE_CONNECT_VERBS=^*'
    says "disabled: verbs:rxe0/rc needs another module to form its connections: "
    says "ud is left out by TIELINE_MODULES=^*/ud"
    says "tcp-connect is left out by TIELINE_CONNECT_VERBS=^*"
    says "tcp {message stream, RMA stream, atomic emulated, connect tcp-connect ("

    # This case disables all modules.
    if TIELINE_PROVIDERS=verbs TIELINE_MODULES='^*/ud' TIELINE_CONNECT='^*' tieline info > report 2>&1; then fail "this is no error"; fi
    tail -3 report
    says "no module that carries messages is usable"
    says "rdmacm is left out by TIELINE_CONNECT=^*; ud is left out by TIELINE_MODULES=^*/ud; there is no other"
}
