about="memory of every kind, registered before and after it is filled, with forks and programs started on either side, is right over a device, and a child keeps its own bytes"
timeout=180
hosts=1
cpus=2
h0() {
    built examples/single_copy libtieline_verbs.so
    echo 64 > /proc/sys/vm/nr_hugepages
    "$TARGET/debug/examples/single_copy" over_verbs || fail "see above"
}
