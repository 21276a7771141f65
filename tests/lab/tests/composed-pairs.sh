about="two hosts with different settings connect by a common connection module, or learn what each has"
timeout=180

# greet PORT SETTING...: both ranks run the example hello, each with its own settings.
greet() {
    local port=$1 status
    shift
    signal "ready-$port-$HOST"
    await "ready-$port-h0" > /dev/null
    await "ready-$port-h1" > /dev/null
    env "$@" TIELINE_RENDEZVOUS="$H0:$port" timeout 60 "$TARGET/debug/examples/hello" > words 2>&1
    status=$?
    echo "== $*"
    cat words
    return $status
}
by() {
    grep -qF -- "$*" words || fail "it is not by $*"
}
prepare() {
    built examples/hello libtieline_tcp.so
    verbs_job
    export TIELINE_PROVIDERS=verbs,tcp,tcp-connect
}
rc="message verbs:rxe0/rc, RMA verbs:rxe0/rc"

h0() {
    prepare
    greet 29411 A= || fail "the usual settings"
    by "$rc, atomic emulated, connect verbs:rxe0/ud}"
    greet 29412 TIELINE_CONNECT_POLICY=prefer || fail "one prefers"
    by "$rc, atomic emulated, connect tcp-connect/stream}"
    greet 29413 'TIELINE_MODULES=^*/ud' || fail "one has no ud"
    by "$rc, atomic emulated, connect tcp-connect/stream}"
    # One host has no ud, and the other has no tcp-connect for rc: the two use tcp.
    greet 29414 'TIELINE_MODULES=^*/ud' || fail "nothing in common for rc"
    by "message tcp/stream"
    # No host has a connection module for rc.
    greet 29415 'TIELINE_MODULES=^*/ud' 'TIELINE_CONNECT_VERBS=^tcp-connect,rdmacm' || fail "no connection module"
    by "message tcp/stream"
    # Without tcp there is no common module: each host reports the modules of both.
    greet 29416 TIELINE_PROVIDERS=verbs,tcp-connect 'TIELINE_MODULES=^*/ud' && fail "this is no path"
    by "here: tcp-connect/stream; there: verbs/ud"
}
h1() {
    prepare
    greet 29411 A= || fail "the usual settings"
    by "$rc, atomic emulated, connect verbs:rxe0/ud}"
    greet 29412 A= || fail "one prefers"
    by "$rc, atomic emulated, connect tcp-connect/stream}"
    greet 29413 A= || fail "one has no ud"
    by "$rc, atomic emulated, connect tcp-connect/stream}"
    greet 29414 'TIELINE_CONNECT_VERBS=^tcp-connect' || fail "nothing in common for rc"
    by "message tcp/stream"
    greet 29415 'TIELINE_MODULES=^*/ud' 'TIELINE_CONNECT_VERBS=^*' || fail "no connection module"
    by "message tcp/stream"
    greet 29416 TIELINE_PROVIDERS=verbs,tcp-connect && fail "this is no path"
    by "here: verbs/ud; there: tcp-connect/stream"
}
