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
    # Without the module one line reports that.
    tieline check "$TARGET/debug/libtieline_shm_xpmem.so" > absent 2>&1
    cat absent
    grep -q 'there is no /dev/xpmem' absent || fail "it does not say that the module is not loaded"
    load xpmem
    checked
    # The checks where direct access differs: the rest is the same code.
    local what
    export TIELINE_SHM_XPMEM_ACCESS=direct
    for what in a_put a_get a_range another_process atomic count_together key pointer; do
        checked --filter $what
    done
    unload xpmem
}
