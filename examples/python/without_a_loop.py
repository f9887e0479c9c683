"""A script without an event loop: asks every agent of this machine what it does.

python examples/python/without_a_loop.py
"""

from hailwire import sync

with sync.connect() as hail:
    for row in hail.list_agents(local_only=True):
        methods = hail.describe(row["name"])["methods"]
        names = ", ".join(method["name"] or "(any)" for method in methods) or "not said"
        print(f"{row['name']}: {row['description'] or 'no description'}; methods: {names}")
