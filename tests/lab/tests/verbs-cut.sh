about="a link that is cut in mid-stream ends the connection with the reason, on both sides"
timeout=90
core=1
every() {
    verbs_job
    gives_up_soon
    if [ $HOST = h1 ]; then
        once_running cut_link
        # Without mending the link, the end of the program may block in the kernel on packets in the
        # link's driver.
        { await running > /dev/null && until_true grep -q failed words && mend_link; } &
    fi
    traffic 60
    failed_with "$lost"
}
