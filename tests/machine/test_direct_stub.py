"""Direct stubs: plain arrays and tensors in, the same out, and None for all other calls."""

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from copying_model import Subclass, copier, copying, of_type

from sparsejit.runtime.call_stub import direct_stub
from sparsejit.runtime.native_call import NativeCall, new_workspace
from sparsejit.runtime.python_objects import ArrayType

FIXED, FREE = ArrayType("float32", (3, 8), "features"), ArrayType("float32", (None, 6), "features")
X = of_type("float32", (3, 8))

needs_exchange = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch without exchange API"
)


def direct(*kinds: ArrayType, is_single: bool = False, **about: int) -> Callable[..., Any]:
    """A stub that copies its inputs, with a workspace."""
    call = copying(*kinds, **about)
    call.checked.workspaces.append(new_workspace(call.checked.workspace_bytes))
    made = call.direct(is_single, torch)
    assert made is not None
    return made


SHAPES = [(), (8,), (3, 8), (1, 8), (4, 1), (2, 3, 4)]
TYPES = [(dtype, shape) for dtype in ("float32", "int64") for shape in SHAPES]


@needs_exchange
@pytest.mark.parametrize(("dtype", "shape"), [*TYPES, ("bool", (8,)), ("bool", (2, 3, 4))])
def test_every_element_and_rank(dtype: str, shape: tuple[int, ...]) -> None:
    run, x = direct(ArrayType(dtype, shape, "x"), is_single=True), of_type(dtype, shape)
    for _ in range(3):
        y = run(x)
        assert type(y) is np.ndarray and y.dtype == x.dtype and y.flags.owndata
        assert sys.getrefcount(y) == 2
        np.testing.assert_array_equal(y, x)
        z = run(torch.from_numpy(x))
        assert type(z) is torch.Tensor and sys.getrefcount(z) == 2 and not z.requires_grad
        assert z.shape == shape and z.is_contiguous()
        np.testing.assert_array_equal(z.numpy(), x)


@needs_exchange
def test_tensors_of_any_batch() -> None:
    run = direct(FREE, ArrayType("int64", (None,), "words"))
    for batch in (1, 2, 3, 17, 257):
        inputs = [of_type("float32", (batch, 6)), of_type("int64", (batch,))]
        for given in (inputs, [torch.from_numpy(x) for x in inputs]):
            outputs = run(*given)
            assert type(outputs) is list and len(outputs) == 2
            for x, y in zip(inputs, outputs, strict=True):
                np.testing.assert_array_equal(np.asarray(y), x)
    assert run(torch.zeros(2, 6), torch.zeros(3, dtype=torch.int64)) is None


@needs_exchange
def test_one_tensor_among_arrays_makes_all_outputs_tensors() -> None:
    run = direct(FIXED, FIXED)
    for inputs in ((X, torch.from_numpy(X)), (torch.from_numpy(X), X)):
        assert all(type(y) is torch.Tensor for y in run(*inputs))
    assert all(type(y) is np.ndarray for y in run(X, X))


@needs_exchange
def test_outputs_of_two_calls_share_no_memory() -> None:
    run, x = direct(FIXED, is_single=True), torch.from_numpy(X)
    first, second = run(x), run(x)
    first.zero_()
    assert second.equal(x)
    del run
    gc.collect()
    assert second.add_(1).equal(x + 1)


class OwnTensor(torch.Tensor):
    """A subclass, whose functions may mean something else."""


PLAIN = torch.from_numpy(X)
LEFT_TO_PYTHON: dict[str, Callable[[], tuple[Any, ...]]] = {
    "columns first": lambda: (PLAIN.t().contiguous().t(),),
    "every second": lambda: (PLAIN.repeat_interleave(2, 1)[:, ::2],),
    "repeated": lambda: (PLAIN[:1].expand(3, 8),),
    "float64": lambda: (PLAIN.double(),),
    "bfloat16": lambda: (PLAIN.bfloat16(),),
    "int32": lambda: (PLAIN.int(),),
    "float8": lambda: (PLAIN.to(torch.float8_e5m2),),
    "complex": lambda: (PLAIN.to(torch.complex64),),
    "negated": lambda: (torch._neg_view(PLAIN),),
    "a parameter": lambda: (torch.nn.Parameter(PLAIN),),
    "a subclass": lambda: (PLAIN.as_subclass(OwnTensor),),
    "meta": lambda: (PLAIN.to("meta"),),
    "sparse": lambda: (PLAIN.to_sparse(),),
    "zeros without memory": lambda: (torch._efficientzerotensor((3, 8)),),
    "fewer rows": lambda: (PLAIN[:2],),
    "fewer axes": lambda: (PLAIN.reshape(-1),),
    "no axes": lambda: (torch.tensor(1.0),),
    "further axes": lambda: (PLAIN[None],),
    "no inputs": lambda: (),
    "two inputs": lambda: (PLAIN, PLAIN),
    "a list": lambda: (X.tolist(),),
    "none": lambda: (None,),
    "a subclass of numpy's array": lambda: (X.view(Subclass),),
    "a float64 array": lambda: (X.astype(np.float64),),
}


@needs_exchange
@pytest.mark.filterwarnings("ignore:.*[Ss]parse")
@pytest.mark.parametrize("name", LEFT_TO_PYTHON)
def test_all_other_calls_are_left_to_python(name: str) -> None:
    run, inputs = direct(FIXED, is_single=True), LEFT_TO_PYTHON[name]()
    counted = [x for x in inputs if x is not None]
    before = list(map(sys.getrefcount, counted))
    for _ in range(3):
        assert run(*inputs) is None
    assert list(map(sys.getrefcount, counted)) == before
    assert run(PLAIN).equal(PLAIN)


@needs_exchange
def test_a_tensor_that_is_not_aligned_is_left_to_python() -> None:
    room = bytearray(4 * 24 + 1)
    x = torch.frombuffer(room, dtype=torch.float32, count=24, offset=1).view(3, 8)
    assert x.data_ptr() % 4 and direct(FIXED)(x) is None


@needs_exchange
def test_a_batch_of_transformed_samples_is_left_to_python() -> None:
    run, seen = direct(ArrayType("float32", (8,), "x")), []

    def each(sample: Any) -> Any:
        seen.append(run(sample))
        return sample

    torch.vmap(each)(PLAIN)
    torch.func.grad(lambda x: each(x).sum())(PLAIN[0])
    assert seen == [None, None]


@needs_exchange
def test_tensors_of_autograd_and_inference_are_read_in_place() -> None:
    run, x = direct(FIXED, is_single=True), PLAIN.clone().requires_grad_()
    for each in (x, x * 1.0):
        y = run(each)
        assert y.equal(PLAIN) and not y.requires_grad
    with torch.inference_mode():
        assert run(PLAIN.clone()).equal(PLAIN)


def test_without_torch_tensors_are_left_to_python() -> None:
    call = copying(FIXED)
    call([X])
    run = call.direct(True)
    assert run is not None and run(PLAIN) is None
    np.testing.assert_array_equal(run(X), X)


@needs_exchange
def test_a_status_and_a_lack_of_workspaces_lose_nothing() -> None:
    failing, idle = direct(FIXED, status=3), copying(FIXED).direct(True, torch)
    before = sys.getrefcount(PLAIN), sys.getrefcount(X)
    for run in (failing, idle):
        for x in (PLAIN, X):
            assert run is not None and [run(x) for _ in range(100)] == [None] * 100
    del x
    assert (sys.getrefcount(PLAIN), sys.getrefcount(X)) == before


@needs_exchange
def test_outputs_that_cannot_be_made_are_an_error() -> None:
    huge = ArrayType("float32", (1 << 60,), "y")
    free = [new_workspace(96)]
    run = direct_stub(copier([96]), [FIXED], [FIXED, huge], free, False, torch)
    for x in (X, PLAIN):
        with pytest.raises(MemoryError):
            run(x)  # type: ignore[misc]
    assert len(free) == 1


@needs_exchange
def test_counts_stay_level() -> None:
    run = direct(FREE, is_single=True)
    x = torch.zeros(8, 6)
    counted = (x, torch.Tensor, torch.from_numpy, torch.Tensor.is_neg, np.dtype(np.float32), run)
    run(x)
    before = list(map(sys.getrefcount, counted))
    constants = sys.getrefcount(None), sys.getrefcount(False)
    for _ in range(1000):
        run(x)
        run(x.double())
    assert list(map(sys.getrefcount, counted)) == before
    assert abs(sys.getrefcount(None) - constants[0]) < 100
    assert abs(sys.getrefcount(False) - constants[1]) < 100


@needs_exchange
def test_threads_never_share_a_workspace() -> None:
    """A workspace of two would mix their values, which lie in it between two long copies."""
    shape, wrong, begin = (64, 256), list[int](), threading.Barrier(4)
    call: NativeCall = copying(ArrayType("float32", shape, "x"))
    call.checked.workspaces += [new_workspace(call.checked.workspace_bytes) for _ in range(2)]
    run = call.direct(True, torch)
    assert run is not None

    def hammer(number: int) -> None:
        x = torch.full(shape, float(number))
        begin.wait()
        found = (run(x) for _ in range(500))
        wrong.extend(number for y in found if y is not None and not y.equal(x))

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(call.checked.workspaces) == 2
