about="hundreds of connections that both sides open together by rdmacm, over links that lose 5 %, reorder and duplicate: one for each pair"
timeout=120
every() {
    verbs_job
    by_rdmacm
    export TIELINE_VERBS_TX_DEPTH=16
    lossy 120ms
    crossing 200 1
}
