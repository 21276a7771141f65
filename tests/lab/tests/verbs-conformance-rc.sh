about="the module rc (reliable connections) of provider verbs meets all requirements of a provider"
hosts=1
timeout=480
h0() { conformance rc; }
