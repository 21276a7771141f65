about="provider shm-knem meets all requirements of a provider, over /dev/knem"
timeout=240
modules=1
hosts=1
devices=0
cpus=2
h0() {
    need tieline
    built libtieline_shm_knem.so
    # If the module is not loaded, the report has one line about it.
    tieline check "$TARGET/debug/libtieline_shm_knem.so" > absent 2>&1
    cat absent
    grep -q 'there is no /dev/knem' absent || fail "it does not say that the module is not loaded"
    load knem
    tieline check "$TARGET/debug/libtieline_shm_knem.so" --limit $((20 * SLOWNESS)) || fail "see the checks"
    nothing_pinned
    unload knem
}
