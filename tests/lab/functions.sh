# The functions of the lab's tests.

# skip REASON: ends a test that cannot run here. The test then counts as skipped on every host.
skip() {
    echo "$*" > "$RESULTS/skipped"
    echo "skipped: $*"
    exit 77
}

# fail REASON: ends the test as failed, with this reason.
fail() {
    echo "failed: $*"
    exit 1
}

# need PROGRAM: skips the test if neither the build nor a package contains the program.
need() {
    type "$1" > /dev/null 2>&1 || skip "no $1: build it, or install its package"
}

# built FILE...: skips if the build has not made these files, each a path below $TARGET/debug.
built() {
    local file
    for file; do [ -e "$TARGET/debug/$file" ] || skip "$file is not built"; done
}

# ---- Hosts wait for each other ----

# signal NAME [TEXT]: resumes every `await NAME`, which reads TEXT.
signal() {
    echo "${2-}" > "$RESULTS/signals/.$1.$HOST"
    mv "$RESULTS/signals/.$1.$HOST" "$RESULTS/signals/$1"
}

# await NAME: waits for that signal, from any host, and prints the signal's text. The deadline of the test also limits
# this wait.
await() {
    until [ -e "$RESULTS/signals/$1" ]; do sleep 0.05; done
    cat "$RESULTS/signals/$1"
}

# until_true COMMAND...: repeats the command until it succeeds.
until_true() {
    until "$@" > /dev/null 2>&1; do sleep 0.1; done
}

# serve PORT COMMAND...: runs a server, signals `port-PORT` once it listens (TCP, or a connection manager's port) or
# has ended, and returns its exit status.
serve() {
    local port=$1 pid
    shift
    "$@" &
    pid=$!
    until listens "$port"; do
        kill -0 $pid 2> /dev/null || break
        sleep 0.05
    done
    signal "port-$port"
    wait $pid
}

listens() {
    [ -n "$(ss -Hltn "sport = :$1")" ] || rdma resource show cm_id 2> /dev/null | grep -q "state LISTEN .*:$1\b"
}

# ---- Jobs over provider verbs ----

# verbs_job: the settings of a job with one rank on each of two hosts, over reliable connections of provider verbs.
# The timeout of the device is long, because an emulated host may acknowledge late.
verbs_job() {
    built libtieline_verbs.so libtieline_tcp_connect.so
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_PROVIDERS=verbs,tcp-connect
    export TIELINE_SECRET=lab TIELINE_SIZE=2 TIELINE_RANK=${HOST#h} TIELINE_RENDEZVOUS=$H0:29400
    export TIELINE_VERBS_ACK_TIMEOUT=1s
}

# over_ofi_verbs: enables only libfabric's provider verbs;ofi_rxm, with queue sizes for two hosts.
over_ofi_verbs() {
    built libtieline_ofi.so
    ldconfig -p | grep -q 'libfabric\.so\.1 ' || skip "no libfabric: install libfabric1"
    export TIELINE_PROVIDERS=ofi TIELINE_OFI_PROVIDERS=verbs
    export FI_UNIVERSE_SIZE=8 FI_OFI_RXM_USE_SRX=1 FI_OFI_RXM_MSG_RX_SIZE=256
}

# by_rdmacm: makes rdmacm the only module that forms connections.
by_rdmacm() { export TIELINE_PROVIDERS=verbs TIELINE_CONNECT=rdmacm TIELINE_MODULES='^*/ud'; }

# gives_up_soon: sets timeouts that report a dead peer within seconds, but not a slow peer.
gives_up_soon() {
    export TIELINE_VERBS_ACK_TIMEOUT=$((130 * SLOWNESS))ms TIELINE_FAILURE_TIMEOUT=$((4 * SLOWNESS))s
}

# conformance MODULE: runs the conformance suite on a module of verbs.
conformance() {
    export TIELINE_VERBS_ACK_TIMEOUT=200ms
    checks libtieline_verbs.so "$1"
}

# checks FILE MODULE [OPTION...]: runs the conformance suite on a module of a provider of the build.
checks() {
    need tieline
    built "$1"
    # Timeouts for an emulated machine: a dead peer times out after some seconds, but a slow peer does not. A peer
    # that never connects times out before half of a check's time limit, which is the limit of the check's waits.
    export TIELINE_FAILURE_TIMEOUT=$((8 * SLOWNESS))s TIELINE_CONNECT_TIMEOUT=$((10 * SLOWNESS))s
    # In most checks one thread is both ends: a close cannot receive acknowledgements that need the other end's poll.
    export TIELINE_CLOSE_TIMEOUT=300ms
    tieline check "$TARGET/debug/$1" --module "$2" --limit $((60 * SLOWNESS)) "${@:3}"
}

# traffic SECONDS [PAUSE_MS [revoke]]: sends messages and puts from h0 to h1 for SECONDS; h1 checks them. Returns 0 if
# all arrived, 3 if the connection failed. Keeps the output in the file `words`, and signals `running`.
traffic() {
    local status
    built examples/verbs_traffic
    : > words
    { until_true grep -q running words && signal running; } &
    stdbuf -oL "$TARGET/debug/examples/verbs_traffic" "$@" 2>&1 | tee words
    status=${PIPESTATUS[0]}
    kill $! 2> /dev/null
    return "$status"
}

# rails SECONDS [LOSSES]: sends large puts and gets from h0 to h1, each checked, for SECONDS and until LOSSES failures
# have been survived. Returns the exit status. Keeps the output in the file `words`, and signals `running`.
rails() {
    local status
    built examples/rails
    : > words
    { until_true grep -q 'running after 0' words && signal running; } &
    stdbuf -oL "$TARGET/debug/examples/rails" "$@" 2>&1 | tee words
    status=${PIPESTATUS[0]}
    kill $! 2> /dev/null
    return "$status"
}

# the_loss_is_survived: checks that operations in flight at the loss failed with the reason, and that the rails
# continued.
the_loss_is_survived() {
    grep -q "failed: .*\\($lost\\)" words || fail "the loss is not said"
    grep -q 'running after [1-9]' words || fail "nothing went on after the loss"
}

# tcp_took_over: checks that the rails began over verbs, and continued over tcp.
tcp_took_over() {
    grep -q '^messages over verbs:rxe0/rc, puts and gets over verbs:rxe0/rc' words || fail "it did not begin over verbs"
    grep '^messages over' words | tail -n 1 | grep -q 'over tcp.* over tcp' || fail "tcp did not take over"
}

# The reasons that report the loss of a device, of its link, or of the route to the peer.
lost='did not acknowledge\|could not send\|is down\|was removed\|acknowledged nothing\|neither completed nor failed'

# kill_in_traffic: kills h1's process during the traffic, and checks that h0 reports the failure.
kill_in_traffic() {
    if [ "$HOST" = h0 ]; then
        traffic 60
        failed_with 'the peer'
    else
        traffic 60 > killed &
        await running > /dev/null
        kill -KILL $(pidof verbs_traffic) || fail "there is nothing to kill"
        wait
    fi
}

# once_running COMMAND...: runs the command during the traffic.
once_running() { { await running > /dev/null && "$@"; } & }

# failed_with REASON: checks that the traffic whose exit status is $? has failed with this reason, a pattern of grep.
failed_with() {
    local status=$?
    [ "$status" = 3 ] || fail "the traffic ended with $status, not with the reason"
    grep -qi "failed: .*\($1\)" words || fail "the reason is not said"
}

# queue_pairs: prints the local and the remote queue pair of the reliable connections of this host, without queue
# pairs that belong to an id of the connection manager.
queue_pairs() {
    rdma resource show cm_id | sed -n 's/.* lqpn \([0-9]*\) .*/\1/p' > managed
    rdma resource show qp | sed -n 's/.* lqpn \([0-9]*\) rqpn \([0-9]*\) type RC .*/\1 \2/p' |
        awk 'FILENAME == "managed" { managed[$1]; next } !($1 in managed)' managed - | sort
}

# crossing CONNECTIONS ROUNDS: in every round, both hosts open CONNECTIONS connections to each other at the same time.
# While the connections of the last round are open, the function also checks from outside that each pair has exactly
# one.
crossing() {
    local pid
    built examples/verbs_crossing
    rm -f end
    stdbuf -oL "$TARGET/debug/examples/verbs_crossing" "$1" "$2" "$PWD/end" > words 2>&1 &
    pid=$!
    until_true eval "grep -q standing words || ! kill -0 $pid"
    queue_pairs > "$RESULTS/$HOST.pairs"
    signal "counted-$TIELINE_RENDEZVOUS-$HOST"
    await "counted-$TIELINE_RENDEZVOUS-$([ "$HOST" = h0 ] && echo h1 || echo h0)" > /dev/null
    : > end
    wait $pid || fail "$(cat words)"
    cat words
    [ "$(wc -l < "$RESULTS/$HOST.pairs")" = "$1" ] ||
        fail "the device has $(wc -l < "$RESULTS/$HOST.pairs") reliable connections, and there are $1 pairs"
    awk '{ print $2, $1 }' "$RESULTS/h1.pairs" | sort | cmp - "$RESULTS/h0.pairs" ||
        fail "the two ends of a connection do not name each other"
    echo "each of $1 queue pairs here is connected to one there, and that one to it"
}

# lossy TIMEOUT: makes links lose 5 %, reorder and duplicate packets, and makes soft RoCE retry after TIMEOUT without
# a limit. soft RoCE repeats a transfer of 16 packets several times until it has arrived in order, and would count
# these retries.
lossy() {
    export TIELINE_VERBS_ACK_TIMEOUT=$1 TIELINE_VERBS_RETRY_COUNT=7
    netem loss 5% delay 1ms reorder 25% duplicate 1% || fail "tc netem"
}

# ---- Links and devices ----

# netem ARGUMENTS...: disturbs outgoing packets of this host, on every active link: `netem loss 5% delay 2ms reorder
# 25%`.
netem() {
    local net
    for net in $(links); do tc qdisc replace dev "$net" root netem "$@" || return; done
}

# netem_off: ends the disturbance of packets.
netem_off() {
    local net
    for net in $(links); do tc qdisc del dev "$net" root; done
}

# cut_link [LINK], mend_link [LINK]: takes a link down, and up again. While the link is down, the port of its device
# is down.
cut_link() { ip link set "${1-eth0}" down; }
mend_link() { ip link set "${1-eth0}" up; }

# links: prints the active links: eth0, and eth1 if the test needs two devices.
links() { ip -o link show up | sed -n 's/^[0-9]*: \(eth[0-9]\).*/\1/p'; }

# remove_device [DEVICE], add_device [DEVICE]: rdma_rxe delays the removal until the last process has closed the
# device, so remove_device does not wait for the removal. After remove_device the port of the device is down.
remove_device() {
    local device=${1-rxe0}
    rdma link delete "$device" &
}
add_device() {
    local device=${1-rxe0}
    rdma link add "$device" type rxe netdev "eth${device#rxe}"
}

# gid_index DEVICE: prints the index of the device's RoCEv2 IPv4 address.
gid_index() {
    local index entry=/sys/class/infiniband/$1/ports/1
    for index in 0 1 2 3 4 5 6 7; do
        if grep -q ':0000:ffff:' "$entry/gids/$index" 2> /dev/null &&
            grep -q 'RoCE v2' "$entry/gid_attrs/types/$index" 2> /dev/null; then
            echo $index
            return
        fi
    done
    return 1
}

# ---- Rights ----

# yama SCOPE: sets the permission to read another process's memory (0 same user, 1 parents, 2 administrators).
yama() { echo "$1" > /proc/sys/kernel/yama/ptrace_scope; }

# plain COMMAND...: runs a command with root's files and without root's rights.
plain() { setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all -- "$@"; }

# ---- Kernel modules of tests/lab/modules; a test that uses a module says `modules=1` in its head ----

# load MODULE [PARAMETER=VALUE...]: loads a kernel module.
load() {
    local name=$1
    shift
    [ -e "$TARGET/lab/modules/$name.ko" ] || skip "module $name is not built: cargo xtask lab builds it for tests with modules=1"
    insmod "$TARGET/lab/modules/$name.ko" "$@" || fail "$name cannot be loaded"
    [ -c "/dev/$name" ] || fail "there is no /dev/$name"
    # The udev rules of the real modules set the same mode.
    chmod 0666 "/dev/$name"
    kernel_words > "kernel.$name"
}

# kernel_words: prints the kernel's log, without Yama's refusals and their suppressed count, and without delays caused
# by the machine that runs the host.
kernel_words() { dmesg | grep -v 'ptrace attach of\|__report_access\|hrtimer: interrupt took'; }

# unload MODULE: unloads a module. The module must be unused, and the kernel must not have logged a message since
# `load`.
unload() {
    rmmod "$1" || fail "$1 cannot be unloaded: $(lsmod | grep "^$1 ")"
    kernel_words | diff "kernel.$1" - || fail "the kernel said something while $1 was loaded"
}

# counter MODULE NAME: prints a counter of a module.
counter() { cat "/sys/module/$1/parameters/$2"; }

# nothing_attached: checks that attachments were made, and that as many have
# ended.
nothing_attached() {
    grep . /sys/module/xpmem/parameters/*
    [ "$(counter xpmem attached)" -gt 0 ] || fail "nothing was attached"
    [ "$(counter xpmem attached)" = "$(counter xpmem detached)" ] || fail "something is attached still"
}

# pinned_pages: prints the number of pages that are pinned in the kernel.
pinned_pages() {
    awk '$1 == "nr_foll_pin_acquired" { pinned += $2 } $1 == "nr_foll_pin_released" { pinned -= $2 } END { print pinned + 0 }' /proc/vmstat
}

# nothing_pinned: checks that regions were made, and that as many have ended.
nothing_pinned() {
    grep . /sys/module/knem/parameters/*
    [ "$(counter knem created)" -gt 0 ] || fail "no region was made"
    [ "$(counter knem created)" = "$(counter knem destroyed)" ] || fail "a region is left"
}
