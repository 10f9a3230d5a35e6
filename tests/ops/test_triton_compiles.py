"""The Triton kernels compile for a GPU, even on a machine without one. The interpreter would accept more."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from regard.ops.triton import losses, step_attention
from regard.recurrent.fast import triton_gru, triton_lstm, triton_step
from regard.recurrent.settings import VARIANTS

SIZES = {
    "group_0", "T", "N", "B", "H", "programs", "ignore_index", "a_row", "slots", "hypotheses", "heads",
    "query_b", "query_h", "query_k", "keys_b", "keys_h", "keys_s", "values_b", "values_h", "values_s",
    "bias_b", "origin_n",
}
KINDS = {
    "counters": "*i32", "d_cell": "*fp32", "carry": "*fp32", "targets": "*i64", "smoothing": "fp32",
    **dict.fromkeys(("losses", "log_sums", "d_losses", "statistics"), "*fp32"),
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


def compile_cell(kernel, element, **constants):
    constants |= {"ROWS": 16, "UNITS": 16, "BLOCK_K": 64, "PRECISION": "tf32"}
    compiled = compile_for_gpu(kernel, element, constants, num_stages=3, launch_cooperative_grid=True)
    # Two programs of 16 rows must fit on one multiprocessor.
    assert compiled.metadata.shared <= 113 * 1024


form = triton_lstm._constants(VARIANTS["FGR"])
compile_cell(triton_lstm._forward, "*fp32", HAS_MASK=True, RAGGED=True, **form)
compile_cell(triton_lstm._backward, "*bf16", HAS_MASK=True, HAS_C=True, HAS_G=True, **form)
compile_cell(triton_gru._forward, "*bf16", HAS_MASK=False)
compile_cell(triton_gru._backward, "*fp32", HAS_MASK=True)
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
    for cached in (False, True):
        sizes = {"D": 48, "E": 48, "BLOCK_D": 64, "BLOCK_E": 64, "BLOCK_S": 64}
        kinds = KINDS | {"origin": "*i64", "last_step": "*i64", "scale": "fp32"}
        flags = {"HAS_BIAS": not cached, "HAS_ORIGIN": cached}
        compile_for_gpu(step_attention._attend, element, sizes | flags, kinds)
"""


@pytest.mark.slow
def test_kernels_compile_for_a_gpu() -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
