# Two hosts that share only a network link exchange data, and every byte is checked.
command -v ip > /dev/null || { echo 'skipped: there is no ip (iproute2)'; exit 1; }
export TIELINE_SECRET=packages
# Each host is a separate network namespace; the namespace's name is a file in /run, which this test
# removes.
ip netns add far 2>/dev/null || { echo 'skipped: no network of its own can be made here'; exit 1; }
ip link set lo up
ip link add near type veth peer name wire netns far
ip addr add 10.77.0.1/24 dev near
ip link set near up
nsenter --net=/run/netns/far ip link set lo up
nsenter --net=/run/netns/far ip addr add 10.77.0.2/24 dev wire
nsenter --net=/run/netns/far ip link set wire up
nsenter --net=/run/netns/far tieline perf --listen 10.77.0.2:7700 --once > listening 2>&1 &
until grep -q 7700 listening; do kill -0 $!; done
tieline perf --connect 10.77.0.2:7700 --test am_lat,put_bw,get_bw --size 8,64k --iterations 500 --path tcp,tcp-connect --verify
wait $!
