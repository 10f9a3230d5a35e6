"""Values and gradients of the Triton kernels equal those of PyTorch. Without a GPU, they run in the interpreter."""

import shutil

import pytest
import torch
from torch import Tensor, nn

from regard.attention.kv_cache import CacheIndirection, LayerCache
from regard.config import resolve
from regard.data.batching import Batch, pad
from regard.data.tokens.tokenizers import END
from regard.errors import ConfigError
from regard.models.seq2seq import build_model
from regard.ops import triton
from regard.ops.layers import LayerNorm
from regard.ops.reference_mode import reference_mode
from regard.runs.settings import Consistency, NoConsistency, RDrop, SimCut
from regard.training.objective import Objective, flatten_with_ignore_index
from tests_shared import ModelOnly, make_distillation

pytest.importorskip("triton")

from regard.ops.attention import reference_additive_scores
from regard.ops.triton import additive, selection, step_attention
from regard.ops.triton.losses import consistency_loss, cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random_tensor(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(DEVICE).requires_grad_()


def output_and_gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Return the output, and the gradients of a weighted sum of its elements."""
    weights = torch.arange(output.numel(), device=output.device).view_as(output).sin()
    return [output.detach(), *torch.autograd.grad((output.float() * weights).sum(), inputs)]


def assert_all_close(actual: list[Tensor], expected: list[Tensor], rtol: float, atol: float) -> None:
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=rtol, atol=atol)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("training", [True, False])
def test_layer_norm_casts_its_output_to_the_autocast_dtype(device: str, training: bool) -> None:
    casting, other = (LayerNorm(64, autocast_output=cast).to(device).train(training) for cast in (True, False))
    x = torch.randn(3, 5, 64, device=device)
    assert casting(x).dtype == torch.float32
    with torch.autocast(device, torch.bfloat16):
        half, full = casting(x), other(x)
    assert (half.dtype, full.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(half.float(), nn.functional.layer_norm(x, (64,)), rtol=0, atol=0.02)
    torch.testing.assert_close(full, nn.functional.layer_norm(x, (64,)), rtol=1e-5, atol=1e-5)


def test_layer_norm_does_not_cast_float64() -> None:
    norm = LayerNorm(8, autocast_output=True).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(torch.randn(2, 8, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("consistency", "teachers"),
    [(NoConsistency(), 0), (RDrop(), 0), (SimCut(cut=0.5), 0), (NoConsistency(), 1), (NoConsistency(), 2)],
    ids=["no consistency", "r-drop", "simcut", "one teacher", "two teachers"],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_training_loss_with_kernels_equals_the_reference(
    smoothing: float, consistency: Consistency, teachers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    settings = resolve(ModelOnly, {"model": {"kind": "recurrent", "embedding": 6, "dropout": 0.3}}, {})
    model, *others = (build_model(settings.model, 9, 9).to(DEVICE) for _ in range(1 + teachers))
    taught = make_distillation(*others) if others else None
    source, target = (pad(rows).to(torch.device(DEVICE)) for rows in ([[4, 5], [6]], [[5, 6, END], [7, END]]))
    batch = Batch(source, target, [0, 1], 5)
    parameters = list(model.parameters())

    def loss_and_gradients() -> list[Tensor]:
        torch.manual_seed(0)
        loss = Objective(smoothing, consistency=consistency, distillation=taught)(model, batch)
        return [loss.detach(), *torch.autograd.grad(loss, parameters, materialize_grads=True)]

    monkeypatch.setattr("regard.training.objective.select_tokens", flatten_with_ignore_index)
    expected = loss_and_gradients()
    checked = _enable_kernels(monkeypatch)
    assert_all_close(loss_and_gradients(), expected, rtol=1e-4, atol=1e-5)
    assert checked


def _enable_kernels(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Use the kernels everywhere, except in recurrent steps → the tensors for which they were used."""
    checked: list[Tensor] = []

    def is_usable(x: Tensor) -> bool:
        checked.append(x)
        return True

    monkeypatch.setattr("regard.ops.triton.is_usable", is_usable)
    return checked


@pytest.mark.parametrize(
    ("queries", "slots", "width"), [(1, 7, 70), (5, 33, 16), (17, 21, 19)], ids=["one", "few", "many"]
)
def test_additive_scores_equal_the_reference(queries: int, slots: int, width: int) -> None:
    rows, heads = 2, 2
    query = random_tensor(rows, queries, heads, width, seed=0).transpose(1, 2)
    keys, v = random_tensor(rows, heads, slots, width, seed=1), random_tensor(heads, width, seed=2)
    inputs = [query, keys, v]
    actual = output_and_gradients(additive.additive_scores(query, keys, v), inputs)
    expected = output_and_gradients(reference_additive_scores(query, keys, v), inputs)
    assert_all_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_additive_scores_in_half_precision_are_computed_in_float32() -> None:
    query, keys = (random_tensor(1, 1, 20, 64, seed=seed).detach().half().requires_grad_() for seed in (0, 1))
    v = random_tensor(1, 64, seed=2)  # a parameter under autocast
    actual = output_and_gradients(additive.additive_scores(query, keys, v), [query, keys, v])
    expected = output_and_gradients(reference_additive_scores(query.float(), keys.float(), v), [query, keys, v])
    assert [tensor.dtype for tensor in actual] == [torch.float16, torch.float16, torch.float16, torch.float32]
    assert_all_close([tensor.float() for tensor in actual], [tensor.float() for tensor in expected], 2e-2, 2e-2)


def test_the_kernel_of_additive_scores_is_used_for_long_sequences() -> None:
    long, short = torch.empty(4, 2, 512, 8, device="meta"), torch.empty(400, 2, 63, 8, device="meta")
    assert additive.has_enough_tiles(long, long)
    assert not additive.has_enough_tiles(long[:, :1], long[:, :1])
    assert not additive.has_enough_tiles(short, short)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "size"), [(1, 3), (5, 100), (4, 4096), (3, 9001)])
def test_cross_entropy_equals_torch(rows: int, size: int, smoothing: float) -> None:
    logits = random_tensor(rows, size, scale=8.0)
    targets = torch.arange(rows, device=DEVICE) * 7919 % size
    targets[0] = -100 if rows > 1 else targets[0]
    actual = output_and_gradients(cross_entropy(logits, targets, smoothing, -100), [logits])
    reference = nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    expected = output_and_gradients(reference, [logits])
    assert_all_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_cross_entropy_of_float16_logits_is_computed_in_float32() -> None:
    logits = random_tensor(3, 50, scale=30.0).detach().half().requires_grad_()
    targets = torch.tensor([0, 10, 49], device=DEVICE)
    actual = cross_entropy(logits, targets, 0.1, -100)
    assert actual.dtype == torch.float32
    expected = nn.functional.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(actual.sum(), logits)[0].dtype == torch.float16


TermWeights = tuple[float, float, float, float]


def reference_consistency_loss(
    first: Tensor, second: Tensor, targets: Tensor, weights: TermWeights, smoothing: float
) -> Tensor:
    """Return the loss of each row."""
    z, w = first.float(), second.float()
    p, q = z.log_softmax(-1), w.log_softmax(-1)
    counted = targets >= 0
    ce_p, ce_q = (nn.functional.cross_entropy(x, targets, reduction="none", label_smoothing=smoothing) for x in (z, w))
    kl_pq, kl_qp = (p.exp() * (p - q)).sum(-1) * counted, (q.exp() * (q - p)).sum(-1) * counted
    return sum(weight * term for weight, term in zip(weights, (ce_p, ce_q, kl_pq, kl_qp), strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("weights", [(0.5, 0.5, 0.7, 0.7), (1.0, 0.0, 3.0, 0.0), (0.2, 0.4, 0.6, 0.8)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "size"), [(1, 3), (5, 100), (4, 2048), (3, 4801)])
def test_consistency_loss_equals_the_reference(rows: int, size: int, smoothing: float, weights: TermWeights) -> None:
    first, second = random_tensor(rows, size, scale=4.0), random_tensor(rows, size, seed=1, scale=4.0)
    targets = torch.arange(rows, device=DEVICE) * 7919 % size
    targets[0] = -100 if rows > 1 else targets[0]
    actual = output_and_gradients(consistency_loss(first, second, targets, weights, smoothing, -100), [first, second])
    reference = reference_consistency_loss(first, second, targets, weights, smoothing)
    assert_all_close(actual, output_and_gradients(reference, [first, second]), rtol=1e-4, atol=2e-5)


def test_consistency_loss_of_float16_logits_is_computed_in_float32() -> None:
    first, second = (random_tensor(3, 50, seed=seed, scale=20.0).detach().half().requires_grad_() for seed in (0, 1))
    targets, weights = torch.tensor([0, 10, 49], device=DEVICE), (0.5, 0.5, 0.3, 0.2)
    actual = consistency_loss(first, second, targets, weights, 0.1, -100)
    assert actual.dtype == torch.float32
    expected = reference_consistency_loss(first, second, targets, weights, 0.1)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert [grad.dtype for grad in torch.autograd.grad(actual.sum(), [first, second])] == [torch.float16] * 2


def test_consistency_loss_ignores_tokens_that_are_impossible_in_both_passes() -> None:
    first, second = (
        torch.tensor([[logit, -torch.inf, 1.5, -torch.inf]], device=DEVICE, requires_grad=True) for logit in (0.5, 0.7)
    )
    loss = consistency_loss(first, second, torch.tensor([2], device=DEVICE), (1, 1, 1, 1), 0.0, -100)
    actual = output_and_gradients(loss, [first, second])
    possible = [x.detach()[:, ::2].requires_grad_() for x in (first, second)]
    targets = torch.tensor([1], device=DEVICE)
    reference = reference_consistency_loss(possible[0], possible[1], targets, (1, 1, 1, 1), 0.0)
    expected = output_and_gradients(reference, possible)
    torch.testing.assert_close(actual[0], expected[0])
    for gradient, expected_gradient in zip(actual[1:], expected[1:], strict=True):
        torch.testing.assert_close(gradient[:, ::2], expected_gradient)
        assert not gradient[:, 1::2].any()


def test_consistency_loss_of_nan_is_nan() -> None:
    first, second = random_tensor(1, 3), torch.tensor([[0.5, torch.nan, 1.5]], device=DEVICE)
    assert consistency_loss(first, second, torch.tensor([2], device=DEVICE), (1, 0, 1, 0), 0.0, -100).isnan().all()


def test_cross_entropy_without_smoothing_ignores_impossible_tokens() -> None:
    logits = torch.tensor([[0.5, -torch.inf, 1.5, -torch.inf]], device=DEVICE, requires_grad=True)
    targets = torch.tensor([2], device=DEVICE)
    actual = output_and_gradients(cross_entropy(logits, targets, 0.0, -100), [logits])
    expected = output_and_gradients(nn.functional.cross_entropy(logits, targets, reduction="none"), [logits])
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference)


def test_cross_entropy_of_nan_is_nan() -> None:
    logits = torch.tensor([[0.5, torch.nan, 1.5]], device=DEVICE)
    assert cross_entropy(logits, torch.tensor([2], device=DEVICE), 0.0, -100).isnan().all()


@pytest.mark.parametrize("kernel", ["cross_entropy", "consistency_loss"])
def test_double_backward_raises_with_the_remedy(kernel: str) -> None:
    x = random_tensor(2, 8)
    targets = torch.tensor([1, 2], device=DEVICE)
    outputs = {
        "cross_entropy": lambda: cross_entropy(x, targets, 0.1, -100),
        "consistency_loss": lambda: consistency_loss(x, x, targets, (1, 1, 1, 1), 0.1, -100),
    }
    output = outputs[kernel]()
    with pytest.raises(ConfigError, match="reference_mode"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


def test_unsupported_kernels_give_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton.unsupported_reason(torch.ones(2)) == "it needs a GPU"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("CC", raising=False)
    triton.triton_unsupported_reason.cache_clear()
    try:
        assert triton.triton_unsupported_reason() == "Triton needs a C compiler, and none was found"
    finally:
        triton.triton_unsupported_reason.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a GPU")
def test_kernels_are_used_on_a_gpu_except_in_reference_mode() -> None:
    x = torch.ones(2, device="cuda")
    assert triton.is_usable(x)
    assert not triton.is_usable(x.double())
    with reference_mode():
        assert triton.unsupported_reason(x) == "reference mode is on"


@pytest.mark.parametrize(("width", "value_width"), [(24, 40), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_step_attention_to_a_memory_equals_torch(width: int, value_width: int, dtype: torch.dtype) -> None:
    query_BKHD, keys_BSHD = random_tensor(3, 5, 2, width), random_tensor(3, 70, 2, width, seed=1)
    values_BSHE = random_tensor(3, 70, 2, value_width, seed=2)
    query, keys, values = (part.detach().to(dtype).transpose(1, 2) for part in (query_BKHD, keys_BSHD, values_BSHE))
    bias_BS = torch.zeros(3, 70, device=DEVICE)
    bias_BS[0, 4:], bias_BS[1, :66] = -torch.inf, -torch.inf
    actual = step_attention.attend_to_memory(query, keys, values, bias_BS, 0.3)
    expected = nn.functional.scaled_dot_product_attention(
        query.float(), keys.float(), values.float(), bias_BS[:, None, None], scale=0.3
    )
    assert actual.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("step", [0, 5, 66])
def test_step_attention_to_a_cache_reads_the_slots_of_each_hypothesis(step: int) -> None:
    sentences, heads, block, width, capacity = 3, 2, 5, 24, 70
    rows = sentences * block
    query_NHD, new_keys_NHD, new_values_NHD = (random_tensor(rows, heads, width, seed=i).detach() for i in range(3))
    shape = sentences, heads, capacity * block, width
    layer = LayerCache(torch.full(shape, torch.nan, device=DEVICE), torch.full(shape, torch.nan, device=DEVICE))
    for seed, cached in enumerate(layer):  # later slots are not yet written
        cached[:, :, : step * block] = random_tensor(sentences, heads, step * block, width, seed=seed).detach()
    origin_NC = torch.randint(0, block, (rows, capacity), device=DEVICE)
    origin_NC[:, step] = torch.arange(rows, device=DEVICE) % block
    expected_cache, _ = CacheIndirection(origin_NC[:, : step + 1], block).write(
        LayerCache(*(cached.clone() for cached in layer)), new_keys_NHD.unsqueeze(2), new_values_NHD.unsqueeze(2)
    )
    gathered = CacheIndirection(origin_NC[:, : step + 1], block).gather_rows(expected_cache)
    expected_NH1D = nn.functional.scaled_dot_product_attention(query_NHD.unsqueeze(2), *gathered, scale=0.3)
    query_BHKD = query_NHD.view(sentences, block, heads, width).transpose(1, 2)
    current = torch.tensor([step], device=DEVICE)
    actual_BHKD = step_attention.attend_to_cache(
        query_BHKD, *layer, origin_NC, current, new_keys_NHD, new_values_NHD, 0.3
    )
    actual_NHD = actual_BHKD.transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(actual_NHD, expected_NH1D.squeeze(2), rtol=1e-5, atol=1e-5)
    for cached, expected in zip(layer, expected_cache, strict=True):
        torch.testing.assert_close(cached, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(("vocabulary", "count"), [(7, 7), (50, 10), (1300, 4), (5000, 16)])
def test_top_indices_are_those_of_the_largest_values(vocabulary: int, count: int) -> None:
    values_NV = random_tensor(5, vocabulary).detach()
    values_NV[1], values_NV[1, 3] = -torch.inf, 1.0
    values_NV[2, :6] = 5.0
    values_NV[3] = values_NV[3].round()
    indices_NC = selection.top_indices(values_NV, count)
    torch.testing.assert_close(values_NV.gather(1, indices_NC), values_NV.topk(count).values, rtol=0, atol=0)
    assert all(len(set(indices)) == count for indices in indices_NC.tolist())


def test_top_indices_of_nan_are_valid() -> None:
    indices_NC = selection.top_indices(torch.full((2, 1100), torch.nan, device=DEVICE), 4)
    assert all(len(set(indices)) == 4 and max(indices) < 1100 for indices in indices_NC.tolist())


@pytest.mark.parametrize("vocabulary", [5, 4096, 9001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_softmax_equals_torch(vocabulary: int, dtype: torch.dtype) -> None:
    logits_NV = random_tensor(3, vocabulary, scale=8.0).detach().to(dtype)
    logits_NV[0, 2], logits_NV[1, 3] = -torch.inf, torch.nan
    expected_NV = logits_NV.float().log_softmax(-1)
    torch.testing.assert_close(selection.log_softmax(logits_NV), expected_NV, rtol=1e-5, atol=1e-5, equal_nan=True)
