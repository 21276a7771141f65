about="two processes copy each other's regions by knem while both make and end them and map anew: no wrong byte, and no leak"
timeout=60
modules=1
hosts=1
devices=0
cpus=2
core=1
h0() {
    built examples/knem_race
    load knem
    for time in 1 2; do
        "$TARGET/debug/examples/knem_race" 4 || fail "run $time"
        nothing_pinned
    done
    unload knem
}
