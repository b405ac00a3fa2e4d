"""A Ray cluster of two nodes on this machine, on loopback alone, until it is ended.

Run as `python two_nodes.py FOLDER` under a keeper, which ends all of it; prints one line of JSON once it is up: its
address, and of each node the id and Ray's own process there. The first has 1 of the resource `first`, the second 1 of
`second`.
"""

from __future__ import annotations

import json
import os
import signal
import sys

os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_niceness": "0",
}

_CPUS = 8
_STORE_BYTES = 80_000_000


def main(folder: str) -> None:
    os.environ["RAY_TMPDIR"] = folder  # where a Ray says that it is the machine's latest
    from ray.cluster_utils import Cluster

    common = {
        "num_cpus": _CPUS,
        "object_store_memory": _STORE_BYTES,
        "include_dashboard": False,
        "min_worker_port": 0,
        "max_worker_port": 0,
    }
    cluster = Cluster()
    nodes = [
        cluster.add_node(temp_dir=f"{folder}/ray", resources={"first": 1}, **common),
        cluster.add_node(wait=False, resources={"second": 1}, **common),
    ]
    told = [{"id": node.node_id, "pid": node.all_processes["raylet"][0].process.pid} for node in nodes]
    # A node's workers end when its own process is gone: none may stay behind as a zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(json.dumps({"address": cluster.address, "nodes": told}), flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
