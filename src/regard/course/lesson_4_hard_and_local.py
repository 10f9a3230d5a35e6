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
# Both are of interest for the same reasons: weights are easier to read if most of them are zero, and positions that
# nobody reads need no work. The work is the price of attention: a decoder of $t$ steps over an input of $m$ positions
# computes $m \cdot t$ scores. A model with a fixed context reads the input once and writes the output once, in a time
# that grows like $m + t$.

# %% [markdown]
# ## The equation
#
# Let $e_1, \dots, e_m$ be the scores of one query, and $a_j$ the weights.
#
# | attention | weights | from |
# |---|---|---|
# | soft | $a_j = \exp(e_j) \, / \sum_l \exp(e_l)$ | Bahdanau et al. 2015 |
# | sparsemax | of all weights that are at least 0 and sum to 1, those closest to the scores | Martins & Astudillo 2016 |
# | hard | $a_j = 1$ for one position $j$, drawn with the probabilities of soft attention | Xu et al. 2015 |
# | local | $a_j = \exp(e_j) \, / \sum_l \exp(e_l)$, with $l$ from $p - D$ to $p + D$, and 0 elsewhere | Luong et al. 2015 |
#
# "Closest" means: with the least sum of squares $(a_1 - e_1)^2 + \dots + (a_m - e_m)^2$. $D$ is the size of the window
# to each side. The position $p$ is either the number of the step (`local_m`, for *monotonic*: the input is read at the
# speed of the output), or it is predicted from the query (`local_p`).
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
import time
from collections.abc import Callable
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
    panel.set(title=name, xlabel="position", ylim=(0, 1.05))
axes[0].set_ylabel("weight")
figure.tight_layout()
plt.show()

for name, row in weights.items():
    print(f"{name:13}", row.detach().numpy().round(2), f"sum {row.sum():.2f}")
assert [int((row > 0).sum()) for row in weights.values()] == [8, 2, 1, 3]

# %% [markdown]
# The weights always sum to 1. What is left out goes to the positions that remain. When it predicts, as here, hard
# attention reads the most probable position instead of drawing one.

# %% [markdown]
# ### What a window cannot see
#
# The next model has only attention, as in lesson 3. It *copies* or *reverses* a string of 12 letters, and writes all
# positions at the same time. The query of an output position is a learned vector for its number. The key and value of
# an input position is the sum of a vector for its letter and a vector for its number.

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
correct = {}
for task in ("copy", "reverse"):
    for name, scope in SCOPES.items():
        shares = measure(task, scope)
        correct[task, name] = shares
        print(f"{task:8}{name:13}", *(f"{share:4.0%}" for share in shares.tolist()))

reversed_locally = correct.pop(("reverse", "local, D = 2"))
assert min(shares.min() for shares in correct.values()) > 0.9
assert reversed_locally[0] < 0.3 < 0.7 < reversed_locally[5]

# %% [markdown]
# A window that moves with the output is enough to copy. To reverse, the first output letter needs the last input
# letter, which is outside of the window. Only the two letters in the middle are correct: theirs are inside. A window is
# a good choice if input and output have the same order, as in speech or pronunciation, and a bad one if they do not.

# %% [markdown]
# ### The price
#
# `regard.explain` counts the multiplications and additions of a model as a formula, with $S$ for the length of the
# input and $T$ for that of the output:

# %%
for settings in ({"model": "fixed"}, {}):
    cost = regard.explain("sequences", settings).cost
    print(f"{cost.growth:6}  {cost.forward}")

# %% [markdown]
# With attention, there is one term more: $S \cdot T$. Here is what this means in milliseconds. We measure three things
# for an input and an output of $n$ positions: global attention, local attention, and a recurrent network, which is what
# remains without attention. To profit from a window, we must not compute the scores outside of it: `unfold` cuts the
# keys into windows.


# %%
def local_attention(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """Return the contexts of queries t that see the keys t − window to t + window."""
    length, width = len(queries), 2 * window + 1
    windows = nn.functional.pad(keys, (0, 0, window, window)).unfold(0, width, 1)
    scores = torch.einsum("td,tdw->tw", queries, windows)
    position = torch.arange(length)[:, None] + torch.arange(-window, window + 1)
    is_outside = (position < 0) | (position >= length)
    weights = scores.masked_fill(is_outside, -torch.inf).softmax(1)
    return torch.einsum("tw,tdw->td", weights, windows)


def milliseconds(function: Callable[..., object], *inputs: Any) -> float:
    """Return the shortest time of ten calls: other programs can only add to it."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        function(*inputs)
        times.append(time.perf_counter() - start)
    return 1_000 * min(times)


torch.set_num_threads(1)  # one core, so that the times can be compared
torch.manual_seed(0)
full, network = regard.Attention(32, 32, score="dot"), regard.GRU(32, 32)
window = {"kind": "local_m", "window": 8}
windowed = regard.Attention(32, 32, score="dot", scope=window)
lengths = [64, 128, 256, 512, 1024, 2048]
spent: dict[str, list[float]] = {"global": [], "local, D = 8": [], "recurrent": []}
with torch.no_grad():
    for n in lengths:
        q, k = torch.randn(2, n, 32)
        spent["global"].append(milliseconds(full, q[None], k[None]))
        spent["local, D = 8"].append(milliseconds(local_attention, q, k, 8))
        spent["recurrent"].append(milliseconds(network, q[None]))
    q, k = torch.randn(2, 100, 32)
    expected = windowed(q[None], k[None])[0][0]
    assert torch.allclose(local_attention(q, k, 8), expected, atol=1e-4)

# %% alt="Time by length, both on logarithmic scales: global attention rises about twice as steeply as the others."
figure, axes = plt.subplots(figsize=(7, 3.8))
for name, times in spent.items():
    axes.loglog(lengths, times, marker="o", label=name)
axes.set_xticks(lengths, map(str, lengths))
axes.minorticks_off()
axes.set(xlabel="length of input and output, n", ylabel="milliseconds")
axes.legend()
plt.show()

for name, times in spent.items():
    factor = times[-1] / times[-3]
    print(f"{name:12}  {factor:5.1f} times as long for 4 times the length")

# %% [markdown]
# On logarithmic scales, $n$ is a line with slope 1, and $n^2$ one with slope 2. For long inputs, each time that the
# length doubles, global attention takes about four times as long, or more if the weights no longer fit into the
# cache of the processor. The other two take about twice as long. Your machine prints other numbers than this page, and
# other programs on it disturb the measurement.
#
# Short inputs are another matter. A recurrent network computes one position after the other. Attention computes all
# scores at once, in one matrix product, so it is faster up to some length, although it does more work.

# %% [markdown]
# ## Experiment
#
# **Which window do you need to reverse a string of 12 letters with `local_m`? Change `D`, and run the cell again.**

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
# Only local attention, if this position is outside of the window. In the other three, a higher score never has a lower
# weight. (In training, hard attention draws the position, so it can be any.)
#
# </details>
# <details>
# <summary>3. In the experiment, which positions are wrong with D = 4, and why?</summary>
#
# Output position $i$ needs input position $13 - i$. Their distance is at most 4 only for $i$ from 5 to 8. For the
# others, the letter is outside of the window, and the model can only guess.
#
# </details>
