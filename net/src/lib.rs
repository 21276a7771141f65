//! What connections over TCP share: which interfaces lead to a peer, where a process listens, and the
//! handshake that a stranger does not pass. The providers `tcp` and `tcp-connect` and the core's rendezvous
//! are built on it; it knows nothing of them.
