"""Every operator and what lowers it. Lowering and tests walk this table."""

from collections.abc import Callable
from typing import Any

from sparsejit.ir.graph import Node
from sparsejit.ir.ops.attention import Attention
from sparsejit.ir.ops.casts import Cast
from sparsejit.ir.ops.columns import DoubleProduct, ScaledColumns
from sparsejit.ir.ops.convolution import Convolution, Pooling
from sparsejit.ir.ops.forest import Forest
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.ops.sampling import (
    Draw,
    GruStep,
    Predict,
    Quantise,
    Reconstruct,
    SumOfRows,
    Uniform,
)
from sparsejit.ir.ops.selection import ArgMax, Embedding, EmbeddingBag, TopK
from sparsejit.ir.ops.tree_draw import TreeDraw, UniformRow
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.lowering.attention import lower_attention
from sparsejit.lowering.chains import lower_cast, lower_chain_node
from sparsejit.lowering.columns import lower_double_product, lower_scaled_columns
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.convolution import lower_convolution
from sparsejit.lowering.forest import lower_forest
from sparsejit.lowering.gates import lower_gru_step
from sparsejit.lowering.pooling import lower_pooling
from sparsejit.lowering.products import lower_linear
from sparsejit.lowering.recurrence import lower_recurrence
from sparsejit.lowering.sampling import (
    lower_draw,
    lower_predict,
    lower_quantise,
    lower_reconstruct,
    lower_uniform,
)
from sparsejit.lowering.selection import (
    lower_argmax,
    lower_embedding,
    lower_embedding_bag,
    lower_topk,
)
from sparsejit.lowering.stacked_products import lower_bmm
from sparsejit.lowering.table_rows import lower_sum_of_rows
from sparsejit.lowering.tree_draw import lower_tree_draw, lower_uniform_row
from sparsejit.lowering.views import (
    lower_concat,
    lower_expand,
    lower_pad,
    lower_permute,
    lower_reshape,
    lower_slice,
)

LOWERINGS: dict[type[Any], Callable[[Lowering, Node], None]] = {
    Linear: lower_linear,
    Bmm: lower_bmm,
    Attention: lower_attention,
    Chain: lower_chain_node,
    Pointwise: lower_chain_node,
    Cast: lower_cast,
    ScaledColumns: lower_scaled_columns,
    DoubleProduct: lower_double_product,
    Reshape: lower_reshape,
    Permute: lower_permute,
    Slice: lower_slice,
    Expand: lower_expand,
    Concat: lower_concat,
    Pad: lower_pad,
    Convolution: lower_convolution,
    Pooling: lower_pooling,
    Recurrence: lower_recurrence,
    Embedding: lower_embedding,
    EmbeddingBag: lower_embedding_bag,
    ArgMax: lower_argmax,
    TopK: lower_topk,
    Forest: lower_forest,
    Uniform: lower_uniform,
    Draw: lower_draw,
    UniformRow: lower_uniform_row,
    TreeDraw: lower_tree_draw,
    Quantise: lower_quantise,
    SumOfRows: lower_sum_of_rows,
    GruStep: lower_gru_step,
    Predict: lower_predict,
    Reconstruct: lower_reconstruct,
}
