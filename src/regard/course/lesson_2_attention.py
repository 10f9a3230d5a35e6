# %% [markdown]
# # Lesson 2: Attention
#
# How a decoder looks at the input at every step, with the numbers worked by hand, and what this does to long sequences.

# %% [markdown]
# ## The idea
#
# In lesson 1, the encoder stored the whole input in one vector, and the model failed on strings of 12 letters. Bahdanau
# et al. (2015) keep *all* states of the encoder. At each step, the decoder computes a new context from them: a
# **weighted average**. The weights say how much each input position matters for the next output token.
#
# Think of a dictionary in Python: you look up a *query*, it is compared with the *keys*, and you get the *value* of the
# key that matches. Attention is a soft form of it: every key matches to some degree, and you get a mixture of the
# values.
#
# - The **query** is what the decoder looks for: its state.
# - The **keys** are what the query is compared with: one per input position.
# - The **values** are what is mixed: one per input position.
#
# In this lesson, the keys and the values are the same vectors: the states of the encoder.

# %% [markdown]
# ## The equation
#
# Let $q$ be the query, and $k_1, \dots, k_S$ and $v_1, \dots, v_S$ the keys and values of the $S$ input positions.
# Attention has three steps. The **score** $e_j$ says how well the query matches key $j$; it can be any number. Here it
# is computed by a small network with the matrices $W$ and $U$ and the vector $w$, which are learned:
#
# $$e_j = w^\top \tanh(W q + U k_j)$$
#
# The **weights** are the softmax of the scores. They are positive and sum to 1:
#
# $$a_j = \frac{\exp(e_j)}{\exp(e_1) + \dots + \exp(e_S)}$$
#
# The **context** is the average of the values with these weights:
#
# $$c = a_1 v_1 + \dots + a_S v_S$$
#
# The decoder computes this at each step $t$ with its previous state as the query, $q = s_{t-1}$. The next state depends
# on the new context: $s_t = g(y_{t-1}, c, s_{t-1})$, where $y_{t-1}$ is the previous output token. As in lesson 1,
# $s_0$ is computed from the last states of the encoder.

# %% [markdown]
# ## By hand
#
# Three positions, and the simplest score, the dot product $e_j = q^\top k_j$. The query is $q = (1, 1)$.
#
# | position | 1 | 2 | 3 | sum |
# |---|---|---|---|---|
# | key | (2, 0) | (0, 1) | (1, −1) | |
# | score | 2 | 1 | 0 | |
# | exp(score) | 7.389 | 2.718 | 1.000 | 11.107 |
# | weight | 0.665 | 0.245 | 0.090 | 1.000 |
# | value | 10 | 20 | 30 | |
# | weight × value | 6.65 | 4.89 | 2.70 | 14.25 |
#
# All numbers are rounded, so the last row seems to have the sum 14.24. The largest part of the context, 6.65, comes
# from the first value, whose key matches best. regard computes the same. Queries, keys and values have the axes
# (example, position, number), and weights have the axes (example, query, key). Here there is one example and one query,
# so some brackets contain a single element:

# %%
import random
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch

import regard

query = torch.tensor([[[1.0, 1.0]]])
keys = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [1.0, -1.0]]])
values = torch.tensor([[[10.0], [20.0], [30.0]]])
context, weights = regard.attend(query, keys, values, score="dot")
print("weights", weights.numpy().round(3), "context", context.numpy().round(2))

# %% [markdown]
# ## In Python
#
# The task is that of lesson 1: reverse a string of 2 to 12 letters. We train two models: one with a fixed context, as
# in lesson 1, and one with *additive* attention, which is the attention of the equation above. Their encoders and
# decoders have states of the same sizes. We train for 400 steps instead of 600, so the fixed context does worse than in
# lesson 1.

# %%
LETTERS = "abcdefghij"
SETTINGS = {
    "model.encoder.hidden": 64,
    "model.decoder.hidden": 128,
    "model.dropout": 0.0,
    "data.letters": len(LETTERS),
    "data.shortest": 2,
    "data.longest": 12,
    "data.dev": 200,
    "training.steps": 400,
    "training.validate_every": 400,
}


def train(settings: dict[str, object]) -> regard.Model:
    """Train a model on strings and their reverse, in a temporary folder."""
    folder = tempfile.mkdtemp()
    settings = {**SETTINGS, **settings}
    run = regard.train("sequences", settings, out=folder, quiet=True)
    return run.load(device="cpu")


fixed = train({"model": "fixed", "model.context": "initial"})
model = train({})
print(fixed.settings.model.architecture)
print(model.settings.model.architecture)

# %% [markdown]
# Here is what the second model computes for one string. The input is above, and the output below. A ribbon joins each
# output letter to the input letters that the decoder reads for it: the larger the weight, the wider the ribbon. The tab
# *Attention* shows the same weights as a matrix, with a row for each step of the decoder and a column for each input
# position.

# %% alt="The explorer with the attention weights of a reversed string: the last letter is read first."
trace = model.trace("fadebag", queries=True)
trace

# %% [markdown]
# To write the first letter, the model looks mostly at the last one, and then it moves towards the start of the input.
# This was not part of the training data, which are only strings and their reverses. For later letters, the widest
# ribbon often comes from a neighbor of the letter that is written: the state of the encoder at a position also depends
# on the letters around it (lesson 5).
#
# With `queries=True`, a trace also contains queries, keys and values, so we can repeat the first step of the decoder by
# hand:

# %%
numbers = trace.inputs[0].arrays
parameters = trace.mechanisms["decoder.attention"].parameters
w = parameters["score.v"][0]  # the library calls this vector v; [0] is the only head
W = parameters["score.query.weight"][0]
U = parameters["score.key.weight"][0]
q, k, v = numbers["query"][0], numbers["key"], numbers["value"]

e = np.array([w @ np.tanh(W @ q + U @ key) for key in k])  # scores
a = np.exp(e) / np.exp(e).sum()  # weights
c = a @ v  # context
for letter, score, weight in zip("fadebag", e, a, strict=True):
    print(f"{letter}  score {score:6.2f}  weight {weight:.3f}")

# %% [markdown]
# The model has computed the same weights. They are the first row of its matrix:

# %%
print("by hand: ", a.round(3))
print("in model:", trace.prediction.attention[0].round(3))
print("context: ", c[:4].round(3), "…", len(c), "numbers")

# %% [markdown]
# Now the question of lesson 1 again: how does accuracy depend on the length?


# %%
def accuracy(model: regard.Model, length: int) -> float:
    """Return the share of 100 random strings that the model reverses without an error."""
    generator = random.Random(length)
    strings = ["".join(generator.choices(LETTERS, k=length)) for _ in range(100)]
    outputs = [prediction.text for prediction in model.predict(strings)]
    pairs = zip(strings, outputs, strict=True)
    return sum(output == string[::-1] for string, output in pairs) / 100


# %% alt="Accuracy by length: with attention almost 100% up to 12 letters; a fixed context falls to almost zero."
lengths = range(2, 23, 2)
accuracies = {
    name: [accuracy(one, length) for length in lengths]
    for name, one in {"with attention": model, "fixed context": fixed}.items()
}
figure, axes = plt.subplots(figsize=(7, 3.6))
for name, values_by_length in accuracies.items():
    axes.plot(lengths, values_by_length, marker="o", label=name)
axes.axvspan(2, 12, alpha=0.12, label="lengths in training")
axes.set_xticks(lengths)
axes.set(xlabel="letters in the input", ylabel="correct strings", ylim=(-0.03, 1.03))
axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
plt.show()
for name, shares in accuracies.items():
    print(f"{name:14}", *(f"{share:4.0%}" for share in shares))

# %% [markdown]
# With the same data, the same number of steps and states of the same size, the model with attention reverses strings
# of 12 letters, and the one with a fixed context does not. Beyond the training lengths, the model with attention is
# better too, but it still fails on strings that are much longer than those in training.

# %% [markdown]
# ## Experiment
#
# **Change `TEXT`, and run the cell again. What do you expect for the 20 letters `abcdefghijabcdefghij`, or for one
# letter that is repeated, `aaaaaaaa`?** The figure shows where the model loses its place.
#
# <details>
# <summary>What comes out</summary>
#
# Of the 20 letters, the first ones are correct, and their weights form a diagonal. Towards the end, the weights spread
# over several positions, and letters are missing.
#
# From eight times the same letter, the model writes nine. The keys of equal letters differ only by what the states of
# the encoder know about their neighbors and their position, so the weights spread too, and the model loses count.
#
# </details>

# %% alt="Attention weights of a string of 12 letters: a falling diagonal from the last letter to the first."
TEXT = "abcdefghijab"

prediction = model.predict(TEXT)
print("expected ", TEXT[::-1])
print("predicted", prediction.text)
figure, axes = plt.subplots(figsize=(5, 4))
image = axes.imshow(prediction.attention, cmap="Blues", vmin=0, vmax=1, aspect="auto")
figure.colorbar(image, label="weight")
axes.set_xticks(range(len(prediction.source_tokens)), prediction.source_tokens)
axes.set_yticks(range(len(prediction.tokens)), prediction.tokens)
axes.set(xlabel="input", ylabel="output")
plt.show()

# %% [markdown]
# ## Questions
#
# <details>
# <summary>1. What is the context if all scores are equal?</summary>
#
# All weights are $1/S$, so the context is the ordinary average of the values.
#
# </details>
# <details>
# <summary>2. The context still has 128 numbers, as in lesson 1. Why are strings of 12 letters no problem
# now?</summary>
#
# There is a new context at every step. It does not have to contain the whole string, only what is needed for the next
# letter. All 12 states of the encoder stay available, so the memory grows with the input.
#
# </details>
# <details>
# <summary>3. Add 5 to all scores of the table. What are the weights?</summary>
#
# The same. Every exp(score) is multiplied by $\exp(5)$, and so is their sum, so the factor cancels. Only differences
# between scores matter.
#
# </details>
