# The functions of the lab's tests. Each acts on the host that calls it.

# skip REASON: ends a test that cannot run here. It then counts as skipped on every host.
skip() {
    echo "$*" > "$RESULTS/skipped"
    echo "skipped: $*"
    exit 77
}

# fail REASON
fail() {
    echo "failed: $*"
    exit 1
}

# need PROGRAM: skips if neither the build nor a package has it.
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

# await NAME: waits for that signal, from any host, and prints its text. The test's deadline ends it.
await() {
    until [ -e "$RESULTS/signals/$1" ]; do sleep 0.05; done
    cat "$RESULTS/signals/$1"
}

# until_true COMMAND...: repeats the command until it succeeds.
until_true() {
    until "$@" > /dev/null 2>&1; do sleep 0.1; done
}

# serve PORT COMMAND...: runs a server, signals `port-PORT` once it listens (TCP, or a connection manager's port), and
# returns its exit status.
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
# The device has a long timeout: an emulated host may acknowledge late.
verbs_job() {
    built libtieline_verbs.so libtieline_tcp_connect.so
    export TIELINE_PROVIDER_PATH=$TARGET/debug TIELINE_PROVIDERS=verbs,tcp-connect
    export TIELINE_SECRET=lab TIELINE_SIZE=2 TIELINE_RANK=${HOST#h} TIELINE_RENDEZVOUS=$H0:29400
    export TIELINE_VERBS_ACK_TIMEOUT=1s
}

# over_ofi_verbs: only libfabric's verbs;ofi_rxm, with queues that fit two hosts.
over_ofi_verbs() {
    built libtieline_ofi.so
    ldconfig -p | grep -q 'libfabric\.so\.1 ' || skip "no libfabric: install libfabric1"
    export TIELINE_PROVIDERS=ofi TIELINE_OFI_PROVIDERS=verbs
    export FI_UNIVERSE_SIZE=8 FI_OFI_RXM_USE_SRX=1 FI_OFI_RXM_MSG_RX_SIZE=256
}

# by_rdmacm: only rdmacm forms connections.
by_rdmacm() { export TIELINE_PROVIDERS=verbs TIELINE_CONNECT=rdmacm TIELINE_MODULES='^*/ud'; }

# gives_up_soon: a dead peer is reported within seconds, and a slow one is not.
gives_up_soon() {
    export TIELINE_VERBS_ACK_TIMEOUT=$((130 * SLOWNESS))ms TIELINE_FAILURE_TIMEOUT=$((4 * SLOWNESS))s
}

# conformance MODULE: runs the conformance suite on a module of verbs.
conformance() {
    export TIELINE_VERBS_ACK_TIMEOUT=200ms
    checks libtieline_verbs.so "$1"
}

# checks FILE MODULE [OPTION...]: the same for a provider of the build.
checks() {
    need tieline
    built "$1"
    # Timeouts for an emulated machine: a dead peer times out after some seconds, a slow one does not. A peer that
    # never comes times out before half of a check's limit, which is the limit of its waits.
    export TIELINE_FAILURE_TIMEOUT=$((8 * SLOWNESS))s TIELINE_CONNECT_TIMEOUT=$((10 * SLOWNESS))s
    # In most checks one thread is both ends: a close waits in vain for acknowledgements that need the other end's
    # poll.
    export TIELINE_CLOSE_TIMEOUT=300ms
    tieline check "$TARGET/debug/$1" --module "$2" --limit $((60 * SLOWNESS)) "${@:3}"
}

# traffic SECONDS [PAUSE_MS [revoke]]: messages and puts from h0 to h1 for so long, checked there. Returns 0 if all
# arrived, 3 if the connection failed; keeps the output in the file `words`, and signals `running`.
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

# rails SECONDS [LOSSES]: large puts and gets from h0 to h1, each checked, for so long and until so many failures have
# been survived. Returns the exit status; keeps the output in the file `words`, and signals `running`.
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

# the_loss_is_survived: operations in flight at the loss failed with the reason, and the rails continued.
the_loss_is_survived() {
    grep -q "failed: .*\\($lost\\)" words || fail "the loss is not said"
    grep -q 'running after [1-9]' words || fail "nothing went on after the loss"
}

# tcp_took_over: the rails began over verbs, and continued over tcp.
tcp_took_over() {
    grep -q '^messages over verbs:rxe0/rc, puts and gets over verbs:rxe0/rc' words || fail "it did not begin over verbs"
    grep '^messages over' words | tail -n 1 | grep -q 'over tcp.* over tcp' || fail "tcp did not take over"
}

# The reasons that report the loss of a device, of its link, or of the route to the peer.
lost='did not acknowledge\|could not send\|is down\|was removed\|acknowledged nothing\|neither completed nor failed'

# kill_in_traffic: h1's process is killed during the traffic, and h0 must report that.
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

# failed_with REASON: the traffic that $? belongs to must have failed with this reason, a pattern of grep.
failed_with() {
    local status=$?
    [ "$status" = 3 ] || fail "the traffic ended with $status, not with the reason"
    grep -qi "failed: .*\($1\)" words || fail "the reason is not said"
}

# queue_pairs: the local and the remote queue pair of every reliable connection of this host that carries data,
# without those that belong to an id of the connection manager.
queue_pairs() {
    rdma resource show cm_id | sed -n 's/.* lqpn \([0-9]*\) .*/\1/p' > managed
    rdma resource show qp | sed -n 's/.* lqpn \([0-9]*\) rqpn \([0-9]*\) type RC .*/\1 \2/p' |
        awk 'FILENAME == "managed" { managed[$1]; next } !($1 in managed)' managed - | sort
}

# crossing CONNECTIONS ROUNDS: both hosts open so many connections to each other together, in every round. Those of
# the last round are also checked from outside while they are open: each pair has exactly one.
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

# lossy TIMEOUT: links that lose 5 %, reorder and duplicate, and devices that retry after that time, without a limit:
# soft RoCE repeats a transfer of 16 packets several times until it has arrived in order, and would count these
# retries.
lossy() {
    export TIELINE_VERBS_ACK_TIMEOUT=$1 TIELINE_VERBS_RETRY_COUNT=7
    netem loss 5% delay 1ms reorder 25% duplicate 1% || fail "tc netem"
}

# ---- Links and devices ----

# netem ARGUMENTS...: disturbs outgoing packets of this host, on every link in use: `netem loss 5% delay 2ms reorder
# 25%`.
netem() {
    local net
    for net in $(links); do tc qdisc replace dev "$net" root netem "$@" || return; done
}

# netem_off
netem_off() {
    local net
    for net in $(links); do tc qdisc del dev "$net" root; done
}

# cut_link [LINK], mend_link [LINK]: takes a link down and up again; its device's port is down meanwhile.
cut_link() { ip link set "${1-eth0}" down; }
mend_link() { ip link set "${1-eth0}" up; }

# The links in use: eth0, and eth1 if the test needs two devices.
links() { ip -o link show up | sed -n 's/^[0-9]*: \(eth[0-9]\).*/\1/p'; }

# remove_device [DEVICE], add_device [DEVICE]: rdma_rxe delays the removal until the last process has closed the
# device, so remove_device does not wait for it. The device's port is down from then on.
remove_device() {
    local device=${1-rxe0}
    rdma link delete "$device" &
}
add_device() {
    local device=${1-rxe0}
    rdma link add "$device" type rxe netdev "eth${device#rxe}"
}

# gid_index DEVICE: the index of its RoCEv2 IPv4 address.
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

# ---- Kernel modules of tests/lab/modules; a test that uses these says `modules=1` in its head ----

# load MODULE [PARAMETER=VALUE...]
load() {
    local name=$1
    shift
    [ -e "$TARGET/lab/modules/$name.ko" ] || skip "module $name is not built: cargo xtask lab builds it for tests with modules=1"
    insmod "$TARGET/lab/modules/$name.ko" "$@" || fail "$name cannot be loaded"
    [ -c "/dev/$name" ] || fail "there is no /dev/$name"
    # As the udev rules of the real modules do.
    chmod 0666 "/dev/$name"
    kernel_words > "kernel.$name"
}

# kernel_words: the kernel's log, without Yama's refusals and their suppressed count, and without delays caused by the
# machine that runs the host.
kernel_words() { dmesg | grep -v 'ptrace attach of\|__report_access\|hrtimer: interrupt took'; }

# unload MODULE: the module must be unused, and the kernel must not have logged a message since `load`.
unload() {
    rmmod "$1" || fail "$1 cannot be unloaded: $(lsmod | grep "^$1 ")"
    kernel_words | diff "kernel.$1" - || fail "the kernel said something while $1 was loaded"
}

# counter MODULE NAME
counter() { cat "/sys/module/$1/parameters/$2"; }

# nothing_attached: attachments were made, and all have ended.
nothing_attached() {
    grep . /sys/module/xpmem/parameters/*
    [ "$(counter xpmem attached)" -gt 0 ] || fail "nothing was attached"
    [ "$(counter xpmem attached)" = "$(counter xpmem detached)" ] || fail "something is attached still"
}

# pinned_pages: the number of pages that are pinned in the kernel.
pinned_pages() {
    awk '$1 == "nr_foll_pin_acquired" { pinned += $2 } $1 == "nr_foll_pin_released" { pinned -= $2 } END { print pinned + 0 }' /proc/vmstat
}

# nothing_pinned: regions were made, and all have ended.
nothing_pinned() {
    grep . /sys/module/knem/parameters/*
    [ "$(counter knem created)" -gt 0 ] || fail "no region was made"
    [ "$(counter knem created)" = "$(counter knem destroyed)" ] || fail "a region is left"
}
