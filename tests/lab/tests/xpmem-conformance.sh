about="provider shm-xpmem meets all requirements of a provider, over /dev/xpmem"
timeout=420
modules=1
hosts=1
devices=0
cpus=2
checked() {
    tieline check "$TARGET/debug/libtieline_shm_xpmem.so" --limit $((20 * SLOWNESS)) "$@" || fail "see the checks"
    nothing_attached
}
h0() {
    need tieline
    built libtieline_shm_xpmem.so
    # If the module is not loaded, the report has one line about it.
    tieline check "$TARGET/debug/libtieline_shm_xpmem.so" > absent 2>&1
    cat absent
    grep -q 'there is no /dev/xpmem' absent || fail "it does not say that the module is not loaded"
    load xpmem
    checked
    # Direct access is tested only by the checks that it affects: the other
    # checks run the same code.
    local what
    export TIELINE_SHM_XPMEM_ACCESS=direct
    for what in a_put a_get a_range another_process atomic count_together key pointer; do
        checked --filter $what
    done
    unload xpmem
}
