"""The passes that every model goes through, in their order."""

import sys
from collections.abc import Callable
from typing import TypeAlias

from sparsejit.ir.graph import Graph
from sparsejit.passes.common_subexpressions import merge_common_subexpressions
from sparsejit.passes.exact_probabilities import exact_probabilities
from sparsejit.passes.fold_affine import fold_affine, fold_recurrent_bias
from sparsejit.passes.fold_constants import fold_constants
from sparsejit.passes.fuse_activations import fuse_activations, fuse_residuals
from sparsejit.passes.fuse_chains import fuse_chains
from sparsejit.passes.merge_views import merge_views, move_views, simplify_views
from sparsejit.passes.mirrored_taps import halve_mirrored
from sparsejit.passes.permute_columns import permute_columns
from sparsejit.passes.recognise_attention import recognise_attention
from sparsejit.passes.rewriter import remove_dead_code
from sparsejit.passes.schedule import order_for_memory
from sparsejit.passes.simplify_pointwise import simplify_pointwise
from sparsejit.passes.single_positions import leave_single_positions
from sparsejit.passes.transposed_convolutions import overlap_transposed
from sparsejit.passes.trim_taps import trim_taps
from sparsejit.passes.weight_products import sort_products
from sparsejit.runtime.program import debug_level

Pass: TypeAlias = Callable[[Graph], Graph]

# Each tuple is repeated until it changes nothing. Chains come last: rewrites of single functions do
# not see the functions inside of a chain.
SIMPLIFYING: tuple[Pass, ...] = (
    remove_dead_code,
    simplify_pointwise,
    simplify_views,
    fold_constants,
    merge_common_subexpressions,
    sort_products,
    move_views,
    merge_views,
    permute_columns,
    recognise_attention,
    fold_affine,
    fold_recurrent_bias,
    halve_mirrored,
    fuse_residuals,
    exact_probabilities,
    fuse_activations,
)
FUSING: tuple[Pass, ...] = (
    overlap_transposed,
    trim_taps,
    leave_single_positions,
    fold_constants,  # of layers that these write
    permute_columns,
    fuse_chains,
    simplify_pointwise,  # merged chains broadcast operands that their parts needed expanded
    remove_dead_code,
    merge_common_subexpressions,
    move_views,
    merge_views,
    simplify_views,
    order_for_memory,
)
# Passes that finish a layer's weights and bias; no activation or residual is inside yet.
FOLDING: tuple[Pass, ...] = tuple(
    each
    for each in SIMPLIFYING
    if each not in (fuse_residuals, exact_probabilities, fuse_activations)
)
PASSES = (*dict.fromkeys((*SIMPLIFYING, *FUSING)),)
# Far more than any model needs; passes only shrink a graph.
MOST_ROUNDS = 50
SHOWN_FROM = 3  # least SPARSEJIT_DEBUG that prints graphs


def run_passes(graph: Graph) -> Graph:
    """The graph for lowering. SPARSEJIT_DEBUG=3 prints it after each change."""
    return _repeated(FUSING, _repeated(SIMPLIFYING, graph))


def folded(graph: Graph) -> Graph:
    """The graph with scales and shifts inside its layers, as calibration reads it."""
    return _repeated(FOLDING, graph)


def _repeated(passes: tuple[Pass, ...], graph: Graph) -> Graph:
    for _ in range(MOST_ROUNDS):
        before = graph
        for step in passes:
            graph = _shown(step, graph)
        if graph is before:
            break
    return graph


def _shown(step: Pass, graph: Graph) -> Graph:
    after = step(graph)
    if after is not graph and debug_level() >= SHOWN_FROM:
        print(f"after {step.__name__}:\n{after}\n", file=sys.stderr)
    return after
