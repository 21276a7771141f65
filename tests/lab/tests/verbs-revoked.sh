about="a put with the key of a closed region fails with the reason, and harms nothing else"
timeout=90
every() {
    verbs_job
    gives_up_soon
}
h0() {
    every
    traffic 60
    failed_with 'key'
}
h1() {
    every
    traffic 60 1 revoke
    failed_with ''
}
