about="every host has its device, with a RoCEv2 address of IPv4"
core=1
h0() {
    ibv_devinfo -v -d rxe0 > info || fail "ibv_devinfo ended with $?"
    cat info
    grep -q "state:.*PORT_ACTIVE" info || fail "the port is not active"
    grep -q "GID\[ *$GID\]:.*::ffff:10.77.0.$((${HOST#h} + 1)), RoCE v2" info || fail "no such GID at index $GID"
    [ "$(ibv_devinfo -l | grep -c rxe)" = 1 ] || fail "not one device"
}
h1() { h0; }
