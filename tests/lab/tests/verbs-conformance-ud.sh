about="the module ud (datagrams) of provider verbs does everything that a connector must do"
hosts=1
timeout=300
h0() { conformance ud; }
