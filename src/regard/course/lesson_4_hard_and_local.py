# %% [markdown]
# # Lesson 4: Hard and local attention
#
# What changes if a model looks at one position, or at a window, instead of everywhere; and what attention costs.

# %% [markdown]
# ## The idea
#
# The softmax gives every position a weight above zero, even where nothing matters. This is **soft**, **global**
# attention. Two decisions can be made differently:
#
# - **How scores become weights.** Sparse functions set small weights to exactly zero. **Hard** attention puts the whole
#   weight on a single position.
# - **Which positions are visible.** **Local** attention sees only a window around a position $p$.
#
# There are two reasons to do this: weights are easier to read if most of them are zero, and with a window, the scores
# outside of it need not be computed. This work is the price of attention: a decoder of $T$ steps over an input of $S$
# positions computes $S \cdot T$ scores. A model with a fixed context reads the input once and writes the output once,
# with an amount of work that grows like $S + T$.

# %% [markdown]
# ## The equation
#
# Let $e_1, \dots, e_S$ be the scores of one query, and $a_j$ the weights.
#
# | attention | weights | from |
# |---|---|---|
# | soft | $a_j = \exp(e_j) \, / \sum_l \exp(e_l)$ | Bahdanau et al. 2015 |
# | sparsemax | the weights closest to the scores | Martins & Astudillo 2016 |
# | hard | $a_j = 1$ for one position $j$, drawn with the probabilities of soft attention | Xu et al. 2015 |
# | local | $a_j = \exp(e_j) \, / \sum_l \exp(e_l)$, with $l$ from $p - D$ to $p + D$, and 0 elsewhere | Luong et al. 2015 |
#
# The weights of sparsemax are at least 0 and sum to 1. "Closest" means: of all such weights, those with the least sum
# of squares $(a_1 - e_1)^2 + \dots + (a_S - e_S)^2$. $D$ is the size of the window to each side. Its center $p$ is
# either the number $t$ of the step (`local_m`, for *monotonic*: the input is read at the speed of the output), or it is
# predicted from the query (`local_p`).
#
# A drawn position has no gradient: a small change of the scores does not change it. Hard attention therefore needs
# another way to train, such as reinforcement learning (Xu et al.), and takes longer. Sparsemax and local attention have
# gradients and are trained as usual.

# %% [markdown]
# ## In Python
#
# First, the same eight scores with each kind of weights. If queries and keys have one number, and the query is 1, the
# dot product is the key. So we can choose the scores.

# %%
from timeit import repeat
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import regard

scores = torch.tensor([0.2, 1.0, 0.4, 1.6, 2.4, 2.0, 0.8, 0.0])
queries = torch.ones(1, 8, 1)  # the same query at eight steps

KINDS: dict[str, dict[str, Any]] = {
    "soft": {},
    "sparsemax": {"select": "sparsemax"},
    "hard": {"select": "hard"},
    "local, D = 1": {"scope": {"kind": "local_m", "window": 1}},
}
weights = {}
for name, options in KINDS.items():
    attention = regard.Attention(1, 1, score="dot", **options).eval()
    weights[name] = attention(queries, scores.view(1, 8, 1))[1][0, 4]  # step 5

# %% alt="Weights of eight positions: soft has no zeros, sparsemax two bars, hard one bar, local three bars."
figure, axes = plt.subplots(1, 4, figsize=(8, 2.6), sharey=True)
for panel, (name, row) in zip(axes, weights.items(), strict=True):
    panel.bar(range(1, 9), row.detach())
    panel.set(title=name, xlabel="position", ylim=(0, 1.05), xticks=[1, 3, 5, 7])
axes[0].set_ylabel("weight")
figure.tight_layout()
plt.show()

for name, row in weights.items():
    print(f"{name:13}", row.detach().numpy().round(2), f"sum {row.sum():.2f}")

# %% [markdown]
# At step 5, the window is centered on position 5, so positions 4 to 6 are visible. The weights always sum to 1: the
# softmax is computed over the visible positions only. When it predicts, as here, hard attention reads the most probable
# position instead of drawing one.

# %% [markdown]
# ### What a window cannot see
#
# The next model has only attention, as in lesson 3. It *copies* or *reverses* a string of 12 letters, and writes all
# positions at the same time. The query of an output position is a learned vector for its number. The vector of an
# input position, its key and its value, is the sum of a vector for its letter and a vector for its number.

# %%
LENGTH, LETTERS, SIZE = 12, 10, 32


class Writer(nn.Module):
    """Write a string with attention to the letters and numbers of another."""

    def __init__(self, scope: Any) -> None:
        super().__init__()
        self.output_number = nn.Embedding(LENGTH, SIZE)
        self.letter = nn.Embedding(LETTERS, SIZE)
        self.number = nn.Embedding(LENGTH, SIZE)
        self.attention = regard.Attention(SIZE, SIZE, score="general", scope=scope)
        self.answer = nn.Linear(SIZE, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        slots = self.letter(letters) + self.number.weight
        queries = self.output_number.weight.expand(len(letters), -1, -1)
        answer: Tensor = self.answer(self.attention(queries, slots)[0])
        return answer


def measure(task: str, scope: Any, steps: int = 300) -> Tensor:
    """Train a model, and return the share of correct letters at each position."""
    torch.manual_seed(0)
    model = Writer(scope)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps + 1):
        letters = torch.randint(LETTERS, (500 if step == steps else 64, LENGTH))
        answers = letters.flip(1) if task == "reverse" else letters
        predicted = model(letters)
        if step < steps:
            loss = nn.functional.cross_entropy(predicted.mT, answers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    shares: Tensor = (predicted.argmax(-1) == answers).float().mean(0)
    return shares


WINDOW = {"kind": "local_m", "window": 2}
SCOPES: dict[str, Any] = {"global": "global", "local, D = 2": WINDOW}
for task in ("copy", "reverse"):
    for name, scope in SCOPES.items():
        shares = measure(task, scope)
        print(f"{task:8}{name:13}", *(f"{share:4.0%}" for share in shares.tolist()))

# %% [markdown]
# A window that moves with the output is enough to copy. To reverse, the first output letter needs the last input
# letter, which is outside of the window. Only the two letters in the middle are correct in most rows: the letters that
# they need are inside. A window is a good choice if input and output have the same order, as in speech or
# pronunciation, and a bad one if they do not.

# %% [markdown]
# ### The price
#
# `regard.explain` returns a formula for the number of multiply-adds of a model (a multiplication and an addition count
# as one), with $S$ for the length of the input and $T$ for that of the output. We compare a model with a fixed context
# and one with attention. Their encoders and decoders have the same sizes, and both read a context at
# every step: for the first, it is always the same. The letter k means thousand.

# %%
fixed = regard.explain("sequences", {"model": "fixed", "model.encoder.hidden": 64}).cost
attending = regard.explain("sequences", {"model.encoder.hidden": 64}).cost
print("fixed context ", fixed.forward)
print("with attention", attending.forward)
print("difference    ", attending.forward - fixed.forward)

# %% [markdown]
# Keys and queries have 128 numbers. Attention multiplies each key and each query by a matrix, $U$ and $W$ of lesson 2:
# 128 · 128 = 16,384 multiplications for each position and each step. The last term is the price of comparing them: for
# each *pair* of a position and a step, 128 multiplications for the score and 128 for the weighted average.
#
# With a window, the last term becomes 256 · (2D + 1) · $T$, if the scores outside of the window are not computed.
# (regard computes them and does not use them.) Here are the counts for $S = T = n$:

# %% alt="Work by length: a curve for global attention, above two lines for a window and a fixed context."
lengths = range(0, 4097, 64)
counts = {
    "global attention": [attending.forward(n, n) for n in lengths],
    "window, D = 8": [attending.forward(n, n) - 256 * n * (n - 17) for n in lengths],
    "fixed context": [fixed.forward(n, n) for n in lengths],
}
figure, axes = plt.subplots(figsize=(7, 3.6))
for name, numbers in counts.items():
    axes.plot(lengths, [number / 1e9 for number in numbers], label=name)
axes.set(xlabel="length of input and output, n", ylabel="billion multiply-adds")
axes.legend()
plt.show()

for name, numbers in counts.items():
    print(f"{name:16}  {numbers[-1] / numbers[16]:4.1f} times the work for 4 times the length")

# %% [markdown]
# The last lines compare $n$ = 4,096 with $n$ = 1,024. Work that grows like $n$ becomes 4 times as much, and work that
# grows like $n^2$ becomes 16 times as much. Global attention lies between, because its terms in $S$ and $T$ are still
# large. For short inputs, they are almost all of its work, and attention costs little more than a fixed context.
#
# Counts are not times. So we also measure: the attention of $n$ queries to $n$ keys, and a recurrent network that reads
# $n$ positions. Other programs can only make a run slower, so we take the fastest of ten.

# %%
torch.set_num_threads(1)
attention, network = regard.Attention(32, 32, score="dot"), regard.GRU(32, 32)
parts: dict[str, Any] = {"attention": lambda x: attention(x, x), "recurrent network": network}
measured = [512, 1024, 2048, 4096]


def milliseconds(part: Any, n: int) -> float:
    inputs = torch.randn(1, n, 32)
    return 1_000 * min(repeat(lambda: part(inputs), number=1, repeat=10))


times = {name: [milliseconds(part, n) for n in measured] for name, part in parts.items()}
print("milliseconds      ", *(f"{n:7,}" for n in measured))
for name, numbers in times.items():
    print(f"{name:18}", *(f"{number:7.1f}" for number in numbers))

# %% alt="Time by length on logarithmic scales: two rising lines, of which that of attention becomes the steeper one."
figure, axes = plt.subplots(figsize=(7, 3.2))
for name, numbers in times.items():
    axes.loglog(measured, numbers, marker="o", label=name)
axes.set_xticks(measured, map(str, measured))
axes.minorticks_off()
axes.yaxis.set_major_formatter("{x:g}")
axes.set(xlabel="length n", ylabel="milliseconds")
axes.legend()
plt.show()

# %% [markdown]
# A time that grows like $n$ doubles if the length doubles, and one that grows like $n^2$ becomes four times as long.
# The times are those of the machine that drew the figure; they vary between machines and runs. A
# recurrent network must compute one position after the other, and attention computes all scores at once. Therefore
# attention can be the faster one up to some length, although it does more work.

# %% [markdown]
# ## Experiment
#
# **Which window do you need to reverse a string of 12 letters with `local_m`? Change `D`, and run the cell again.**
#
# <details>
# <summary>What comes out</summary>
#
# D = 11: output 1 needs input 12, which is 11 positions away. With a smaller window, the first and the last letters are
# wrong.
#
# </details>

# %%
D = 4

shares = measure("reverse", {"kind": "local_m", "window": D})
print(*(f"{share:4.0%}" for share in shares.tolist()))

# %% [markdown]
# ## Questions
#
# <details>
# <summary>1. An input has 1,000 positions and the output 1,000 steps. How many scores does global attention compute,
# and how many local attention with $D = 8$?</summary>
#
# Global attention computes 1,000 · 1,000 = 1,000,000 scores. Local attention computes at most 17 for each step, 17,000
# in all.
#
# </details>
# <details>
# <summary>2. Which of the four kinds of weights in the first figure can give the position with the highest score a
# weight of zero?</summary>
#
# Only local attention, if this position is outside of the window. (In the figure, position 5 has the highest score, and
# the window contains it.) In the other three, a higher score never has a lower weight. (In training, hard attention
# draws the position, so it can be any.)
#
# </details>
# <details>
# <summary>3. In the experiment, which positions are wrong with D = 4, and why?</summary>
#
# Output position $t$ needs input position $13 - t$. Their distance is at most 4 only for $t$ from 5 to 8. For the
# others, the letter is outside of the window, and the model can only guess.
#
# </details>
