"""Whether the samples of a batch stay apart."""

from sparsejit.ir.graph import Graph

# Two primes, so that no other size is taken for the batch's.
PROBES = (101, 103)


def why_not_free(few: Graph, many: Graph) -> str:
    """Why the batch cannot be of any size, from the model's graphs for both probes."""
    return ""
