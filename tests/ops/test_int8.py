"""Products in int8: a worked example, the error bound, independence of rows, and what is not computed in int8.

M rows, K inputs, N outputs.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.ops import int8
from regard.ops.int8 import (
    Int8Product,
    Int8Weight,
    find_int8_obstacle,
    has_int8_weights,
    quantize_weights,
    quantized_copy,
    restore_weights,
)

pytest.importorskip("onnxruntime", reason="pip install 'regard[export]'")
pytest.importorskip("onnx", reason="pip install 'regard[export]'")


@pytest.fixture(autouse=True)
def _all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute products of all sizes in int8."""
    monkeypatch.setattr(int8, "MIN_SIZE", 1)


def test_a_product_computed_by_hand() -> None:
    # Scales 0.01 and 0.03 of the rows of W, 0.02 of x: q_w = (127, −64), (−21, 127), q_x = (127, 50.3 → 50).
    weight = torch.tensor([[1.27, -0.64], [-0.63, 3.81]])
    x = torch.tensor([[2.54, 1.006]])
    expected = [[0.02 * 0.01 * (127 * 127 - 64 * 50), 0.02 * 0.03 * (-21 * 127 + 127 * 50)]]
    torch.testing.assert_close(Int8Product(weight)(x, None), torch.tensor(expected))
    bias = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(Int8Product(weight)(x, bias), torch.tensor(expected) + bias)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 1, 1), (1, 64, 5), (7, 33, 130), (130, 257, 3)])
def test_the_error_is_within_its_bound(rows: int, inputs: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inputs, generator=generator) * 10 ** torch.randn(rows, 1, generator=generator)
    weight = torch.randn(outputs, inputs, generator=generator) * 10 ** torch.randn(outputs, 1, generator=generator)
    exact_MN = x.double() @ weight.double().t()
    x_scale_M1, weight_scale_N = x.double().abs().amax(1, keepdim=True) / 127, weight.double().abs().amax(1) / 127
    bound_MN = (
        weight_scale_N * x.double().abs().sum(1, keepdim=True) / 2
        + x_scale_M1 * weight.double().abs().sum(1) / 2
        + inputs * x_scale_M1 * weight_scale_N / 4
    )
    error_MN = (Int8Product(weight)(x, None).double() - exact_MN).abs()
    assert (error_MN <= bound_MN * (1 + 1e-5)).all()


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    product = Int8Product(torch.randn(40, 24))
    x = torch.randn(9, 24) * torch.logspace(-3, 3, 9).unsqueeze(1)
    batched = product(x, None)
    for row in range(9):
        assert torch.equal(product(x[row : row + 1], None)[0], batched[row])


def test_zeros_stay_zero_and_values_that_are_not_finite_are_not_hidden() -> None:
    product = Int8Product(torch.randn(5, 3))
    assert (product(torch.zeros(2, 3), None) == 0).all()
    for value in (torch.nan, torch.inf):
        assert not torch.isfinite(product(torch.tensor([[1.0, value, 0.0]]), None)).any()
    assert product(torch.zeros(0, 3), None).shape == (0, 5)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w: nn.functional.linear(x, w),
    "linear with a bias": lambda x, w: nn.functional.linear(x, w, torch.ones(12)),
    "linear with three axes": lambda x, w: nn.functional.linear(x.unsqueeze(1), w),
    "@": lambda x, w: x @ w.t(),
    "matmul": lambda x, w: torch.matmul(x, w.transpose(0, 1)),
    "addmm": lambda x, w: torch.addmm(torch.ones(4, 12), x, w.t()),
    "first columns": lambda x, w: nn.functional.linear(x[:, :3], w[:, :3]),
    "last columns": lambda x, w: torch.addmm(torch.ones(4, 12), x[:, -2:], w[:, -2:].t()),
    "some rows": lambda x, w: x @ w[4:8].t(),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_slices_and_transposes_are_computed_in_int8(name: str) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(12, 8), torch.randn(4, 8)
    expected, actual = PRODUCTS[name](x, weight), PRODUCTS[name](x, Int8Weight(weight))
    assert type(actual) is Tensor
    torch.testing.assert_close(actual, expected, atol=0.2, rtol=0)
    assert not torch.equal(actual, expected)


def test_operations_other_than_products_use_the_float32_values() -> None:
    weight, index = torch.randn(12, 8), torch.tensor([[3, 1]])
    quantized = Int8Weight(weight)
    assert torch.equal(nn.functional.embedding(index, quantized), nn.functional.embedding(index, weight))
    assert torch.equal(quantized * 2, weight * 2)
    assert torch.equal(torch.stack([quantized, quantized]), torch.stack([weight, weight]))
    assert torch.equal(quantized @ torch.ones(8), weight @ torch.ones(8))


def test_small_weights_stay_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "MIN_SIZE", 12 * 8 + 1)
    weight, x = torch.randn(12, 8), torch.randn(4, 8)
    assert torch.equal(nn.functional.linear(x, Int8Weight(weight)), nn.functional.linear(x, weight))


def test_quantizing_is_undone_exactly_and_keeps_shared_weights_shared() -> None:
    embedding, output = nn.Embedding(12, 8), nn.Linear(8, 12)
    output.weight = embedding.weight
    model = nn.ModuleList([embedding, output])
    x = torch.randn(4, 8)
    with torch.inference_mode():
        before = output(x)
        quantize_weights(model)
        assert has_int8_weights(model)
        assert output.weight is embedding.weight
        copied = copy.deepcopy(model)
        assert torch.equal(copied[1](x), output(x))
        assert not torch.equal(output(x), before)
        stored = model.state_dict()["1.weight"]
        restore_weights(model)
        assert not has_int8_weights(model)
        assert output.weight is embedding.weight
        assert torch.equal(output(x), before)
        assert torch.equal(stored, output.weight)


def test_gradients_are_rejected() -> None:
    model = nn.Linear(8, 12)
    quantize_weights(model)
    with pytest.raises(ConfigError, match="An int8 model has no gradients"):
        model(torch.randn(4, 8, requires_grad=True))


def test_a_copy_shares_the_values_of_its_model() -> None:
    model = nn.Linear(8, 12)
    copied = quantized_copy(model)
    assert has_int8_weights(copied)
    assert not has_int8_weights(model)
    assert copied.weight.data_ptr() == model.weight.data_ptr()


def test_a_gpu_another_dtype_and_a_missing_package_are_obstacles(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert find_int8_obstacle(cpu) is None
    obstacle = find_int8_obstacle(torch.device("cuda:1"))
    assert obstacle == "int8 is computed on a CPU only, and the model is on cuda:1."
    obstacle = find_int8_obstacle(cpu, torch.bfloat16)
    assert obstacle == "int8 requires a float32 model, and the dtype is torch.bfloat16."
    monkeypatch.setattr(int8, "find_spec", lambda package: None if package == "onnxruntime" else object())
    assert find_int8_obstacle(cpu) == "int8 requires onnxruntime. Run pip install 'regard[export]'."
