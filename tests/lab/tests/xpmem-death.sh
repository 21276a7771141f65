about="the death of a peer during puts is an error if the kernel copies; with direct access it is SIGBUS for the process that puts, and for no other"
timeout=150
modules=1
hosts=1
devices=0
cpus=2
# Makes puts without end to a peer that the process has started.
puts() {
    tieline perf --test put_bw --size 64k --iterations 1000000000 > "$1" 2>&1 &
}
# Checks whether a process has attached the target of its puts, by the length of the mapping: the memory of its
# self-test is shorter. The attachment has two parts if a window ends in its middle. An attachment of the real module
# has no name in maps: it is a mapping of page frames (pf) that no fork copies (dc).
puts_now() {
    local word size one=0 attached=0
    while read -r word size; do
        case $word in
            Size:) one=${size% kB} ;;
            VmFlags:) case " $size " in *" pf"*" dc "*) attached=$((attached + one)) ;; esac ;;
        esac
    done < "/proc/$1/smaps"
    [ $attached -ge 64 ]
}
peer_of() { cat "/proc/$1/task/$1/children"; }
# Kills the peer of one of two processes, and returns the exit status of that process.
kill_a_peer() {
    local victim other ended
    puts killed
    victim=$!
    puts survives
    other=$!
    until_true puts_now $victim
    until_true puts_now $other
    kill -KILL $(peer_of $victim) || fail "there is nothing to kill"
    wait $victim
    ended=$?
    cat killed
    puts_now $other || fail "the other pair does not go on: $(cat survives)"
    [ -n "$(peer_of $other)" ] || fail "the other peer has ended"
    # The roles are reversed: the process with the attachment is killed, and its peer ends in an orderly manner.
    kill -KILL $other
    wait $other
    until_true eval '[ "$(counter xpmem attached)" = "$(counter xpmem detached)" ]'
    nothing_attached
    return $ended
}
h0() {
    need tieline
    built libtieline_shm_xpmem.so
    local ended
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_PROVIDERS=^tcp,verbs,shm-cma,shm-knem
    load xpmem
    kill_a_peer
    ended=$?
    [ $ended -gt 0 ] && [ $ended -lt 128 ] || fail "with copies it ended with $ended"
    grep -qi 'peer' killed || fail "it does not say that its peer is gone"
    export TIELINE_SHM_XPMEM_ACCESS=direct TIELINE_SHM_XPMEM_COLD=serve
    kill_a_peer
    ended=$?
    [ $ended = $((128 + 7)) ] || fail "with direct access it ended with $ended, and not by SIGBUS"
    unload xpmem
}
