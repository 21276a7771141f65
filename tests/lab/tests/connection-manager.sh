about="the connection manager finds a host by its IP address, and data is verified"
h0() { serve 7174 rping -s -a "$H0" -C 10 -v; }
h1() {
    await port-7174
    rping -c -a "$H0" -C 10 -v
}
