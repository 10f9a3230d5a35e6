# %% [markdown]
# # Lesson 6: Self-attention
#
# How the words of one sentence attend to each other: worked by hand, with several heads, and with positions.

# %% [markdown]
# ## The idea
#
# In the lessons so far, a decoder had a query, and the states of an encoder were the keys and values. The encoder was a
# recurrent network: it read one word after the other, and what it knew about the first word had to pass through the
# states of all other words to reach the last one.
#
# **Self-attention** removes the recurrent network. The queries, the keys and the values all come from the same
# sentence. Each word asks a question (its query), compares it with what every word offers (their keys), and receives an
# average of what they contain (their values). The result is a new vector for each word, which depends on its context.
#
# All words do this at the same time, and information gets from any word to any other in one step. The price is a new
# problem: nothing in this computation knows the order of the words.

# %% [markdown]
# ## The equation
#
# A sentence of $m$ words is a matrix $X$ with a row of $d$ numbers for each word. Three learned matrices with $d$ rows
# and $d_k$ columns turn it into queries, keys and values. ($d_k = d$ until there are several heads.)
#
# $$Q = X W_Q \quad K = X W_K \quad V = X W_V$$
#
# Row $i$ of $Q$ is the query $q_i$ of word $i$, and row $j$ of $K$ is the key $k_j$ of word $j$, with $d_k$ numbers
# each. Their dot product $q_i \cdot k_j$ is the score of the pair. Self-attention is (Vaswani et al. 2017)
#
# $$Z = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# $Q K^\top$ contains the scores of all pairs of words. The softmax turns each of its rows into weights that sum to 1.
# Row $i$ of $Z$ is the new vector of word $i$: $z_i = \sum_j a_{ij} v_j$, with the weights $a_{ij}$.

# %% [markdown]
# ## In Python
#
# ### Two words by hand
#
# The numbers of this example are well known from *The Illustrated Transformer* (Alammar 2018). The sentence is
# "Thinking Machines". Its keys have $d_k = 64$ numbers. The query of *Thinking* has the score 112 with its own key, and
# the score 96 with the key of *Machines*. We choose the simplest vectors with these scores.

# %%
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import regard

torch.manual_seed(0)
query = torch.ones(64)
keys = torch.stack([torch.full((64,), 1.75), torch.full((64,), 1.5)])
values = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

scores = keys @ query
scaled = scores / 64**0.5
weights = scaled.softmax(0)
print("scores: ", scores.tolist())
print("scaled: ", scaled.tolist())
print("weights:", weights.numpy().round(2))
print("z:      ", (weights @ values).numpy().round(2))

# %% [markdown]
# Check the weights with a pocket calculator:
#
# $$\frac{e^{14}}{e^{14} + e^{12}} = \frac{1}{1 + e^{-2}} = 0.88$$
#
# Only the difference of the scores matters, here $14 - 12 = 2$. The new vector of *Thinking* is 88 % the value of
# *Thinking* and 12 % the value of *Machines*.
#
# ### Why divide by $\sqrt{d_k}$?
#
# Without the division, the scores are 112 and 96, and the weights are 0.9999999 and 0.0000001. The softmax is
# *saturated*: a small change of a score hardly changes the weights, so there is almost no gradient to learn from.
#
# This is not specific to our two words. A score is a sum of $d_k$ products. If the numbers in queries and keys are
# random and independent, with mean 0 and variance 1, the variance of a score is $d_k$. The larger the vectors, the
# larger the scores. The division by $\sqrt{d_k}$ brings the variance back to 1. The figure shows the largest of 10
# weights for random vectors, averaged over 1,000 queries:


# %% alt="The largest weight by the size of the keys: almost 1 for large dot products, 0.3 if they are scaled."
def largest_weight(size: int, score: str) -> float:
    """Return the largest of 10 weights, averaged over 1,000 random queries."""
    queries, keys = torch.randn(1000, 1, size), torch.randn(1000, 10, size)
    _, weights = regard.attend(queries, keys, score=score)
    return weights.amax(-1).mean().item()


sizes = [2**power for power in range(1, 11)]
dot = [largest_weight(size, "dot") for size in sizes]
scaled_dot = [largest_weight(size, "scaled_dot") for size in sizes]

figure, axes = plt.subplots(figsize=(7, 3.2))
axes.plot(list(map(str, sizes)), dot, marker="o", label="dot product")
axes.plot(list(map(str, sizes)), scaled_dot, marker="o", label="scaled dot product")
axes.set(xlabel="size of the keys", ylabel="largest of 10 weights", ylim=(0, 1.03))
axes.legend()
plt.show()

assert dot[-1] > 0.9 > 0.4 > scaled_dot[-1]

# %% [markdown]
# ### All words and several heads
#
# A word can be related to other words in several ways: to its verb, to its article, to the word before it. One row of
# weights can express only one relation. **Multi-head attention** computes several rows: it splits queries, keys and
# values of $d$ numbers into $H$ parts of size $d_k = d / H$, the *heads*, and each head has its own weights. The
# results are concatenated and multiplied by another learned matrix, $W_O$:
#
# $$\operatorname{MultiHead}(X) = [Z_1; \dots; Z_H] \, W_O$$
#
# This is the whole algorithm:


# %%
def multi_head(x: Tensor, matrices: list[Tensor], heads: int) -> Tensor:
    """Return the new vectors of the words, one per row, given W_Q, W_K, W_V and W_O."""
    words, d = x.shape
    size = d // heads
    q, k, v = ((x @ w).view(words, heads, size).transpose(0, 1) for w in matrices[:3])
    a = (q @ k.transpose(1, 2) / size**0.5).softmax(-1)  # (heads, words, words)
    z = a @ v  # (heads, words, size)
    return z.transpose(0, 1).reshape(words, d) @ matrices[3]


attention = regard.MultiHeadAttention(64, heads=8, bias=False)
matrices = [matrix.T for matrix in attention.parameters()]
sentence = torch.randn(5, 64)
ours = multi_head(sentence, matrices, heads=8)
theirs, weights = attention(sentence.unsqueeze(0), weights=True)
print("outputs", tuple(theirs.shape), "weights", tuple(weights.shape))

assert torch.allclose(ours, theirs[0], atol=1e-5)

# %% [markdown]
# Our function and `regard.MultiHeadAttention` agree. Note that heads add no parameters and no multiplications in the
# matrix products: the four matrices have the same size for any number of heads, and the number of multiplications is
# the same, too. Each head has smaller queries and keys instead.
#
# ### Positions
#
# Now to the order of the words. Take random vectors for three words, and compute the new vector of *dog* in two
# sentences that mean very different things:

# %%
word = {name: torch.randn(64) for name in ("dog", "bites", "man")}


def new_vectors(sentence: str, positions: bool) -> dict[str, Tensor]:
    """Return the vector of each word after self-attention."""
    names = sentence.split()
    x = torch.stack([word[name] for name in names])
    if positions:
        x = x + regard.sinusoidal_positions(len(names), 64)
    return dict(zip(names, attention(x.unsqueeze(0))[0].squeeze(0), strict=True))


for positions in (False, True):
    first = new_vectors("dog bites man", positions)["dog"]
    second = new_vectors("man bites dog", positions)["dog"]
    difference = (first - second).abs().max().item()
    print(f"positions={positions}: the two vectors of dog differ by up to {difference:.3f}")
    assert (difference > 0.01) == positions

# %% [markdown]
# Without positions, the two vectors of *dog* are the same: a sum does not depend on the order of its terms. The model
# cannot know who bites whom. The remedy is to add to each word a vector that depends only on its position $p$. The
# Transformer uses sines and cosines of different wavelengths (Vaswani et al. 2017):
#
# $$P_{p, 2i} = \sin\left(p / 10000^{2i/d}\right)$$
#
# $$P_{p, 2i+1} = \cos\left(p / 10000^{2i/d}\right)$$
#
# Number $2i$ of the vector is a sine, and number $2i + 1$ a cosine, for $i = 0, 1, \dots, d/2 - 1$.
#
# Is that enough to learn from? We train a small network on a question about order: does *a* occur before *b*? Each
# input contains 8 different letters in a random order. They are numbered: *a* is 0, and *b* is 1. At each step, the
# network first answers for 128 new inputs, and then learns from them.


# %%
class Reader(nn.Module):
    """Answers yes (above 0) or no (below 0) to a question about a string."""

    def __init__(self, positions: bool, scope: str) -> None:
        super().__init__()
        self.letters = nn.Embedding(8, 32)
        self.positions = regard.sinusoidal_positions(8, 32) * positions
        self.attention = regard.MultiHeadAttention(32, heads=4, scope=scope)
        self.answer = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, strings: Tensor) -> Tensor:
        new, _ = self.attention(self.letters(strings) + self.positions)
        return self.answer(new.mean(1)).squeeze(1)  # the average over the string


def train(positions: bool, scope: str = "global") -> list[float]:
    """Train a reader. Return the share of correct answers at each step."""
    torch.manual_seed(0)
    reader, accuracies = Reader(positions, scope), []
    optimizer = torch.optim.Adam(reader.parameters(), lr=0.003)
    for _ in range(200):
        strings = torch.rand(128, 8).argsort(1)  # the numbers 0 to 7 in a random order
        place_of_a = (strings == 0).int().argmax(1)
        place_of_b = (strings == 1).int().argmax(1)
        correct = place_of_a < place_of_b
        answers = reader(strings)
        accuracies.append(((answers > 0) == correct).float().mean().item())
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(answers, correct.float()).backward()
        optimizer.step()
    return accuracies


# %% alt="Share of correct answers during training: about half without positions, almost all with positions."
curves = {"with positions": train(True), "without positions": train(False)}
figure, axes = plt.subplots(figsize=(7, 3.2))
for label, curve in curves.items():
    averages = torch.tensor(curve).view(20, 10).mean(1)  # of 10 steps each
    axes.plot(range(5, 205, 10), averages, marker="o", label=label)
axes.set(xlabel="training step", ylabel="correct answers", ylim=(0.4, 1.03))
axes.legend()
plt.show()

assert sum(curves["with positions"][-50:]) / 50 > 0.99
assert 0.4 < sum(curves["without positions"][-50:]) / 50 < 0.6

# %% [markdown]
# With positions, the network soon makes no errors. Without them, it stays at a half, and no amount of training would
# help: every string has the same 8 letters, so the network gives the same answer to all strings.

# %% [markdown]
# ## Experiment
#
# A decoder must not see the words that it has yet to write. Its self-attention is *causal*: word $i$ attends only to
# the words $1, \dots, i$. In the code, this is `scope="causal"`. **Set `SCOPE` to `"causal"`, and run the cell again.
# There are still no positions. Before you do: do you expect a half again, or more?**

# %%
SCOPE = "global"

accuracies = train(positions=False, scope=SCOPE)
accuracy = sum(accuracies[-50:]) / 50  # of the last 50 steps
print(f"{SCOPE}, without positions: {accuracy:.0%} of the answers are correct")

# %% [markdown]
# <details>
# <summary>What comes out</summary>
#
# All answers are correct, although the letters have no positions. Question 3 asks why.
#
# </details>

# %% [markdown]
# ## Questions
#
# <details>
# <summary>1. Add 1,000 to both scores of the two-word sentence: 1,112 and 1,096. What are the weights now?</summary>
#
# The same: 0.88 and 0.12. The softmax depends only on the difference of the scores, which is still 16, or 2 after the
# division by 8. In practice, the largest score is subtracted from all scores before the softmax: $1112 / 8 = 139$, and
# $e^{139}$ is too large for a number of 32 bits.
#
# </details>
# <details>
# <summary>2. How many weights does a head compute for a sentence of 10 words, and how many for 1,000 words?</summary>
#
# One for each pair of words: 100, and 1,000,000. This is the main cost of self-attention for long texts. A recurrent
# network has 1,000 steps for 1,000 words, but they must run one after the other; self-attention computes its million
# weights at the same time.
#
# </details>
# <details>
# <summary>3. Run the experiment first. Why is causal attention better than a half?</summary>
#
# The mask treats positions differently. If *a* occurs before *b*, then *b* can attend to *a*, but *a* cannot attend to
# *b*. So the new vectors differ, and with them the average. This is why decoders work to some degree without positions,
# and encoders do not.
#
# </details>
#
# Three parts of a Transformer are still missing: feed-forward layers, residual connections and layer normalization.
# Lesson 7 adds them, and puts all parts together.
