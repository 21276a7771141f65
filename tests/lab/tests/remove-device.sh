about="a removed device is gone once no process has it open, and can be added again"
hosts=1
h0() {
    remove_device
    until_true eval '! test -e /sys/class/infiniband/rxe0'
    ibv_devinfo && fail "there is still a device"
    add_device || fail "no device comes back"
    grep ACTIVE /sys/class/infiniband/rxe0/ports/1/state
}
