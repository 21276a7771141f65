about="thousands of connections that both sides open together, over links that lose 5 %, reorder and duplicate: one for each pair"
timeout=200
# The number of connections in a round, and the number of rounds.
by_ud="250 4"
by_tcp="250 4"
every() {
    verbs_job
    # The depth is chosen so that a completion queue of soft RoCE has space for
    # the completions of all connections.
    export TIELINE_VERBS_TX_DEPTH=16
    lossy 250ms
    crossing $by_ud
    export TIELINE_MODULES='^*/ud' TIELINE_RENDEZVOUS=$H0:29401
    crossing $by_tcp
}
