# %% [markdown]
# # Lesson 3: Scores
#
# Five ways to compare a query with a key, on two small tasks: what each of them can learn, and what it cannot.

# %% [markdown]
# ## The idea
#
# Attention has three steps: scores, weights, context. Lesson 2 used one score. There are others, and they differ in
# what they *see*. Four of the five scores of this lesson compare the query with each key, so they can find a position
# by its **content**. The fifth, the location score, never looks at the keys. It can only find a position by its
# **number**.
#
# A network with an encoder and a decoder can hide such a difference, because its other parts can help. So we take
# everything away except for the attention.

# %% [markdown]
# ## The equation
#
# $q$ is the query and $k_j$ the key of position $j$, both vectors of $d$ numbers. $W$ and $U$ are matrices, $w$ is a
# vector and $\beta$ a number. These are learned. $e_j$ is the score of position $j$, as in lesson 2.
#
# | score | equation | from |
# |---|---|---|
# | additive | $e_j = w^\top \tanh(W q + U k_j)$ | Bahdanau et al. 2015 |
# | dot | $e_j = q^\top k_j$ | Luong et al. 2015 |
# | general | $e_j = q^\top W k_j$ | Luong et al. 2015 |
# | cosine | $e_j = \beta \, \frac{q^\top k_j}{\lVert q \rVert \, \lVert k_j \rVert}$ | Graves et al. 2014 |
# | location | $e_j = (W q)_j$ | Luong et al. 2015 |
#
# - The **dot** product has nothing to learn: query and key must have the same size, and be similar where they should
#   match. It is the cheapest.
# - **General** puts a matrix between them, so that query and key may differ in kind and in size.
# - **Additive** is a network with a hidden layer. It costs the most: a $\tanh$ for each pair of query and key.
# - **Cosine** ignores the lengths of the vectors. Because a cosine is at most 1, it is multiplied by $\beta$; otherwise
#   no weight could come close to 1.
# - **Location** computes one score for each position number from the query alone: $(W q)_j$ is the $j$-th number of the
#   vector $W q$. $k_j$ does not occur.

# %% [markdown]
# ## In Python
#
# Each example is a row of 8 slots. A slot holds a letter and a digit, such as `c7`. The letters of a row are all
# different, and their order is random. There are two tasks:
#
# - **by content**: the query is a letter, and the answer is the digit in the slot with this letter. In
#   `a3 f1 c7 …`, the query `c` has the answer `7`.
# - **by number**: the query is a number, and the answer is the digit in this slot. In `a3 f1 c7 …`, the query `2` has
#   the answer `1`. (The code counts from 0.)

# %%
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import regard

SLOTS, LETTERS, DIGITS, SIZE = 8, 10, 10, 32


def sample(task: str, rows: int, random: torch.Generator) -> tuple[Tensor, ...]:
    """Return queries, the letters and the digits of the slots, and the answers."""
    letters = torch.rand(rows, LETTERS, generator=random).argsort(1)[:, :SLOTS]
    digits = torch.randint(DIGITS, (rows, SLOTS), generator=random)
    number = torch.randint(SLOTS, (rows, 1), generator=random)
    query = letters.gather(1, number) if task == "by content" else number
    return query, letters, digits, digits.gather(1, number).squeeze(1)


# %% [markdown]
# The model turns the query into a vector, attends to the slots, and reads the digit from the context. The vector of a
# slot is the sum of a vector for its letter and a vector for its digit. It is the key and the value. An `nn.Embedding`
# is a table with a learned vector for each letter, digit or number. (`has_numbers` is for the experiment below.)


# %%
class Lookup(nn.Module):
    """Find a slot with attention, and read its digit from the context."""

    def __init__(self, score: str, has_numbers: bool = False) -> None:
        super().__init__()
        self.query = nn.Embedding(max(LETTERS, SLOTS), SIZE)
        self.letter = nn.Embedding(LETTERS, SIZE)
        self.digit = nn.Embedding(DIGITS, SIZE)
        self.number = nn.Embedding(SLOTS, SIZE) if has_numbers else None
        self.attention = regard.Attention(SIZE, SIZE, score=score)
        self.answer = nn.Linear(SIZE, DIGITS)

    def forward(self, query: Tensor, letters: Tensor, digits: Tensor) -> tuple[Tensor, Tensor]:
        slots = self.letter(letters) + self.digit(digits)
        if self.number is not None:
            slots = slots + self.number.weight
        context, weights = self.attention(self.query(query), slots)
        return self.answer(context.squeeze(1)), weights


def measure(task: str, score: str, seed: int, steps: int = 400, has_numbers: bool = False) -> tuple[float, float]:
    """Train a model, and return the share of correct answers and the mean largest weight for 2,000 new rows."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Lookup(score, has_numbers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        *inputs, answers = sample(task, 64, random)
        loss = nn.functional.cross_entropy(model(*inputs)[0], answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    *inputs, answers = sample(task, 2_000, random)
    with torch.no_grad():
        predicted, weights = model(*inputs)
    share = (predicted.argmax(1) == answers).float().mean()
    return float(share), float(weights.amax(-1).mean())


# %% [markdown]
# Two tasks, five scores, and three seeds: 30 small models. A seed fixes the random numbers, so that the run can be
# repeated. Several seeds show how much of a result is luck.

# %%
SCORES = ["additive", "dot", "general", "cosine", "location"]
SEEDS = range(3)

results = {
    (task, score): [measure(task, score, seed) for seed in SEEDS]
    for task in ("by content", "by number")
    for score in SCORES
}
print("            score     correct, by seed   mean largest weight")
for (task, score), seeds in results.items():
    correct = "  ".join(f"{share:4.0%}" for share, _ in seeds)
    largest = "  ".join(f"{weight:.2f}" for _, weight in seeds)
    print(f"{task:10}  {score:8}  {correct}   {largest}")

# %% alt="Correct answers by score and task. Location solves only the task by number; the others only that by content."
figure, axes = plt.subplots(figsize=(7, 3.4))
for task, marker, shift in (("by content", "o", -0.2), ("by number", "s", 0.1)):
    places = [x + shift + 0.06 * seed for x in range(len(SCORES)) for seed in SEEDS]
    shares = [share for score in SCORES for share, _ in results[task, score]]
    axes.scatter(places, shares, marker=marker, alpha=0.7, label=task)
axes.axhline(1 / DIGITS, color="gray", linestyle="--", label="blind guess")
axes.set_xticks(range(len(SCORES)), SCORES)
axes.set(xlabel="score", ylabel="share of correct answers", ylim=(0, 1.05))
axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
plt.show()

# %% [markdown]
# Each point is a model with one seed. Points of the same score and task are shifted sideways, so that all are visible.
#
# - **By content**, three of the four scores that compare the query with keys find the slot with every seed, and dot
#   finds it in most rows. Location does not: it gives the same weights to `a3 c7` and `c7 a3`.
# - **By number**, location finds the slot, and the others do not. The slots do not contain their numbers. If two slots
#   are exchanged, their scores are exchanged, too: a score depends on what a slot contains, and not on its number.
#
# The models that fail do so in two ways. The largest weights show which one:
#
# - Additive, cosine and location spread the weights over all slots: the largest is not far from 1/8. The context is
#   then close to an average, which shows the most frequent digit of the row. This digit is the correct answer in about
#   30% of the rows.
# - Dot and general put most of the weight on one slot, usually a wrong one, and usually answer with its digit. If they
#   always did so, with a slot chosen at random, a fifth of the answers would be correct: the slot is the correct one in
#   1/8 of the rows, and a wrong slot contains the correct digit by chance in 1/10 of the others.
#
# Why is **dot** the least reliable by content? Its vectors start as 32 random numbers each, so the dot products are
# large, and the largest weight of a row is close to 0.9 before anything is learned. In most rows, it is on a
# wrong slot, and the correct one has a weight of about 0.01. The derivative of a weight with respect to its own score
# is $a_j (1 - a_j)$: about 0.01 for this slot, and 0.11 if all 8 weights are equal. So the correct slot gets almost no
# gradient. Lesson 6 divides the scores by $\sqrt{d}$ for this reason. regard calls this score
# `scaled_dot`:

# %%
results["by content", "scaled_dot"] = [measure("by content", "scaled_dot", seed) for seed in SEEDS]
for score in ("dot", "scaled_dot"):
    _, largest_at_first = measure("by content", score, seed=0, steps=0)
    correct = "  ".join(f"{share:4.0%}" for share, _ in results["by content", score])
    print(f"{score:10}  largest weight before training {largest_at_first:.2f}", end="")
    print(f"   correct after it {correct}")

# %% [markdown]
# In lesson 2, an additive score found positions by number: it reversed a string. It could, because the keys were states
# of a recurrent encoder, which depend on all letters before and after a position. So they can contain its number.

# %% [markdown]
# ## Experiment
#
# With `has_numbers=True`, the vector of a slot is the sum of three vectors: for its letter, for its digit, and for its
# number. **Replace `False` by `True`, and run the cell again. Which scores do you expect to solve the task by number
# now?**
#
# <details>
# <summary>What comes out</summary>
#
# All five. The keys now contain the number of their slot, so scores that compare query and key can find it.
#
# </details>

# %%
for score in SCORES:
    share, _ = measure("by number", score, seed=3, has_numbers=False)
    print(f"{score:8}  {share:4.0%}")

# %% [markdown]
# ## Questions
#
# <details>
# <summary>1. Why must the letters of a row be different?</summary>
#
# If a letter occurred twice with different digits, the task by content would have two correct answers. The query
# could not say which of the two slots is meant, and attention would read a mixture of both.
#
# </details>
# <details>
# <summary>2. A location score is trained with rows of 8 slots. What can it do with a row of 12?</summary>
#
# Nothing useful for the last four. $W$ has one row of numbers for each slot number, and there are no trained rows
# 9 to 12. The other scores can read rows of any length.
#
# </details>
# <details>
# <summary>3. The query has 64 numbers and the keys have 128. Which of the five scores of this lesson can be
# used?</summary>
#
# Additive and general, whose matrices change the size, and location, which does not see the keys. Dot and cosine need
# vectors of the same size.
#
# </details>
