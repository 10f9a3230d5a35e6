"""Matrix products in int8, for prediction on a CPU.

A weight matrix is quantized once, and the input of a product at each call. Each row has a scale:

    s_w = max |w| / 127,  w ≈ s_w q_w          a row w of the weights: one output
    s_x = max |x| / 127,  x ≈ s_x q_x          a row x of the input
    x · w ≈ s_x s_w (q_x · q_w)                |error| ≤ ½ s_w Σ|x| + ½ s_x Σ|w| + ¼ K s_x s_w

The sum of integers q_x · q_w is exact, so the result of a row does not depend on the other rows of its batch.

ONNX Runtime quantizes x and computes q_x · q_w. The int8 products of torch are slower than its float32 products on ARM,
and its quantized tensors are deprecated (docs/performance/on-a-cpu.md).

M rows, K inputs, N outputs of a product.
"""

import copy
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import ConfigError

Module = TypeVar("Module", bound=nn.Module)

MIN_SIZE = 1 << 17
"""The number of elements of a weight matrix below which quantizing the input takes longer than int8 saves."""

_MAX_LEVEL, _ZERO_POINT = 127, 128
"""Quantized values are −127 … 127, stored as 1 … 255: products of unsigned integers are fast on all CPUs."""

_TINY = 1e-30
"""The smallest maximum of a row. With it, a row of zeros has a positive scale."""

_PACKAGES = ("onnx", "onnxruntime")


def find_int8_obstacle(device: torch.device, dtype: torch.dtype = torch.float32) -> str | None:
    """Return why the products of a model cannot be computed in int8; None if they can."""
    if device.type != "cpu":
        return f"int8 is computed on a CPU only, and the model is on {device}."
    if dtype != torch.float32:
        return f"int8 requires a float32 model, and the dtype is {dtype}."
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    return f"int8 requires {' and '.join(missing)}. Run pip install 'regard[export]'." if missing else None


def quantize_weights(model: nn.Module) -> None:
    """Compute the matrix products of a model with its weights in int8 from now on. Everything else stays float32."""

    def quantize(weight: nn.Parameter) -> nn.Parameter:
        is_matrix = weight.dim() == 2 or (weight.dim() == 3 and len(weight) == 1)  # a matrix, or one per head
        return Int8Weight(weight) if is_matrix and not isinstance(weight, Int8Weight) else weight

    _replace_parameters(model, quantize)


def quantized_copy(model: Module) -> Module:
    """Return a copy of a model with `quantize_weights`. It shares the parameters of the model."""
    copied = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    quantize_weights(copied)
    return copied


def restore_weights(model: nn.Module) -> None:
    """Undo `quantize_weights`."""
    _replace_parameters(
        model, lambda weight: nn.Parameter(weight.as_tensor()) if isinstance(weight, Int8Weight) else weight
    )


def has_int8_weights(model: nn.Module) -> bool:
    return any(isinstance(weight, Int8Weight) for weight in model.parameters())


def _replace_parameters(model: nn.Module, replace: Callable[[nn.Parameter], nn.Parameter]) -> None:
    """Replace the parameters of all modules. A parameter that several modules share is replaced once."""
    replaced: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight not in replaced:
                replaced[weight] = replace(weight)
            setattr(module, name, replaced[weight])


@final
class Int8Weight(nn.Parameter):
    """A float32 parameter whose matrix products are computed in int8. So are those of its slices and transposes.

    All other operations use the float32 values, and return ordinary tensors.
    """

    _products: "dict[tuple[Any, ...], Int8Product]"

    def __new__(cls, data: Tensor, requires_grad: bool = False) -> "Int8Weight":
        """The second parameter is that of `nn.Parameter`. There are no gradients."""
        del requires_grad
        weight: Int8Weight = torch.Tensor._make_subclass(cls, data.detach(), False)
        weight._products = {}
        return weight

    def as_tensor(self) -> Tensor:
        """Return the float32 values."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.detach()

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        with torch._C.DisableTorchFunctionSubclass():
            override = _OVERRIDES.get(func)
            result = None if override is None or kwargs else override(*args)
            return func(*args, **(kwargs or {})) if result is None else result

    def _view(self, tensor: Tensor) -> "Int8Weight":
        """Return a view of this weight. It shares the quantized matrices."""
        view = Int8Weight(tensor)
        view._products = self._products
        return view

    def _multiply(self, x: Tensor, weight_NK: Tensor, bias: Tensor | None) -> Tensor | None:
        """Return x Wᵀ + b for a view of this weight, or None if it is not computed in int8."""
        if weight_NK.dim() != 2 or weight_NK.numel() < MIN_SIZE or x.dim() < 2 or x.dtype != torch.float32:
            return None
        if x.requires_grad and torch.is_grad_enabled():
            raise ConfigError("An int8 model has no gradients. Load it in float32.")
        key = weight_NK.storage_offset(), weight_NK.shape, weight_NK.stride()
        if key not in self._products:
            self._products[key] = Int8Product(weight_NK)
        return self._products[key](x, bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    return weight._multiply(x, weight, bias) if isinstance(weight, Int8Weight) else None


def _matmul(x: Tensor, weight: Tensor) -> Tensor | None:
    return weight._multiply(x, weight.mT, None) if isinstance(weight, Int8Weight) and weight.dim() == 2 else None


def _addmm(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
    return weight._multiply(x, weight.mT, bias) if isinstance(weight, Int8Weight) else None


def _as_view(func: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    def override(weight: Tensor, *args: Any) -> Tensor | None:
        return weight._view(func(weight, *args)) if isinstance(weight, Int8Weight) else None

    return override


_OVERRIDES: Mapping[Callable[..., Any], Callable[..., Tensor | None]] = {
    nn.functional.linear: _linear,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    torch.addmm: _addmm,
    **{func: _as_view(func) for func in (Tensor.__getitem__, Tensor.t, Tensor.transpose)},
}


@final
class Int8Product:
    """x ↦ x Wᵀ + b, with W in int8. ONNX Runtime stores W in the layout of its kernels."""

    def __init__(self, weight_NK: Tensor) -> None:
        scale_N1 = weight_NK.abs().amax(1, keepdim=True).clamp_min_(_TINY) / _MAX_LEVEL
        quantized_NK = (weight_NK / scale_N1).round_().add_(_ZERO_POINT).to(torch.uint8)
        self._session = _build_session(quantized_NK.numpy(), scale_N1.squeeze(1).numpy())

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        [output] = self._session.run(["product"], {"x": x.flatten(0, -2).numpy()})
        y_MN = torch.from_numpy(output)
        return (y_MN if bias is None else y_MN.add_(bias)).view(*x.shape[:-1], y_MN.shape[1])


def _build_session(weight_NK: np.ndarray[Any, Any], scale_N: np.ndarray[Any, Any]) -> Any:
    """Return a session of ONNX Runtime that quantizes x and computes s_x s_w (q_x · q_w)."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    outputs, inputs = weight_NK.shape
    constants = {
        "weight": np.ascontiguousarray(weight_NK.T), "weight_scale": scale_N, "zero_point": np.uint8(_ZERO_POINT),
        "max_level": np.float32(_MAX_LEVEL), "tiny": np.float32(_TINY), "one": np.float32(1), "zero": np.float32(0),
        "axis": np.array([1]),
        "rounding": np.float32(_ZERO_POINT + 0.5),  # the conversion to an integer truncates
    }  # fmt: skip
    product = ["quantized", "weight", "one", "weight_scale", "zero_point", "zero_point"]
    nodes = [
        helper.make_node("Abs", ["x"], ["size"]),
        helper.make_node("ReduceMax", ["size", "axis"], ["largest"]),
        helper.make_node("Max", ["largest", "tiny"], ["positive"]),
        helper.make_node("Div", ["positive", "max_level"], ["finite_scale"]),
        # ReduceMax ignores NaN. The sum of a row with NaN or infinity, times 0, is NaN.
        helper.make_node("ReduceSum", ["size", "axis"], ["total"]),
        helper.make_node("Mul", ["total", "zero"], ["zero_or_nan"]),
        helper.make_node("Add", ["finite_scale", "zero_or_nan"], ["scale"]),
        helper.make_node("Div", ["x", "scale"], ["levels"]),
        helper.make_node("Add", ["levels", "rounding"], ["shifted"]),
        helper.make_node("Cast", ["shifted"], ["quantized"], to=TensorProto.UINT8),
        helper.make_node("MatMulIntegerToFloat", product, ["unscaled"], domain="com.microsoft"),
        helper.make_node("Mul", ["unscaled", "scale"], ["product"]),
    ]
    graph = helper.make_graph(
        nodes,
        "int8",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", inputs])],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT, ["M", outputs])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)], ir_version=8
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Threads that wait actively for the next product would slow down torch in between.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
