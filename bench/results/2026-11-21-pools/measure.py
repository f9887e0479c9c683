#!/usr/bin/env python3
"""One connection against several, side by side: `measure.py HAIL ROUNDS CARRIER… > FILE.jsonl`.

Every variant is a pair of processes that stays up; the variants take turns, work by work, so that whatever
else the machine does meets all of them. In a lab (`hail lab run NETWORK -- measure.py …`) the serving side
runs in host b.
"""

import json
import os
import subprocess
import sys

POOLS = [1, 2, 10]
WORKS = {
    "64 in flight, 1 KB": {
        "rate": {"in_flight": 64, "seconds": 3.0, "bytes": 1000, "agents": 1, "connections": 1}
    },
    "100 in flight, 100 agents, 1 KB": {
        "rate": {"in_flight": 100, "seconds": 3.0, "bytes": 1000, "agents": 100, "connections": 1}
    },
    "500 a second, 1 KB": {
        "latency": {"per_second": 500.0, "seconds": 4.0, "bytes": 1000, "connections": 1}
    },
}
TICK = os.sysconf("SC_CLK_TCK")


def usage(pid: int) -> dict:
    """Processor time and resident memory of a process."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    with open(f"/proc/{pid}/statm") as statm:
        pages = int(statm.read().split()[1])
    return {"cpu_s": (int(fields[11]) + int(fields[12])) / TICK, "rss_mb": pages * 4096 / 1e6}


class Variant:
    """A pair of processes with so many connections between them."""

    def __init__(self, hail: str, carrier: str, pool: int):
        self.carrier, self.pool = carrier, pool
        there = os.environ.get("LAB_NS_B")
        enter = ["nsenter", f"--net={there}"] if there else []
        listen = os.environ.get("LAB_B", "127.0.0.1")
        options = ["--listen", listen, "--pool", str(pool)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        serve = [*enter, hail, "bench", "subject", "serve", carrier, *options]
        self.server = subprocess.Popen(serve, **pipes)
        ready = json.dumps(json.loads(self.server.stdout.readline())["ready"])
        load = [hail, "bench", "subject", "load", carrier, ready, *options]
        self.client = subprocess.Popen(load, **pipes)
        self.client.stdout.readline()

    def work(self, work: dict) -> dict:
        before = usage(self.client.pid), usage(self.server.pid)
        self.client.stdin.write(json.dumps(work) + "\n")
        self.client.stdin.flush()
        answer = json.loads(self.client.stdout.readline())
        after = usage(self.client.pid), usage(self.server.pid)
        figures = {k: round(v, 3) for k, v in answer.get("figures", {}).items()}
        figures["cpu_s"] = round(sum(a["cpu_s"] - b["cpu_s"] for a, b in zip(after, before)), 2)
        figures["rss_mb"] = round(sum(a["rss_mb"] for a in after), 1)
        return {"failed": answer["failed"]} if answer.get("failed") else figures

    def stop(self):
        for process in (self.client, self.server):
            process.stdin.close()
            process.wait()


def main():
    hail, rounds, carriers = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    for carrier in carriers:
        variants = [Variant(hail, carrier, pool) for pool in POOLS]
        for name, work in WORKS.items():
            # Round 0 warms up, and counts nowhere.
            for number in range(rounds + 1):
                turn = variants if number % 2 else variants[::-1]
                for variant in turn:
                    line = {"carrier": carrier, "pool": variant.pool, "work": name, "round": number}
                    print(json.dumps(line | variant.work(work)), flush=True)
        for variant in variants:
            variant.stop()


if __name__ == "__main__":
    main()
