#!/usr/bin/env python3
"""Medians of each variant, and its ratio to one connection, round by round: `summary.py FILE.jsonl…`."""

import collections
import json
import statistics
import sys


def spread(values: list) -> str:
    return f"{statistics.median(values):,.2f} ({min(values):,.2f} to {max(values):,.2f})"


def main():
    for path in sys.argv[1:]:
        cells = collections.defaultdict(dict)
        with open(path) as lines:
            for line in map(json.loads, lines):
                if line["round"] > 0 and "failed" not in line:
                    cells[line["carrier"], line["work"], line["pool"]][line["round"]] = line
        print(f"\n{path}\n")
        print("| carrier | work | connections | measured, median | ratio to one | CPU, ratio | RSS, both sides |")
        print("|---|---|---|---|---|---|---|")
        for (carrier, work, pool), rounds in cells.items():
            one = cells[carrier, work, 1]
            both = [number for number in rounds if number in one]
            name, unit = ("p99_us", "ms p99") if "p99_us" in rounds[both[0]] else ("messages_per_s", "/s")
            scale = 1000 if name == "p99_us" else 1
            figures = [rounds[number][name] / scale for number in both]
            ratios = [rounds[number][name] / one[number][name] for number in both]

            def per_message(line):
                return line["cpu_s"] / line["count"]

            cpu = statistics.median(per_message(rounds[n]) / max(per_message(one[n]), 1e-9) for n in both)
            rss = statistics.median(rounds[number]["rss_mb"] for number in both)
            middle = statistics.median(figures)
            shown = f"{middle:,.1f} {unit}" if scale == 1000 else f"{middle:,.0f}{unit}"
            print(f"| {carrier} | {work} | {pool} | {shown} | {spread(ratios)} | {cpu:.2f} | {rss:.0f} MB |")


if __name__ == "__main__":
    main()
