"""Worker process of one peer: loads a model, writes its outputs, and times it.

Run by the peer's own Python as `python peer_worker.py ENGINE CORE,...`, a thread for each core,
it imports nothing but the standard library, numpy and that peer. Requests and replies are JSON, one
object a line:

    {"do": "load", "inputs": x.npz, "onnx": file or null, "zoo": {model, density, pattern}}
        -> {"version", "ways"}
    {"do": "load", ..., "network": [name, path], "feedback": [[result, input], ...]} -> the same
    {"do": "load", ..., "file": .onnx, "names": of inputs, "constants": {name: number},
     "fallback": engine or null} -> the same
    {"do": "load", ..., "program": .pt2} or {..., "factory": reference, "state": .pt} -> the same
    {"do": "load", ..., "saved": .sjit} -> the same
    {"do": "load", ..., "compiled": {engine: .sjit}, "names", "constants"} -> the same
    {"do": "run", "way": way, "outputs": y.npz} -> {"threads": count}
    {"do": "time", "way": way, "samples": at most, "budget_ns": of all}
        -> {"ns": a list, one a sample}
    {"do": "pace", "way": way, "calls": count, "period_ns": between them}
        -> {"ns": a list, one a call}

or {"error": words}. The reply to "load" also has the "ways" of calling the engine: "called" takes
and returns arrays, or tensors where the engine is torch's; "bound" reads and writes buffers that
were set once. Without "way" it is the last of them. A sample is the mean of the calls that fit in
`SAMPLE_NS`. A paced call is timed from its due time, whether or not the call before had ended by
then. With `feedback`, results of a call are inputs of the next one.
"""

import gc
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import perf_counter_ns as clock
from time import sleep
from typing import Any

SAMPLE_NS = 100_000
WARM_UP_NS = 5_000_000
_FEWEST_SAMPLES = 3
# Sleep ends this long before a call is due: the system may wake the process late.
_AWAKE_NS = 300_000

# A call of the whole model; then with it a function that turns its result into numpy arrays.
Call = Callable[[], Any]
Loaded = tuple[Call, Callable[[Any], Sequence[Any]]]
# By the way of calling; the last one is the fastest that the engine has.
Ways = dict[str, Loaded]


def _onnxruntime(request: dict[str, Any], inputs: list[Any]) -> Loaded | Ways:
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = request["threads"], 1
    session = ort.InferenceSession(request["onnx"], options, providers=["CPUExecutionProvider"])
    names, run = [node.name for node in session.get_inputs()], session.run
    if "feedback" in request:

        def named(*given: Any) -> Any:
            return run(None, dict(zip(names, given, strict=True)))

        return _fed_back(request, named, inputs), list
    binding = session.io_binding()  # saves the copies that `run` makes
    for node, value in zip(session.get_inputs(), inputs, strict=True):
        binding.bind_cpu_input(node.name, value)
    for node in session.get_outputs():
        binding.bind_output(node.name, "cpu")
    call, feeds = session.run_with_iobinding, dict(zip(names, inputs, strict=True))
    return {
        "called": (lambda: run(None, feeds), list),
        "bound": (lambda: call(binding), lambda _: binding.copy_outputs_to_cpu()),
    }


def _openvino(request: dict[str, Any], inputs: list[Any], is_float32: bool = True) -> Ways:
    ov = import_module("openvino")
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": request["threads"],
        "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": 0.8,
    }
    if is_float32:  # else bfloat16 where the processor has it
        settings["INFERENCE_PRECISION_HINT"] = "f32"
    model = ov.Core().compile_model(request["onnx"], "CPU", settings)
    work = model.create_infer_request()
    for number, value in enumerate(inputs):
        work.set_input_tensor(number, ov.Tensor(value, shared_memory=True))
    count = len(work.model_outputs)
    return {
        "called": (lambda: model(inputs), lambda found: [found[i] for i in range(count)]),
        "bound": (work.infer, lambda _: [work.get_output_tensor(i).data for i in range(count)]),
    }


def _deepsparse(request: dict[str, Any], inputs: list[Any]) -> Loaded:
    compiler = import_module("deepsparse")
    # None: the file's own. A number would become the first dimension of recurrent states as well.
    engine = compiler.Engine(request["onnx"], batch_size=None, num_cores=request["threads"])
    return lambda: engine.run(inputs, val_inp=False), list


def _tvm(request: dict[str, Any], inputs: list[Any]) -> Ways:
    tvm, onnx = import_module("tvm"), import_module("onnx")
    relax = import_module("tvm.relax")
    dlight, from_onnx = import_module("tvm.s_tir.dlight"), import_module("tvm.relax.frontend.onnx")
    cpu = import_module("tvm.target.codegen").llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": request["threads"]})
    module = relax.get_pipeline("zero")(from_onnx.from_onnx(onnx.load(request["onnx"])))
    with target:  # the default schedules alone are half as fast
        module = dlight.ApplyDefaultSchedule(dlight.cpu.GEMV(), dlight.cpu.Reduction())(module)
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    arguments, main = [tvm.runtime.tensor(value) for value in inputs], machine["main"]

    def arrays(result: Any) -> list[Any]:
        several = not hasattr(result, "numpy")
        return [one.numpy() for one in (result if several else [result])]

    def called() -> list[Any]:
        return arrays(main(*map(tvm.runtime.tensor, inputs)))

    return {"called": (called, list), "bound": (lambda: main(*arguments), arrays)}


def _torch(request: dict[str, Any], inputs: list[Any]) -> Loaded:
    module, tensors = _module(request, inputs)
    return _fed_back(request, module, tensors), _torch_arrays


def _torch_channels_last(request: dict[str, Any], inputs: list[Any]) -> Loaded:
    torch = import_module("torch")
    module, tensors = _module(request, inputs)
    order = torch.channels_last
    module = module.to(memory_format=order)
    tensors = tuple(x.to(memory_format=order) if x.dim() == 4 else x for x in tensors)
    return lambda: module(*tensors), _torch_arrays


def _torchscript(request: dict[str, Any], inputs: list[Any]) -> Loaded:
    frozen, tensors = _frozen(request, inputs)
    return _fed_back(request, frozen, tensors), _torch_arrays


def _torch_compile(request: dict[str, Any], inputs: list[Any]) -> Loaded:
    torch = import_module("torch")
    module, tensors = _module(request, inputs)
    return _fed_back(request, torch.compile(module, dynamic=False), tensors), _torch_arrays


def _static_runtime(request: dict[str, Any], inputs: list[Any]) -> Loaded:
    torch = import_module("torch")
    frozen, tensors = _frozen(request, inputs)
    static = torch._C._jit_to_static_module(frozen._c)
    return lambda: static(*tensors), _torch_arrays


def _sparsejit(
    request: dict[str, Any], inputs: list[Any], dtype: str = "float32"
) -> Loaded | Ways:
    sparsejit = import_module("sparsejit")
    if "saved" in request:
        return _ways(sparsejit.load(request["saved"]), inputs)
    options = {"dtype": dtype, "threads": request["threads"]}
    if "file" in request:
        given = _without_constants(request, inputs)
        options |= {"constants": request["constants"], "fallback": request["fallback"]}
        return _ways(sparsejit.compile(request["file"], tuple(given), **options), given)
    module, tensors = _module(request, inputs, for_us=True)
    compiled = sparsejit.compile(module, example_inputs=tensors, **options)
    if "zoo" in request or "network" in request:  # beside torch, called as torch is
        return lambda: compiled(*tensors), _torch_arrays
    return _ways(compiled, inputs)


def _compiled(request: dict[str, Any], inputs: list[Any], engine: str) -> Loaded:
    model = import_module("sparsejit").load(request["compiled"][engine])
    return _bound(model, _without_constants(request, inputs))


def _without_constants(request: dict[str, Any], inputs: list[Any]) -> list[Any]:
    """The inputs without the constants of an ONNX file's model."""
    if not request["constants"]:
        return inputs
    named = zip(request["names"], inputs, strict=True)
    return [x for name, x in named if name not in request["constants"]]


def _ways(compiled: Any, inputs: list[Any]) -> Ways:
    """Ways to call a model that sparsejit compiled: with arrays, and bound where it can be."""
    called = partial(compiled, *inputs)
    try:
        called()
    except ValueError:  # inputs in a nest
        called = partial(compiled.run, inputs)
    ways: Ways = {"called": (called, lambda _: compiled.run(inputs))}
    try:
        return {**ways, "bound": _bound(compiled, inputs, must_bind=True)}
    except ValueError:
        return ways


def _bound(compiled: Any, inputs: list[Any], must_bind: bool = False) -> Loaded:
    outputs = compiled.run(inputs)
    try:
        return compiled.bind(inputs, outputs), lambda _: outputs
    except ValueError:  # narrow integers and sizes that differ between calls cannot be bound
        if must_bind:
            raise
        return lambda: compiled.run(inputs), list


def _sparsejit_bound(request: dict[str, Any], inputs: list[Any]) -> Loaded:
    module, tensors = _module(request, inputs)
    return _bound(import_module("sparsejit").compile(module, example_inputs=tensors), inputs)


# The loader of each engine, and the package whose version is reported.
ENGINES: dict[str, tuple[Callable[[dict[str, Any], list[Any]], Loaded | Ways], str]] = {
    "sparsejit": (_sparsejit, "sparsejit"),
    "sparsejit-bfloat16": (partial(_sparsejit, dtype="bfloat16"), "sparsejit"),
    "sparsejit-float16": (partial(_sparsejit, dtype="float16"), "sparsejit"),
    "sparsejit-int8": (partial(_sparsejit, dtype="int8"), "sparsejit"),
    "sparsejit-auto": (partial(_sparsejit, dtype="auto"), "sparsejit"),
    "sparsejit-dense": (partial(_compiled, engine="sparsejit-dense"), "sparsejit"),
    "sparsejit-shrunk": (partial(_compiled, engine="sparsejit-shrunk"), "sparsejit"),
    "sparsejit-bound": (_sparsejit_bound, "sparsejit"),
    "torch": (_torch, "torch"),
    "torch-channels-last": (_torch_channels_last, "torch"),
    "torchscript": (_torchscript, "torch"),
    "torch-compile": (_torch_compile, "torch"),
    "static-runtime": (_static_runtime, "torch"),
    "onnxruntime": (_onnxruntime, "onnxruntime"),
    "openvino": (_openvino, "openvino"),
    "openvino-default": (partial(_openvino, is_float32=False), "openvino"),
    "deepsparse": (_deepsparse, "deepsparse"),
    "tvm": (_tvm, "apache-tvm"),
}


def _fed_back(request: dict[str, Any], call: Callable[..., Any], inputs: Sequence[Any]) -> Call:
    """A call of a model that gives results to the next call, as the request's `feedback` says.

    Without `feedback` all calls get the same inputs.
    """
    given, pairs = list(inputs), request.get("feedback", [])
    if not pairs:
        return lambda: call(*given)

    def step() -> Any:
        results = call(*given)
        for result, taken in pairs:
            given[taken] = results[result]
        return results

    return step


def _module(
    request: dict[str, Any], inputs: list[Any], for_us: bool = False
) -> tuple[Any, tuple[Any, ...]]:
    torch = import_module("torch")
    torch.set_num_threads(request["threads"])
    tensors = tuple(torch.from_numpy(value) for value in inputs)
    if "program" in request:
        program = torch.export.load(request["program"])
        return program if for_us else program.module(), tensors
    if "factory" in request:
        model_source = import_module("sparsejit.frontends.model_source")
        module, _ = model_source.call_factory(request["factory"])
        module.load_state_dict(torch.load(request["state"], weights_only=True))
        return module.eval(), tensors
    if "network" in request:
        networks = import_module("sparsejit.perf.voice.voice_networks")
        steps = import_module("sparsejit.perf.voice.voice_peers")
        name, path = request["network"]
        return steps.step_of(networks.network_named(name, path and Path(path))), tensors
    zoo, asked = import_module("sparsejit.perf.zoo"), request["zoo"]
    return zoo.pruned(zoo.ZOO[asked["model"]], asked["density"], asked["pattern"]), tensors


def _frozen(request: dict[str, Any], inputs: list[Any]) -> tuple[Any, tuple[Any, ...]]:
    torch = import_module("torch")
    module, tensors = _module(request, inputs)
    with torch.no_grad():  # lets the transformer take its fast path
        return torch.jit.freeze(torch.jit.trace(module, tensors, check_trace=False)), tensors


def _torch_arrays(result: Any) -> list[Any]:
    several = isinstance(result, tuple | list)
    return [tensor.numpy() for tensor in (result if several else [result])]


class PeerWorker:
    """Answers requests; the model that was loaded last is the one run and timed."""

    def __init__(self, engine: str, threads: int = 1) -> None:
        self._threads = threads
        self._loader, self._package = ENGINES[engine]
        self._ways: Ways = {}
        self._calls: dict[str, int] = {}  # in a sample, by way
        self._kept = ExitStack()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request; errors of the peer pass through."""
        return {"load": self.load, "run": self.run, "time": self.time, "pace": self.pace}[
            request["do"]
        ](request)

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        numpy = import_module("numpy")
        with numpy.load(request["inputs"]) as file:
            self._inputs = [file[name] for name in file.files]  # some peers keep only addresses
        self._calls = {}
        loaded = self._loader({"threads": self._threads, **request}, self._inputs)
        self._ways = loaded if isinstance(loaded, dict) else {"called": loaded}
        if "torch" in sys.modules:
            self._kept.enter_context(import_module("torch").inference_mode())
        return {"version": version(self._package), "ways": list(self._ways)}

    def _way(self, request: dict[str, Any]) -> str:
        return str(request.get("way") or list(self._ways)[-1])

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        call, arrays = self._ways[self._way(request)]
        outputs = arrays(call())
        import_module("numpy").savez(request["outputs"], *outputs)
        return {"threads": len(os.listdir("/proc/self/task"))}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        gc.collect()
        gc.disable()
        way = self._way(request)
        call, _ = self._ways[way]
        if way not in self._calls:
            self._calls[way] = _calibrated(call)
        calls = self._calls[way]
        once = _sample(call, calls)  # also warms caches that others used meanwhile
        affordable = int(request["budget_ns"] / (once * calls))
        count = max(_FEWEST_SAMPLES, min(request["samples"], affordable))
        return {"ns": [_sample(call, calls) for _ in range(count)]}

    def pace(self, request: dict[str, Any]) -> dict[str, Any]:
        (call, _), period = self._ways[self._way(request)], request["period_ns"]
        gc.collect()
        gc.disable()
        call()
        found = []
        start = clock()
        for number in range(1, request["calls"] + 1):
            due = start + number * period
            while (left := due - clock()) > 0:
                if left > _AWAKE_NS:
                    sleep((left - _AWAKE_NS) * 1e-9)
            call()
            found.append(clock() - due)
        return {"ns": found}


def _calibrated(call: Call) -> int:
    """Warm up and return the number of calls in a sample."""
    calls, spent = 1, 0.0
    while True:
        each = min(_sample(call, calls) for _ in range(3))
        spent += 3 * each * calls
        if spent >= WARM_UP_NS:
            return max(1, round(SAMPLE_NS / each))
        calls = max(1, min(2 * calls, round(SAMPLE_NS / each)))


def _sample(call: Call, calls: int) -> float:
    """Nanoseconds a call, as the mean of one sample."""
    start = clock()
    for _ in itertools.repeat(None, calls):
        call()
    return (clock() - start) / calls


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main(engine: str, cores: str) -> None:
    """Answer requests until there are no more, on those cores, with libraries' prints on stderr."""
    chosen = {int(core) for core in cores.split(",")}
    os.sched_setaffinity(0, chosen)  # before any library starts its threads
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # This file's folder holds modules with names that a library may use for its own.
    own = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != own]
    worker = PeerWorker(engine, len(chosen))
    for request in _requests():
        try:
            reply = worker.answer(request)
        except Exception as error:  # of any type: the other peers are still measured
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
