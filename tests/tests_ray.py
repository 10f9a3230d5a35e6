"""A Ray cluster of local nodes, for tests that kill some of them.

Import this module before ray, which reads its limits when it is imported.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests_command import HANG

LIMITS = {
    "health_check_timeout_ms": HANG * 1_000,
    "raylet_start_wait_time_s": HANG,
    "worker_register_timeout_seconds": HANG,
    "agent_register_timeout_ms": HANG * 1_000,
    "gcs_server_port_wait_time_s": HANG,
    "gcs_server_request_timeout_seconds": HANG,
    "worker_niceness": 0,
}
"""On a loaded machine, Ray must not declare a node dead because it is slow. A node that was killed refuses connections,
so that Ray notices it as soon as with the default limits. By default, workers have a low priority, and starve.
"""

os.environ.update({f"RAY_{name}": str(value) for name, value in LIMITS.items()})


class LocalCluster(NamedTuple):
    """A Ray cluster of nodes on this machine."""

    cluster: Any
    nodes: list[Any]
    """The nodes, except for the head node."""

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, cpus: int = 1, **options: Any) -> Any:
        """Start a node, and wait until it has joined the cluster."""
        self.nodes.append(self.cluster.add_node(wait=False, num_cpus=cpus, **options))
        self.cluster.wait_for_nodes(HANG)
        return self.nodes[-1]

    def kill(self, node: Any) -> None:
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


@contextmanager
def start_cluster(*cpus: int) -> Iterator[LocalCluster]:
    """Start a cluster of nodes with these numbers of CPUs."""
    from ray.cluster_utils import Cluster

    started = LocalCluster(Cluster(), [])
    try:
        started.cluster.add_node(wait=False, num_cpus=cpus[0], include_dashboard=False)
        for count in cpus[1:]:
            started.add(count)
        yield started
    finally:
        started.cluster.shutdown()
