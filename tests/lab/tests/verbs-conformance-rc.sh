about="the module rc (reliable connections) of provider verbs does everything that a provider must do"
hosts=1
timeout=480
h0() { conformance rc; }
