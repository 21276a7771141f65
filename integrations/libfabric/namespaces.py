"""Two network namespaces with a link between them, which look like two hosts."""

import os
import subprocess
import uuid

from mpis import Missing


# The name of the link's device in both namespaces.
LINK = "link0"
# Runs a command with another boot id, by which transports of one host know each other. Arguments: the id, the command.
BOOTED = 'f=$(mktemp) && echo "$0" > "$f" && mount --bind "$f" /proc/sys/kernel/random/boot_id && rm "$f" && exec "$@"'


class Namespaces:
    """
    Two network namespaces with a link between them, which end with the process.

    Shared memory reaches from one network namespace into another, so the processes of each have a boot id of their own.
    """

    def __init__(self):
        self.names = [f"tieline-{side}-{os.getpid()}" for side in ("a", "b")]

    def __enter__(self):
        a, b = self.names
        commands = [f"ip netns add {a}", f"ip netns add {b}", f"ip link add {LINK} netns {a} type veth peer name {LINK} netns {b}"]
        for name, number in ((a, 1), (b, 2)):
            commands += [f"ip -n {name} link set lo up", f"ip -n {name} addr add 10.77.31.{number}/24 dev {LINK}"]
            commands += [f"ip -n {name} link set {LINK} up"]
        try:
            for command in commands:
                subprocess.run(command.split(), check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            raise Missing(f"two network namespaces cannot be made: {error}") from error
        return [["ip", "netns", "exec", name, "sh", "-c", BOOTED, str(uuid.uuid4())] for name in self.names]

    def __exit__(self, *_):
        for name in self.names:
            try:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)
            except OSError:
                return
