# %% [markdown]
# # Lesson 2: Attention
#
# How a decoder looks at the input at every step, with the numbers worked by hand, and what this does to long sequences.

# %% [markdown]
# ## The idea
#
# In lesson 1, the encoder squeezed the whole input into one vector, and strings of 12 letters did not fit. Bahdanau et
# al. (2015) keep *all* states of the encoder. At each step, the decoder computes a new context from them: a **weighted
# average**. The weights say how much each input position matters for the next output token.
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
# Let $q$ be the query, and $k_1, \dots, k_m$ and $v_1, \dots, v_m$ the keys and values of the $m$ input positions.
# Attention has three steps. The **score** $e_j$ says how well the query matches key $j$; it can be any number. Here it
# is computed by a small network with the matrices $W$ and $U$ and the vector $w$, which are learned:
#
# $$e_j = w^\top \tanh(W q + U k_j)$$
#
# The **weights** are the softmax of the scores. They are positive and sum to 1:
#
# $$a_j = \frac{\exp(e_j)}{\exp(e_1) + \dots + \exp(e_m)}$$
#
# The **context** is the average of the values with these weights:
#
# $$c = a_1 v_1 + \dots + a_m v_m$$
#
# The decoder computes this at each step $i$ with its last state as the query, $q = s_{i-1}$. The next state depends on
# the new context: $s_i = g(y_{i-1}, c, s_{i-1})$, where $y_{i-1}$ is the last output token.

# %% [markdown]
# ## By hand
#
# Three positions, and the simplest score, the dot product $e_j = q^\top k_j$. The query is $q = (1, 1)$.
#
# | position | key | score | exp(score) | weight | value | weight × value |
# |---|---|---|---|---|---|---|
# | 1 | (2, 0) | 2 | 7.389 | 0.665 | 10 | 6.65 |
# | 2 | (0, 1) | 1 | 2.718 | 0.245 | 20 | 4.89 |
# | 3 | (1, −1) | 0 | 1.000 | 0.090 | 30 | 2.70 |
# | sum | | | 11.107 | 1.000 | | 14.25 |
#
# The context is 14.25: most of it comes from the first value, whose key matches best. regard computes the same. Its
# tensors have an axis for several examples before the others, so each list has one more pair of brackets:

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
assert abs(context.item() - 14.25) < 0.01

# %% [markdown]
# ## In Python
#
# The task is that of lesson 1: reverse a string of 2 to 12 letters. We train two models that differ in one setting. The
# first has a fixed context, as in lesson 1, and the second has attention.

# %%
LETTERS = "abcdefghij"
SETTINGS = {
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


fixed = train({"model": "fixed"})
model = train({})
print(model.settings.model.architecture)

# %% [markdown]
# Here is what the second model computes for one string. Each row is a step of the decoder, and each column is an input
# position.

# %% alt="The explorer with the attention weights of a reversed string: the last letter is read first."
trace = model.trace("fadebag", queries=True)
trace

# %% [markdown]
# The weights run from the end of the input to its start: to write the first letter, the model looks at the last one.
# Nobody told it to. It was only trained to write the correct letters.
#
# A trace contains every number of the equation, so we can repeat the first step of the decoder by hand:

# %%
numbers = trace.inputs[0].arrays
parameters = trace.mechanisms["decoder.attention"].parameters
w = parameters["score.v"][0]
W = parameters["score.query.weight"][0]
U = parameters["score.key.weight"][0]
q, k, v = numbers["query"][0], numbers["key"], numbers["value"]

e = np.array([w @ np.tanh(W @ q + U @ key) for key in k])  # scores
a = np.exp(e) / np.exp(e).sum()  # weights
c = a @ v  # context
for letter, score, weight in zip("fadebag", e, a, strict=True):
    print(f"{letter}  score {score:6.2f}  weight {weight:.3f}")

# %% [markdown]
# These are the weights in the first row of the trace. The context is equal to the one that the model's own attention
# computes for this query:

# %%
attention = dict(model.named_modules())["decoder.attention"]
context, weights = attention(torch.tensor(q)[None, None], torch.tensor(k)[None])
assert np.allclose(a, trace.prediction.attention[0], atol=1e-3)
assert np.allclose(a, weights.detach(), atol=1e-5)
assert np.allclose(c, context.detach(), atol=1e-4)
print("sum of the weights:", round(float(a.sum()), 6))
print("the context by hand: ", c[:4].round(3), "…")
print("the model's context: ", context[0, 0, :4].detach().numpy().round(3), "…")

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
axes.legend()
plt.show()

of_12 = {name: shares[5] for name, shares in accuracies.items()}
assert of_12["with attention"] > 0.8 > 0.3 > of_12["fixed context"]

# %% [markdown]
# With the same data, the same number of steps and states of the same size, the model with attention reverses strings
# of 12 letters, and the one with a fixed context does not. Beyond the training lengths, the model with attention is
# better too, but it fails in the end. Attention solved one problem, not all.

# %% [markdown]
# ## Experiment
#
# **Change `TEXT`, and run the cell again. What do you expect for a string of 16 or 20 letters, or for a string with one
# letter repeated, such as `aaaaaaaa`?** The figure shows where the model loses its place.

# %% alt="Attention weights of a string of 12 letters: a falling diagonal from the last letter to the first."
TEXT = "abcdefghijab"

prediction = model.predict(TEXT)
print("expected ", TEXT[::-1])
print("predicted", prediction.text)
assert prediction.attention is not None
figure, axes = plt.subplots(figsize=(5, 4))
axes.imshow(prediction.attention, cmap="Blues", vmin=0, vmax=1, aspect="auto")
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
# All weights are $1/m$, so the context is the ordinary average of the values.
#
# </details>
# <details>
# <summary>2. The context still has 128 numbers, as in lesson 1. Why are long strings no problem now?</summary>
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
