"""The Triton kernels compile for a GPU, even on a machine without one. The interpreter would accept more."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from regard.ops.triton import additive, attention, linear, losses, norms
from regard.ops.triton import partial_sums, rotary, selection, step_attention
from regard.recurrent.fast import triton_gru, triton_launch, triton_lstm, triton_rnn, triton_step
from regard.recurrent.settings import VARIANTS

SIZES = {
    "cell_0", "row_groups", "A", "X", "Y", "x_stride", "y_stride",
    "T", "N", "B", "H", "programs", "ignore_index", "a_row", "slots", "hypotheses", "heads",
    "query_b", "query_h", "query_k", "keys_b", "keys_h", "keys_s", "values_b", "values_h", "values_s",
    "bias_b", "origin_n", "new_keys_n", "new_keys_h", "new_values_n", "new_values_h", "P", "S", "dropped",
    "logits_n", "values_n", "row_stride", "step_stride",
}
SIZES |= {f"{name}_{axis}" for name in ("q", "k", "v", "c", "dq", "dk", "dv", "bias", "nonempty") for axis in "bhts"}
KINDS = {
    **dict.fromkeys(("scales", "sums"), "*fp32"),
    "counters": "*i32", "d_cell": "*fp32", "carry": "*fp32", "targets": "*i64", "smoothing": "fp32",
    **dict.fromkeys(("losses", "log_sums", "d_losses", "statistics", "partial", "weight"), "*fp32"),
    **dict.fromkeys(("scale", "dropout", "factor", "eps", "direction", "log_base"), "fp32"),
    "nonempty": "*i1", "seeds": "*i64",
}


def compile_for_gpu(kernel, element, constants, kinds=KINDS, **options):
    signature = {
        p.name: "constexpr" if p.name in constants else "i32" if p.name in SIZES else kinds.get(p.name, element)
        for p in kernel.params
    }
    source = ASTSource(kernel, signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, **options})
    assert len(compiled.asm["cubin"]) > 1000
    return compiled


def compile_cell(kernel, element, slices, products, **constants):
    # 512 units with half precision, for which the weights stay in shared memory; 300 with float32.
    size, units = (512, 16) if element == "*bf16" else (300, 8)
    chunks = {name: triton_launch.count_chunks(width * size, slices) for name, width in products.items()}
    constants |= {"SLICES": slices, "GROUP": 2, "RESIDENT": element == "*bf16", "UNITS": units, "PRECISION": "tf32"}
    compiled = compile_for_gpu(kernel, element, constants | chunks, num_stages=1, launch_cooperative_grid=True)
    assert compiled.metadata.shared <= triton_launch.SHARED_BYTES


form = triton_lstm._constants(VARIANTS["FGR"])
flags = {"HAS_MASK": True, "NORM": False}
compile_cell(triton_lstm._forward, "*fp32", 1, {"CHUNKS": 1, "GATE_CHUNKS": 3}, RAGGED=True, **flags, **form)
compile_cell(triton_lstm._backward, "*fp32", 1, {"CHUNKS": 4}, HAS_C=True, HAS_G=True, **flags, **form)
form = triton_lstm._constants(VARIANTS["vanilla"])
flags = {"HAS_MASK": False, "NORM": True}
compile_cell(triton_lstm._forward, "*bf16", 1, {"CHUNKS": 1, "GATE_CHUNKS": 0}, RAGGED=False, **flags, **form)
compile_cell(triton_lstm._backward, "*bf16", 4, {"CHUNKS": 4}, HAS_C=False, HAS_G=False, **flags, **form)
compile_cell(triton_gru._forward_after, "*bf16", 1, {"CHUNKS": 1}, HAS_MASK=False)
compile_cell(triton_gru._backward_after, "*fp32", 4, {"CHUNKS": 3}, HAS_MASK=True)
compile_cell(triton_gru._forward_before, "*fp32", 1, {"CHUNKS": 1}, HAS_MASK=True)
compile_cell(triton_gru._backward_before, "*bf16", 4, {"CHUNKS": 2, "N_CHUNKS": 1}, HAS_MASK=False)
compile_cell(triton_rnn._forward, "*bf16", 4, {"CHUNKS": 1}, TANH=True, HAS_MASK=False, RAGGED=False)
compile_cell(triton_rnn._backward, "*fp32", 4, {"CHUNKS": 1}, TANH=False, HAS_MASK=True)
for element in ("*fp32", "*bf16"):
    approximate = {"APPROXIMATE": element == "*bf16"}
    compile_for_gpu(additive._forward, element, {"QUERIES": 64, "SLOTS": 64, **approximate})
    sizes = {"OWN": 16, "WIDTH": 64, "HAS_V": True, **approximate}
    compile_for_gpu(additive._backward, element, sizes, KINDS | {"d_v": "*fp32"})
for kernel in ("gru_forward", "gru_backward", "lstm_forward", "lstm_backward"):
    for element in ("*fp32", "*bf16"):
        compile_for_gpu(getattr(triton_step, f"_{kernel}"), element, {"H": 320, "BLOCK": triton_step.BLOCK})
for size in (256, 1000):
    compile_for_gpu(losses._cross_entropy_forward, "*bf16", {"V": 10 * size, "BLOCK": losses.BLOCK})
    compile_for_gpu(losses._cross_entropy_backward, "*fp32", {"V": 10 * size, "BLOCK": losses.BLOCK})
    both = {"V": 10 * size, "BLOCK": losses.PAIR_BLOCK}
    kinds = KINDS | dict.fromkeys("abcd", "fp32")
    compile_for_gpu(losses._consistency_forward, "*bf16", both, kinds, num_warps=losses.PAIR_WARPS)
    compile_for_gpu(losses._consistency_backward, "*fp32", both, kinds, num_warps=losses.PAIR_WARPS)
for element in ("*fp32", "*bf16"):
    kinds = KINDS | {"log_p": "*fp32", "indices": "*i64", "logits_n": "i32", "values_n": "i32"}
    compile_for_gpu(selection._log_softmax, element, {"V": 32000, "BLOCK": selection.BLOCK}, kinds)
    sizes = {"V": 32000, "C": 10, "LANES": selection.LANES, "BLOCK_L": 16, "BLOCK_C": 16}
    compile_for_gpu(selection._top, element, sizes, kinds)
    for cached in (False, True):
        sizes = {"D": 48, "E": 48, "BLOCK_D": 64, "BLOCK_E": 64, "BLOCK_S": 32}
        kinds = KINDS | {"origin": "*i64", "step": "*i64", "scale": "fp32"}
        flags = {"HAS_BIAS": not cached, "IS_CACHE": cached}
        compile_for_gpu(step_attention._attend, element, sizes | flags, kinds)
for block, warps in attention.NUM_WARPS.items():
    masks = {"HAS_BIAS": True, "BIAS_PER_QUERY": block > 16, "HAS_NONEMPTY": True, "HAS_DROPOUT": True}
    sizes = {"H": 8, "D": 64, "E": 64, "BLOCK": block, "WIDTH": 64, "PRECISION": "tf32"}
    for kernel in (attention._attention_forward, attention._attention_backward):
        compile_for_gpu(kernel, "*bf16", sizes | masks, num_warps=warps)
rows = {"D": 500, "BLOCK": 512, "ROWS": 8}
for kernel in (norms._add_norm_forward, norms._add_norm_backward):
    compile_for_gpu(kernel, "*bf16", rows | {"HAS_UPDATE": True, "HAS_DROPOUT": True})
compile_for_gpu(norms._add_dropout, "*bf16", rows | {"HAS_RESIDUAL": True})
tile = {"E": 2048, "ROWS": linear.ROWS, "COLUMNS": linear.COLUMNS}
compile_for_gpu(linear._bias_gradient, "*bf16", tile | {"RELU": True})
compile_for_gpu(partial_sums._sum_rows, "*bf16", tile)
for kind, loads in (("i32", False), ("*i64", True)):
    tile = {"D": 64, "E": 512, "BLOCK": 512, "ROWS": 8, "LOADS_START": loads}
    compile_for_gpu(rotary._rotate, "*bf16", tile, KINDS | {"start": kind})
"""


@pytest.mark.slow
def test_kernels_compile_for_a_gpu() -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
