about="one-sided writes and reads cross between two hosts"
h0() {
    serve 18515 ib_write_bw -d rxe0 -x "$GID" -s 65536 -n 100 -F &&
        serve 18516 ib_read_bw -d rxe0 -x "$GID" -s 65536 -n 100 -F -p 18516
}
h1() {
    await port-18515 && ib_write_bw -d rxe0 -x "$GID" -s 65536 -n 100 -F "$H0" &&
        await port-18516 && ib_read_bw -d rxe0 -x "$GID" -s 65536 -n 100 -F -p 18516 "$H0"
}
