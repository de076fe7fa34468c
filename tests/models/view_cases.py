"""Arguments for the rows of the operator table that arrange, choose or pool elements."""

from __future__ import annotations

import torch
from operator_cases import Call, Known, X, call, rand, truths, weight, whole

# Places on an axis of 5, none twice.
PLACES = Known(torch.tensor([[4, 0], [1, 2]]))

ORDER, ZERO, COUNT = torch.tensor([2, 0]), torch.tensor(0), Known(torch.arange(3))
CUBE, IMAGE, SEQUENCE = rand(3, 4, 5), rand(2, 4, 9, 8), rand(2, 4, 12)
NUMBER, NAN, INFINITY = rand(), float("nan"), float("inf")
EVEN = Known(torch.tensor([0, 3, 6]))
UNEVEN = Known(torch.tensor([0, 2, 2, 5]))
ROUNDS = (("reflection", 2), ("replication", 3))

VIEWS: dict[str, list[Call]] = {
    "aten.view.default": [call(CUBE, [12, 5]), call(CUBE, [3, -1]), call(whole(9, 6), [2, 3])],
    "aten.reshape.default": [call(CUBE, [5, -1, 2]), call(rand(), [1])],
    "aten._unsafe_view.default": [call(CUBE, [60])],
    "aten.view_as.default": [call(CUBE, rand(12, 5))],
    "aten.reshape_as.default": [call(CUBE, rand(12, 5))],
    "aten.flatten.using_ints": [call(CUBE), call(CUBE, 1), call(CUBE, 0, -2), call(rand())],
    "aten.unflatten.int": [call(CUBE, 1, [2, 2]), call(CUBE, -2, [-1, 2])],
    "aten.unsqueeze.default": [call(CUBE, n) for n in (0, 1, -1, 3)],
    "aten.squeeze.default": [call(rand(1, 3, 1)), call(CUBE)],
    "aten.squeeze.dim": [call(rand(1, 3, 1), n) for n in (0, 1, -1)],
    "aten.squeeze.dims": [call(rand(1, 3, 1, 1), [0, 1, -1])],
    "aten.transpose.int": [call(CUBE, 0, 2), call(CUBE, -1, -2), call(rand(3, 1, 4), 1, 2)],
    "aten.swapaxes.default": [call(CUBE, 0, 1)],
    "aten.swapdims.default": [call(CUBE, 0, 1)],
    "aten.t.default": [call(rand(4)), call(X)],
    "aten.numpy_T.default": [call(X)],
    "aten.mT.default": [call(CUBE)],
    "aten.permute.default": [call(CUBE, [2, 0, 1]), call(CUBE, [-1, 0, -2])],
    "aten.movedim.int": [call(CUBE, 0, -1), call(CUBE, 2, 0)],
    "aten.expand.default": [call(rand(3, 1), [2, -1, 5]), call(rand(), [4])],
    "aten.expand_as.default": [call(rand(3, 1), X)],
    "aten.broadcast_to.default": [call(rand(5), [3, 5])],
    "aten.repeat.default": [call(X, [2, 3]), call(X, [2, 1, 2])],
    "aten.tile.default": [call(X, [2, 3]), call(CUBE, [2])],
    "aten.repeat_interleave.self_Tensor": [
        call(CUBE, Known(torch.tensor([2, 0, 1, 3])), 1),
        call(CUBE, Known(torch.tensor([2])), -1),
    ],
    "aten.repeat_interleave.self_int": [call(X, 2, 1), call(X, 3), call(CUBE, 2, -3)],
    "aten.cat.default": [
        call([X, rand(2, 5)]),
        call([X, rand(3, 2), X], 1),
        call([rand(0), rand(4)]),
        call([X, whole(9, 3, 5)], -1),
    ],
    "aten.concat.default": [call([X, X], -1)],
    "aten.concatenate.default": [call([X, X], 1)],
    "aten.stack.default": [call([X, X], n) for n in (0, 1, -1)],
    "aten.split.Tensor": [call(X, 2, 1), call(CUBE, 3)],
    "aten.split.sizes": [call(X, [1, 4], 1)],
    "aten.split_with_sizes.default": [call(X, [1, 0, 4], -1)],
    "aten.chunk.default": [call(X, 2, 1), call(X, 4, -1)],
    "aten.tensor_split.sections": [call(X, 3, 1)],
    "aten.unbind.int": [call(X), call(CUBE, -1)],
    "aten.select.int": [call(CUBE, 0, 1), call(CUBE, -1, -2)],
    "aten.slice.Tensor": [
        call(CUBE, 1, 1, 3),
        call(CUBE, 2, -3, 9223372036854775807),
        call(CUBE, 2, 0, 5, 2),
        call(CUBE, 0, 2, 1),
    ],
    "aten.narrow.default": [call(CUBE, 1, 1, 2), call(CUBE, -1, -2, 2)],
    "aten.slice_scatter.default": [
        call(CUBE, rand(3, 2, 5), 1, 1, 3),
        call(CUBE, rand(3, 4, 5)),
        call(CUBE, rand(3, 4, 1), 2, -1),
        call(rand(3, 0, 2), rand(3, 0, 2), 0, 0, 3),
    ],
    "aten.select_scatter.default": [call(CUBE, rand(3, 5), 1, -2)],
    "aten.pad.default": [
        call(CUBE, [1, 2]),
        call(CUBE, [1, 0, 0, 2], "constant", 3.0),
        call(CUBE, [-1, 2, -1, 0]),
        call(CUBE, [2, 1], "reflect"),
        call(CUBE, [2, 3], "replicate"),
        call(CUBE, [2, 4], "circular"),
        call(IMAGE, [1, 2, 3, 0], "reflect"),
        call(IMAGE, [1, 2, 3, 0], "circular"),
        *(
            call(IMAGE, widths, mode)
            for mode in ("circular", "reflect", "replicate")
            for widths in ([-1, 1, 0, 0], [2, -3, -2, 1], [-2, -2, 0, 0], [-3, 4, -1, 5])
        ),
    ],
    "aten.constant_pad_nd.default": [call(X, [1, 1], 0.5), call(whole(9, 4), [0, 2])],
    **{
        f"aten.{name}_pad{rank}d.default": [call(rand(2, 3, *(7,) * rank), [width] * 2 * rank)]
        for name, width in ROUNDS
        for rank in (1, 2)
    },
    "aten.unfold.default": [
        *(call(CUBE, 1, 2, 1), call(rand(2, 9), -1, 3, 2), call(whole(9, 2, 3), 1, 0, 2)),
        *(call(NUMBER, 0, size, 1) for size in (0, 1)),
    ],
    "aten.roll.default": [call(X, [2], [1]), call(X, [-1, 7], [0, 1]), call(X, [3])],
    "aten.pixel_shuffle.default": [call(rand(2, 8, 3, 4), 2)],
    "aten.zeros_like.default": [call(X), call(X, dtype=torch.int64)],
    "aten.ones_like.default": [call(X)],
    "aten.full_like.default": [call(X, 2.5)],
    "aten.new_zeros.default": [call(X, [2, 3])],
    "aten.new_ones.default": [call(X, [2, 3])],
    "aten.new_full.default": [call(X, [2, 3], 0.5)],
    "aten.fill.Scalar": [call(X, 0.5)],
    "aten.fill.Tensor": [call(X, Known(torch.tensor(0.5)))],
    "aten.zero.default": [call(X)],
}
SELECTIONS: dict[str, list[Call]] = {
    "aten.embedding.default": [call(weight(9, 4), whole(9, 2, 3)), call(weight(9, 4), whole(9, 1))],
    **{
        f"aten.{name}": [
            *(call(weight(9, 4), whole(9, 9), EVEN, False, mode) for mode in (0, 1, 2)),
            *(call(weight(9, 4), whole(9, 7), UNEVEN, False, mode) for mode in (0, 1, 2)),
            call(weight(9, 4), whole(9, 7), UNEVEN, False, 0, False, rand(7)),
            call(weight(9, 4), whole(9, 9), EVEN, False, 0, False, rand(9)),
            call(weight(9, 4), whole(9, 6), EVEN, False, 0, False, None, True),
        ]
        for name in (
            *("embedding_bag.default", "_embedding_bag.default"),
            "_embedding_bag_forward_only.default",
        )
    },
    "aten.embedding_bag.padding_idx": [
        *(
            call(weight(9, 4), whole(4, 9), bags, False, mode, False, None, False, padding)
            for bags in (EVEN, UNEVEN)
            for mode, padding in ((0, None), (1, None), (2, None), (0, 2))
        ),
        call(weight(9, 4), whole(4, 9), EVEN, False, 0, False, rand(9), False, 1),
        call(weight(4, 4), whole(4, 9), EVEN, False, 0, False, None, False, -1),
    ],
    "aten.col2im.default": [
        call(rand(2, 12, 6), [4, 6], [2, 2], [1, 1], [0, 0], [2, 2]),
        call(rand(2, 27, 8), [5, 7], [3, 3], [1, 2], [1, 2], [3, 2]),
        call(rand(8, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
    ],
    "aten.gather.default": [
        *(call(rand(3, 5), 1, whole(5, 3, 2)), call(rand(5), 0, whole(5, 0))),
        call(rand(3, 5), 1, Known(torch.tensor([[4, 0], [1, 1], [2, 3]]))),
        call(rand(3, 5, 2), -2, whole(5, 2, 7, 1)),
        *(call(whole(9, 3, 5), 0, whole(3, 2, 4)), call(rand(), 0, ZERO), call(rand(4), 0, ZERO)),
        *(call(NUMBER, 0, whole(1)), call(NUMBER, 0, whole(1, 3)), call(rand(4), 0, whole(4))),
        call(NUMBER, -1, Known(torch.tensor(0))),
        *(call(CUBE, 1, whole(4, 3, 2, 1).expand(3, 2, 5)), call(CUBE, 0, whole(3, 6, 4, 5))),
        *(call(CUBE, axis, whole(3, 3, 4, 5)) for axis in (0, 1, 2)),
        call(CUBE, 1, Known(torch.tensor([2, 0])[None, :, None].expand(3, 2, 5))),
    ],
    "aten.take_along_dim.default": [
        *(call(CUBE, whole(60, 2, 5)), call(CUBE, whole(4, 3, 2, 1), 1)),
        *(call(CUBE, whole(8, 1, 2, 5) - 4, -2), call(rand(1, 4, 5), whole(5, 3, 4, 2), 2)),
        call(CUBE, Known(torch.tensor([[[1, 0]]])), 2),
    ],
    "aten.scatter.src": [
        call(rand(3, 5), 1, PLACES, rand(3, 4)),
        call(rand(5, 3), 0, PLACES, rand(4, 2)),
    ],
    "aten.scatter.value": [
        *(call(rand(3, 5), 1, PLACES, 2.5), call(whole(9, 3, 5), 1, PLACES, 7)),
        *(call(rand(3, 5), -1, PLACES.tensor, 2), call(truths(3, 5), 0, whole(3, 2, 5), True)),
    ],
    "aten.scatter.reduce": [
        call(rand(3, 5), 1, whole(5, 3, 9), rand(3, 9), reduce=name) for name in ("add", "multiply")
    ],
    "aten.scatter.value_reduce": [
        call(rand(3, 5), 0, whole(3, 4, 5), 0.5, reduce=name) for name in ("add", "multiply")
    ],
    "aten.scatter_add.default": [
        *(call(rand(3, 5), 1, PLACES, rand(3, 4)), call(rand(5), 0, whole(5, 40), rand(40))),
        *(call(rand(3, 5, 2), dim, whole(2, 3, 5, 2), rand(3, 5, 2)) for dim in (1, -1)),
        call(rand(3, 5), 1, Known(torch.zeros(3, 30, dtype=torch.int64)), rand(3, 30)),
        *(call(whole(9, 3, 5), 1, whole(5, 3, 9), whole(9, 3, 9)), call(rand(), 0, ZERO, rand())),
        call(whole(99, 5).byte(), 0, whole(5, 9), whole(99, 9).byte()),
        call(rand(3, 4), 0, whole(3, 2, 1).expand(2, 4), rand(2, 4)),
        call(rand(3, 5), 1, torch.zeros(3, 0, dtype=torch.int64), rand(3, 5)),
    ],
    "aten.scatter_reduce.two": [
        *(
            call(rand(3, 5), dim, whole(3, 2, 5), rand(3, 5), name, include_self=keep)
            for dim in (0, 1)
            for name in ("sum", "prod", "mean", "amax", "amin")
            for keep in (True, False)
        ),
        *(
            call(whole(99, 3, 5), 1, PLACES, whole(99, 3, 5), name, include_self=keep)
            for name in ("sum", "prod", "mean", "amax", "amin")
            for keep in (True, False)
        ),
    ],
    "aten.index_add.default": [
        *(call(CUBE, axis, whole(3, 2), CUBE.narrow(axis, 0, 2)) for axis in (0, 1, -1)),
        call(CUBE, 1, Known(torch.tensor([3, 0, 3, 3])), CUBE, alpha=0.5),
        *(call(whole(9, 4), 0, whole(4, 7), whole(9, 7)), call(rand(), 0, ZERO, rand())),
        call(CUBE, 1, torch.zeros(0, dtype=torch.int64), rand(3, 0, 5)),
    ],
    "aten.index_copy.default": [
        *(call(CUBE, axis, ORDER, CUBE.narrow(axis, 0, 2)) for axis in (0, 1, -1)),
        call(CUBE, 1, Known(ORDER), rand(3, 2, 5)),
    ],
    "aten.index_fill.int_Scalar": [
        *(call(CUBE, axis, whole(3, 2), 2.5) for axis in (0, 1, -1)),
        *(call(whole(9, 4, 2), 1, Known(torch.tensor([1])), 7), call(rand(), 0, ZERO, 3)),
    ],
    "aten.index_fill.int_Tensor": [call(CUBE, 1, whole(3, 2), rand())],
    "aten.index_reduce.default": [
        call(CUBE, 1, whole(4, 6), rand(3, 6, 5), name, include_self=keep)
        for name in ("prod", "mean", "amax", "amin")
        for keep in (True, False)
    ],
    "aten.take.default": [
        *(call(CUBE, whole(60, 3, 2) - 30), call(CUBE, Known(torch.tensor([59, -60])))),
        *(call(whole(9, 4), whole(4, 2)), call(CUBE, torch.tensor(7))),
    ],
    "aten.put.default": [
        call(CUBE, torch.tensor([[3, -1, 7]]), rand(3)),
        call(CUBE, torch.tensor([3, -1, 3]), rand(1, 3), True),
        call(CUBE, Known(torch.tensor([[3, -1, 3]])), rand(3), True),
    ],
    "aten.masked_scatter.default": [
        *(call(CUBE, truths(4, 5), rand(80)), call(CUBE, truths(3, 1, 1), rand(6, 10))),
        *(call(whole(9, 6), truths(6), whole(9, 6)), call(rand(5), truths(3, 5), rand(15))),
    ],
    "aten.index_put.default": [
        *(call(CUBE, [None, ORDER], rand(3, 2, 5)), call(CUBE, [None, ORDER, ORDER], rand(3, 2))),
        *(call(CUBE, [ORDER, None, ORDER], rand(2, 4)), call(CUBE, [ORDER - 3], torch.tensor(2.0))),
        call(CUBE, [Known(ORDER[:, None]), ORDER], rand(2, 1, 5)),
        *(call(CUBE, [whole(3, 9), whole(4, 9)], rand(5), add) for add in (True,)),
        call(CUBE, [Known(torch.zeros(20, dtype=torch.int64))], rand(20, 4, 5), True),
        *(call(CUBE, [truths(3, 4)], rand(1), add) for add in (True, False)),
        *(call(CUBE, [None, truths(4)], rand(5)), call(whole(9, 4), [truths(4)], torch.tensor(3))),
        call(CUBE, [Known(torch.tensor([True, False, True]))], rand(2, 4, 5)),
        call(CUBE, [COUNT, whole(4, 3)], rand(3, 5)),
        call(CUBE, [COUNT, None, ORDER[1:]], rand(3, 4)),
        call(truths(3, 5), [ORDER], truths(2, 5)),
        call(CUBE, [torch.zeros(0, dtype=torch.int64)], rand(0, 4, 5)),
    ],
    "aten._unsafe_index_put.default": [call(CUBE, [None, ORDER], rand(3, 2, 5))],
    "aten.index_select.default": [
        call(CUBE, 1, Known(torch.tensor([0, 1, 3]))),
        call(CUBE, 2, Known(torch.tensor([4, 3, 2, 1, 0] * 2))),
        call(CUBE, 1, whole(4, 6)),
        *(call(x, 1, whole(5, 3)) for x in (whole(99, 3, 5, 2), truths(3, 5, 2), whole(9, 2, 5))),
        *(call(NUMBER, 0, whole(1, 1)), call(NUMBER, 0, Known(torch.tensor([0])))),
        call(CUBE, 1, whole(4)),
    ],
    "aten.index.Tensor": [
        call(CUBE, [None, Known(torch.tensor([3, -1, 0]))]),
        call(CUBE, [Known(torch.tensor([[2, 0], [1, 1]]))]),
        call(CUBE, [None, None, Known(torch.tensor([True, False, True, True, False]))]),
        *(call(CUBE, [None, whole(4, 2, 3)]), call(CUBE, [None, whole(4, 6) - 4])),
        *(call(CUBE, [whole(3, 6), whole(4, 6)]), call(CUBE, [whole(3, 6), None, whole(5, 6)])),
        *(call(CUBE, [whole(3, 2, 1), whole(4, 6)]), call(CUBE, [None, whole(4, 1), whole(5, 6)])),
        *(call(CUBE, [COUNT, whole(4, 3)]), call(CUBE, [COUNT, None, whole(5, 3)])),
        *(call(CUBE, [whole(3, 4), Known(torch.arange(4))]), call(CUBE, [COUNT, Known(ORDER[1:])])),
        call(CUBE, [Known(COUNT.tensor[:, None]), whole(4, 2)]),
        call(CUBE, [Known(COUNT.tensor[None]), whole(4, 2, 3), whole(5, 2, 1)]),
        call(CUBE, [Known(torch.tensor([[True, False, False, True]] * 3))]),
        *(call(CUBE, [None, Known(truths(4, 5))]), call(truths(3, 4), [whole(3, 6), whole(4, 6)])),
        *(call(whole(9, 3, 4), [whole(3, 6), whole(4, 6)]), call(CUBE, [torch.tensor(1)])),
        call(CUBE, [torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)]),
    ],
    "aten._unsafe_index.Tensor": [
        call(IMAGE, [None, None, Known(torch.tensor([[0], [8]])), Known(torch.tensor([1, 1, 2]))]),
        call(CUBE, [Known(torch.tensor([[2]])), Known(torch.tensor([[1, 3]]))]),
    ],
    "aten.flip.default": [
        *(call(CUBE, [0]), call(CUBE, [1, 2]), call(rand(2, 12), [-1])),
        *(call(whole(99, 2, 12), [-1]), call(truths(2, 12), [1])),
    ],
    "aten.topk.default": [
        call(X, 2),
        call(X, 5, 1, False),
        call(CUBE, 2, 0),
        call(NUMBER, 1),
        *(call(torch.randperm(12).reshape(3, 4), 3, 1, largest) for largest in (True, False)),
    ],
    "aten.sort.default": [
        *(call(X), call(X, 0, True), call(torch.randperm(15).reshape(3, 5)), call(truths(6))),
        *(call(torch.randperm(15).reshape(3, 5), 0, True), call(NUMBER), call(NUMBER, 0)),
    ],
    "aten.sort.stable": [call(X, stable=True, dim=1)],
    "aten.argsort.default": [call(X), call(X, 0, True), call(NUMBER)],
    "aten.one_hot.default": [call(whole(5, 2, 3), 5)],
    "aten.tril.default": [call(CUBE), call(X, 1)],
    "aten.triu.default": [call(CUBE), call(X, -1)],
}
# Interpolation, padding, and whether corners are centres of pixels.
VOLUME = rand(2, 3, 4, 6, 5)
GRIDS = ((0, 0, True), (0, 1, False), (0, 2, True), (1, 0, False), (1, 2, False), (2, 2, True))
POOLINGS: dict[str, list[Call]] = {
    "aten.grid_sampler.default": [call(IMAGE, 1.5 * rand(2, 3, 5, 2), *each) for each in GRIDS],
    "aten.grid_sampler_2d.default": [call(IMAGE, rand(2, 3, 5, 2), 2, 0, False)],
    "aten.grid_sampler_3d.default": [
        call(rand(2, 3, 4, 5, 6), rand(2, 3, 2, 4, 3), *each) for each in GRIDS if each[0] < 2
    ],
    "aten.max_pool1d.default": [call(SEQUENCE, [3]), call(SEQUENCE, [3], [2], [1], [2], True)],
    "aten.max_pool2d.default": [
        call(IMAGE, [2, 3]),
        call(IMAGE, [3], [2], [1]),
        call(IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], True),
        call(rand(4, 9, 8), [3, 2], [1, 2]),
    ],
    "aten.max_pool1d_with_indices.default": [
        *(call(SEQUENCE, [3]), call(SEQUENCE, [3], [2], [1], [2], True)),
    ],
    "aten.max_pool2d_with_indices.default": [
        *(call(IMAGE, [2, 3], [1, 2]), call(IMAGE, [3], [2], [1]), call(-IMAGE.abs(), [3], [], 1)),
        call(IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], True),
        call(rand(4, 9, 8), [3, 2], [1, 2], [1, 1], [2, 3]),
        call(torch.zeros(2, 5, 5), [2, 2], 1, 1),
        call(torch.tensor([[[1.0, NAN, 0.0], [NAN, 2.0, -INFINITY]]]), [2, 2], 1),
        call(torch.full((1, 4, 4), -INFINITY), [2, 2], 1, 1),
    ],
    "aten.max_pool3d_with_indices.default": [call(rand(2, 3, 4, 5, 6), [2, 2, 3], [1, 2, 2])],
    "aten.avg_pool1d.default": [call(SEQUENCE, [3], [2], [1]), call(SEQUENCE, [4])],
    "aten.avg_pool2d.default": [
        call(IMAGE, [2, 3]),
        call(IMAGE, [3, 3], [2, 2], [1, 1]),
        call(IMAGE, [3, 3], [2, 2], [1, 1], False, False),
        call(IMAGE, [2, 2], [2, 2], [0, 0], True),
        call(IMAGE, [2, 2], [2, 2], [0, 0], False, True, 3),
        *(
            call(rand(2, 3, n, 7), [3, 2], [2, 3], [1, 1], True, *more)
            for n in (6, 7)
            for more in ((True,), (False,), (True, 5))
        ),
    ],
    "aten.adaptive_avg_pool1d.default": [call(SEQUENCE, [n]) for n in (1, 4, 5)],
    "aten.adaptive_avg_pool2d.default": [call(IMAGE, [n, m]) for n, m in ((1, 1), (3, 4), (4, 3))],
    "aten._adaptive_avg_pool2d.default": [call(IMAGE, [3, 2])],
    "aten.max_pool3d.default": [
        *(call(VOLUME, [2]), call(VOLUME, [2, 3, 1], [1, 2, 1], [1, 1, 0], [2, 1, 1], True)),
        call(VOLUME[0], [2]),
    ],
    "aten.avg_pool3d.default": [
        *(call(VOLUME, [2]), call(VOLUME, [3, 3, 2], [2, 2, 1], [1, 1, 1])),
        *(call(VOLUME, [3], [2], [1], True, False), call(VOLUME, [2], [2], [0], True, True, 3)),
    ],
    "aten.adaptive_avg_pool3d.default": [call(VOLUME, each) for each in ([1] * 3, [2, 3, 2])],
    "aten._adaptive_avg_pool3d.default": [call(VOLUME, [2, 1, 3])],
    "aten.upsample_trilinear3d.vec": [call(VOLUME, [5, 9, 7], False, None)],
    "aten.upsample_nearest3d.vec": [call(VOLUME, None, [2.0, 1.5, 1.0])],
    "aten.adaptive_max_pool1d.default": [call(SEQUENCE, [n]) for n in (1, 4, 5)],
    "aten.adaptive_max_pool2d.default": [call(IMAGE, [n, m]) for n, m in ((3, 4), (4, 3))],
    "aten.adaptive_max_pool3d.default": [call(rand(2, 3, 5, 4, 6), [2, 4, 4])],
    "aten.upsample_linear1d.vec": [call(SEQUENCE, [17], True, None)],
    "aten.upsample_bilinear2d.vec": [
        call(IMAGE, None, False, [2.0, 1.5]),
        call(IMAGE, [5, 20], True, None),
    ],
    "aten.upsample_bicubic2d.vec": [call(IMAGE, [20, 11], False, None)],
    "aten.upsample_nearest1d.vec": [call(SEQUENCE, None, [2.0]), call(SEQUENCE, [17], None)],
    "aten.upsample_nearest2d.vec": [
        call(IMAGE, None, [2.0, 3.0]),
        call(IMAGE, [18, 8], None),
        call(IMAGE, None, [1.5, 0.5]),
    ],
    "aten.sym_size.int": [],
    "aten.size.int": [],
}

_ORDER = Known(torch.tensor([3, 0, 2, 1]))
ORDERED: dict[str, list[Call]] = {
    "aten.cumprod.default": [
        *(call(CUBE, axis) for axis in (0, 1, -1)),
        *(call(rand(2, 80), 1), call(whole(3, 5), 0), call(truths(5), 0), call(rand(), 0)),
    ],
    **{
        f"aten.{name}.default": [
            *(call(CUBE, axis) for axis in (0, -1)),
            *(call(whole(4, 3, 9), 1), call(truths(2, 6), 1), call(rand(), 0)),
        ]
        for name in ("cummax", "cummin")
    },
    "aten.logcumsumexp.default": [*(call(3 * CUBE, axis) for axis in (0, -1)), call(rand(), 0)],
    "aten.kthvalue.default": [
        *(call(CUBE, 2, 1), call(CUBE, 5), call(CUBE, 1, 0, True), call(rand(), 1)),
        call(torch.randperm(12).reshape(3, 4), 3),
    ],
    **{
        f"aten.{name}.dim": [
            *(call(CUBE, 1), call(CUBE, -1, True), call(rand(), 0)),
            call(torch.randperm(12).reshape(3, 4), 0),
        ]
        for name in ("median", "nanmedian")
    },
    **{
        f"aten.{name}.default": [call(CUBE), call(torch.randperm(9)), call(rand())]
        for name in ("median", "nanmedian")
    },
    "aten.searchsorted.Tensor": [
        *(call(rand(9).sort()[0], rand(2, 7)), call(CUBE.sort()[0], rand(3, 4, 6), right=True)),
        *(call(torch.arange(5), whole(7, 9), side=side) for side in ("left", "right")),
        call(torch.tensor([0.3, 0.9, 0.5, 0.1]), rand(3), sorter=_ORDER),
    ],
    "aten.searchsorted.Scalar": [call(rand(9).sort()[0], 0.25)],
    "aten.bucketize.Tensor": [call(rand(2, 7), rand(9).sort()[0], right=b) for b in (True, False)],
    "aten.bucketize.Scalar": [call(0.25, rand(9).sort()[0])],
    **{
        f"aten.{name}.default": [
            *(call(CUBE), call(CUBE, 1, 1, 2), call(CUBE, -2, -1, 0), call(CUBE, 9)),
            *(call(rand(2, 6, 5), 0, 1, -1), call(rand(4, 4), -3)),
        ]
        for name in ("diagonal", "diagonal_copy")
    },
    "aten.linalg_diagonal.default": [call(CUBE), call(CUBE, offset=1, dim1=0, dim2=1)],
    "aten.diagonal_scatter.default": [
        *(call(rand(4, 5), rand(4)), call(rand(3, 4, 5), rand(4, 3), -1, 2, 0)),
    ],
    "aten.trace.default": [call(rand(4, 5)), call(whole(9, 3, 3))],
    **{
        f"aten.{name}.default": [
            *(call(CUBE, [3, 2], [1, 7], 4), call(CUBE, [2, 2, 3], [0, 1, 1])),
            *(call(CUBE, [], []), call(whole(9, 6), [3], [2], 1), call(CUBE, [0, 2], [1, 1])),
        ]
        for name in ("as_strided", "as_strided_copy")
    },
    "aten.as_strided_scatter.default": [call(CUBE, rand(3, 2), [3, 2], [1, 7], 4)],
    "aten.cdist.default": [
        call(rand(2, 3, 5), rand(2, 4, 5), p) for p in (0.0, 1.0, 2.0, 3.5, float("inf"))
    ],
    "aten._cdist_forward.default": [call(rand(3, 5), rand(4, 5), 2.0, None)],
    "aten.pdist.default": [call(rand(4, 5), p) for p in (2.0, 1.0)],
    "aten._pdist_forward.default": [call(rand(4, 5), 2.0), call(rand(1, 5), 2.0)],
    "aten.combinations.default": [call(rand(5)), call(rand(4), 3, True), call(rand(2), 3)],
    "aten.bilinear.default": [
        call(rand(2, 3, 4), rand(2, 3, 5), weight(6, 4, 5), weight(6)),
        call(rand(4), rand(5), rand(6, 4, 5)),
    ],
}
