about="two hosts exchange messages over a reliable connection"
timeout=30
core=1
h0() { serve 18515 stdbuf -oL ibv_rc_pingpong -d rxe0 -g "$GID" -n 100; }
h1() {
    await port-18515
    stdbuf -oL ibv_rc_pingpong -d rxe0 -g "$GID" -n 100 "$H0"
}
