# %% [markdown]
# # Lesson 3: Scores
#
# Five ways to compare a query with a key, on two small tasks: what each of them can learn, and what it cannot.

# %% [markdown]
# ## The idea
#
# Attention has three steps: scores, weights, context. Lesson 2 used one score. There are others, and they differ in
# what they *see*. Most scores compare the query with each key, so they can find a position by its **content**. One of
# them, the location score, never looks at the keys. It can only find a position by its **number**.
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
# - The **dot** product has nothing to learn: query and key must already be in the same space. It is the cheapest.
# - **General** puts a matrix between them, so that query and key may differ in kind and in size.
# - **Additive** is a network with a hidden layer. It costs the most: a $\tanh$ for each pair of query and key.
# - **Cosine** ignores the lengths of the vectors. Because a cosine is at most 1, it is multiplied by $\beta$; otherwise
#   no weight could come close to 1.
# - **Location** computes one score for each position number from the query alone. $k_j$ does not occur.

# %% [markdown]
# ## In Python
#
# Each example is a row of 8 slots. A slot holds a letter and a digit, such as `c7`. The letters of a row are all
# different, and their order is random. There are two tasks:
#
# - **by content**: the query is a letter, and the answer is the digit in the slot with this letter. In
#   `a3 f1 c7 …`, the query `c` has the answer `7`.
# - **by number**: the query is a number, and the answer is the digit in this slot. In `a3 f1 c7 …`, the query `2` has
#   the answer `1`.

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
# slot is the sum of a vector for its letter and a vector for its digit. It is the key and the value. (`has_numbers` is
# for the experiment below.)


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

    def forward(self, query: Tensor, letters: Tensor, digits: Tensor) -> Tensor:
        slots = self.letter(letters) + self.digit(digits)
        if self.number is not None:
            slots = slots + self.number.weight
        context, _ = self.attention(self.query(query), slots)
        answer: Tensor = self.answer(context.squeeze(1))
        return answer


def measure(task: str, score: str, seed: int, has_numbers: bool = False) -> float:
    """Train a model, and return the share of correct answers for 2,000 new rows."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Lookup(score, has_numbers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(500):
        *inputs, answers = sample(task, 64, random)
        loss = nn.functional.cross_entropy(model(*inputs), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    *inputs, answers = sample(task, 2_000, random)
    return float((model(*inputs).argmax(1) == answers).float().mean())


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
for (task, score), shares in results.items():
    print(f"{task:10}  {score:8}  ", "  ".join(f"{share:4.0%}" for share in shares))

# %% alt="Correct answers by score and task. Location solves only the task by number; the others only that by content."
figure, axes = plt.subplots(figsize=(7, 3.4))
for task, marker in (("by content", "o"), ("by number", "s")):
    names = [score for score in SCORES for _ in SEEDS]
    shares = [share for score in SCORES for share in results[task, score]]
    axes.scatter(names, shares, marker=marker, s=60, alpha=0.7, label=task)
axes.set(ylabel="correct answers", ylim=(0, 1.05))
axes.legend(loc="center left")
plt.show()

for score in SCORES:
    solves_content = score != "location"
    assert (min(results["by content", score]) > 0.6) == solves_content
    assert (max(results["by number", score]) < 0.6) == solves_content

# %% [markdown]
# Each point is a model with one seed. The picture is clear:
#
# - **By content**, the four scores that compare the query with keys find the slot. Location does not: it gives the same
#   weights to `a3 c7` and `c7 a3`.
# - **By number**, it is the other way round. The slots do not contain their numbers. If two slots are exchanged, their
#   keys are exchanged as well, so a score that only sees query and key follows the content. It cannot say "the second".
#
# A model that fails is still right in a fifth to a third of the rows, more than the tenth of a blind guess. It takes
# the average of all slots, in which a digit that occurs often is easy to guess.
#
# **Dot** depends on the seed. The vectors have 32 random numbers at first, so their dot products are large: one weight
# is almost 1 before anything is learned, and the other slots get almost no gradient. Lesson 6 divides the scores by
# $\sqrt{d}$ for this reason.
#
# In lesson 2, an additive score found positions by number: it reversed a string. It could, because the keys were states
# of a recurrent encoder, which depend on all letters up to this position. So they can contain its number.

# %% [markdown]
# ## Experiment
#
# With `has_numbers=True`, the vector of a slot is the sum of three vectors: for its letter, for its digit, and for its
# number. **Replace `False` by `True`, and run the cell again. Which scores do you expect to solve the task by number
# now?**

# %%
for score in SCORES:
    share = measure("by number", score, seed=3, has_numbers=False)
    print(f"{score:8}  {share:4.0%}")

# %% [markdown]
# ## Questions
#
# <details>
# <summary>1. Why must the letters of a row be different?</summary>
#
# If a letter occurred twice with different digits, the task by content would have two correct answers. Attention would
# give both slots the same weight.
#
# </details>
# <details>
# <summary>2. A location score is trained with rows of 8 slots. What can it do with a row of 12?</summary>
#
# Nothing useful for the last four. $W$ has one row of numbers for each slot number, and the rows 9 to 12 were never
# trained. A content score can read rows of any length.
#
# </details>
# <details>
# <summary>3. The query has 64 numbers and the keys have 128. Which of the five scores can be used?</summary>
#
# Additive and general, whose matrices change the size, and location, which does not see the keys. Dot and cosine need
# vectors of the same size.
#
# </details>
