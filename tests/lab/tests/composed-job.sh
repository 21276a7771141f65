about="two examples, unchanged, as jobs of 8 processes on 2 hosts: by default every pair inside a host runs over shm, every other over rc"
timeout=240

# job EXAMPLE PORT: runs four of the eight ranks; the output of each rank is in
# words.RANK.
job() {
    local rank bad=
    local pids=()
    rm -f words.*
    for rank in $mine; do
        TIELINE_RANK=$rank TIELINE_RENDEZVOUS=$H0:$2 timeout 110 "$TARGET/debug/examples/$1" > words.$rank 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || bad=yes; done
    cat words.*
    [ -z "$bad" ] || fail "a rank of $1 failed"
}
# says RANK WORDS: checks that the output of this rank contains these words.
says() { grep -qF -- "$2" "words.$1" || fail "rank $1 does not say: $2"; }

every() {
    built libtieline_verbs.so examples/hello examples/halo
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_SECRET=lab TIELINE_SIZE=8
    # A list of providers to use would also set the order of preference.
    export TIELINE_PROVIDERS=^tcp,tcp-connect,ofi TIELINE_VERBS_ACK_TIMEOUT=1s TIELINE_VERBS_RX_BUFFERS=256
    first=$((4 * ${HOST#h}))
    last=$((first + 3))
    mine="$first $((first + 1)) $((first + 2)) $last"
    rc="{message verbs:rxe0/rc, RMA verbs:rxe0/rc, atomic emulated, connect verbs:rxe0/ud}"

    job hello 29421
    # The last rank of a host greets a rank on the other host, and the other ranks greet
    # their neighbours.
    for rank in $mine; do
        next=$(((rank + 1) % 8))
        if [ $rank = $last ]; then
            says $rank "rank $rank reaches rank $next by $rc"
        else
            says $rank "rank $rank reaches rank $next by {message shm/ring, RMA shm/ring"
        fi
    done

    job halo 29422
    says $first "puts to the left by verbs:rxe0/rc, to the right by shm/ring"
    says $((first + 1)) "puts to the left by shm/ring, to the right by shm/ring"
    says $((first + 2)) "puts to the left by shm/ring, to the right by shm/ring"
    says $last "puts to the left by shm/ring, to the right by verbs:rxe0/rc"
    [ $first != 0 ] || says 0 "50 steps on 8 ranks verified"
}
