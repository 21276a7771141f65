"""Compares the module with ucxx and mpi4py in alternation, in at most ten minutes.

    compare.py [--rounds 7] [--ucxx PYTHON] [--mpi PYTHON] [--mpirun "mpirun ..."]

PYTHON is an interpreter with that module and numpy: `pip install ucxx-cu12` works without a GPU, and mpi4py is for example Debian's python3-mpi4py. What
is not given is left out. Each round runs each program once (pingpong.py). The table has the median of the rounds' times for one way in microseconds,
and the median of the rounds' ratios to the first column.
"""

import argparse
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

PROGRAM = str(pathlib.Path(__file__).with_name("pingpong.py"))
MPIRUN = "mpirun --allow-run-as-root --oversubscribe -n 2 --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --mca osc ^ucx"
#: The longest time in seconds of one program.
LONGEST = 100


def run(words):
    """Runs a program; returns the times by length, or None with a line on stderr."""
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        print(f"{shlex.join(words)}: not finished after {LONGEST} s", file=sys.stderr)
        return None
    if ran.returncode:
        print(f"{shlex.join(words)}: {ran.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    # UCX writes its warnings to stdout too.
    pairs = [line.split() for line in ran.stdout.splitlines()]
    return {int(pair[0]): float(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()}


def name(length):
    return f"{length >> 20} MiB" if length >= 1 << 20 else f"{length} B"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--ucxx")
    options.add_argument("--mpi")
    options.add_argument("--mpirun", default=MPIRUN)
    options = options.parse_args()
    programs = {}
    if options.ucxx:
        programs["ucxx"] = [options.ucxx, PROGRAM, "ucxx"]
    if options.mpi:
        programs["mpi4py"] = [*shlex.split(options.mpirun), options.mpi, PROGRAM, "mpi4py"]
    for one in ("tieline-asyncio", "tieline-driven", "tieline", "tieline-put"):
        programs[one] = [sys.executable, PROGRAM, one]
    begun, measured = time.monotonic(), {one: [] for one in programs}
    for _ in range(options.rounds):
        for one, words in programs.items():
            measured[one].append(run(words) or {})
    print(f"load {os.getloadavg()}, {os.cpu_count()} processors, {options.rounds} rounds in {time.monotonic() - begun:.0f} s")
    bases = [one for one in ("ucxx", "mpi4py") if one in programs]
    print("| one way, us | " + " | ".join(programs) + " |" + "".join(f" tieline / {base} |" for base in bases))
    print("|---" * (1 + len(programs) + len(bases)) + "|")
    for length in sorted({length for times in measured.values() for one in times for length in one}):
        cells = []
        for one in programs:
            times = [times[length] for times in measured[one] if length in times]
            cells.append(f"{statistics.median(times):.1f}" if times else "-")
        for base in bases:
            ours = "tieline-asyncio" if base == "ucxx" else "tieline"
            pairs = [(a[length], b[length]) for a, b in zip(measured[base], measured[ours]) if length in a and length in b]
            cells.append(f"{statistics.median(b / a for a, b in pairs):.2f}" if pairs else "-")
        print(f"| {name(length)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
