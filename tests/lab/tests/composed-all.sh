about="shm, verbs, tcp and libfabric in one job between two hosts: each is left out in turn, and another transport takes over"
timeout=240

# over PROVIDERS PORT WORDS: checks that with these providers, messages and puts from h0 to h1 take the path with
# these words.
over() {
    echo "with $1:"
    (export TIELINE_PROVIDERS=$1 TIELINE_RENDEZVOUS=$H0:$2 && rails 1) || fail "the job does not run with $1"
    [ "$HOST" != h0 ] || grep -q "^messages over $3" words || fail "with $1 it does not run over $3: $(cat words)"
}

every() {
    built libtieline_verbs.so libtieline_ofi.so libtieline_tcp.so libtieline_tcp_connect.so
    ldconfig -p | grep -q 'libfabric\.so\.1 ' || skip "no libfabric: install libfabric1"
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_OFI_PROVIDERS=tcp TIELINE_OFI_TRUST=delivery
    export TIELINE_SECRET=lab TIELINE_SIZE=2 TIELINE_RANK=${HOST#h}
    over shm,verbs,tcp,tcp-connect,ofi 29441 'verbs:rxe0/rc, puts and gets over verbs:rxe0/rc'
    over verbs,tcp,tcp-connect,ofi 29442 'verbs:rxe0/rc, puts and gets over verbs:rxe0/rc'
    over shm,verbs,tcp,tcp-connect 29443 'verbs:rxe0/rc, puts and gets over verbs:rxe0/rc'
    over shm,tcp,tcp-connect,ofi 29444 'tcp/stream, puts and gets over tcp/stream'
    over shm,verbs,ofi 29445 'verbs:rxe0/rc, puts and gets over verbs:rxe0/rc'
    over shm,ofi 29446 'ofi:tcp:eth0/rdm, puts and gets over ofi:tcp:eth0/rdm'
}
