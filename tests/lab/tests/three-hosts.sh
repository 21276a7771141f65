about="three hosts, each of which reaches the other two"
hosts=3
every() {
    for ((n = 0; n < LAB_HOSTS; n++)); do
        busybox ping -c 2 -W 10 "10.77.0.$((n + 1))" || fail "h$n does not answer"
    done
}
