about="within the limit of a control group, memory of any size is granted or refused with an error, and no process is killed"
timeout=90
hosts=1
devices=0
h0() {
    local groups=/sys/fs/cgroup group limit=$((256 << 20))
    built examples/alloc_within
    mountpoint -q $groups || mount -t cgroup2 cgroup2 $groups || fail "the kernel has no control groups of version 2"
    grep -qw memory $groups/cgroup.controllers || fail "the kernel has no memory controller"
    group=$groups/$TEST
    # The limit is that of the outer group: for nested groups, the smallest limit
    # applies.
    echo +memory > $groups/cgroup.subtree_control
    mkdir "$group" && echo +memory > "$group/cgroup.subtree_control" && mkdir "$group/inner" || fail "no group can be made"
    echo $limit > "$group/memory.max"
    [ ! -e "$group/memory.swap.max" ] || echo 0 > "$group/memory.swap.max"
    # Each piece is a memory file, which needs a descriptor.
    ulimit -n 65536
    (
        echo "$BASHPID" > "$group/inner/cgroup.procs"
        exec "$TARGET/debug/examples/alloc_within" $limit
    )
    status=$?
    cat "$group/memory.events"
    [ $status = 0 ] || fail "it ended with $status"
    grep -qx 'oom_kill 0' "$group/memory.events" || fail "somebody was killed"
    grep -qx 'oom 0' "$group/memory.events" || fail "the group was out of memory"
    rmdir "$group/inner" "$group"
}
