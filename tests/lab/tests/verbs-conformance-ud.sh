about="the module ud (datagrams) of provider verbs meets all requirements of a connector"
hosts=1
timeout=300
h0() { conformance ud; }
