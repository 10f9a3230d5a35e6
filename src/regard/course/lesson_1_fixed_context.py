# %% [markdown]
# # Lesson 1: A fixed context
#
# How a network turns one sequence into another through a single vector, and why this fails for long sequences.

# %% [markdown]
# ## The idea
#
# *Sequence to sequence* means: a sequence goes in, and another one comes out. A sentence becomes its translation, and
# a date becomes its standard form. Their lengths can differ.
#
# The first neural networks for this task (Sutskever et al. 2014, Cho et al. 2014) have two parts:
#
# - The **encoder** reads the input, one token at a time. A token is a word or, in this lesson, a letter. After each
#   token, the encoder updates a vector of fixed size, its *state*. The last state is called the **context**.
# - The **decoder** starts from the context and writes the output, one token at a time, until it writes a token that
#   means *end*.
#
# The context is all that the decoder knows about the input. It has the same size for 2 letters as for 200. This lesson
# measures what follows from that.

# %% [markdown]
# ## The equation
#
# Let $x_1, \dots, x_S$ be the vectors of the $S$ input tokens, and $y_1, \dots, y_T$ the $T$ output tokens. A
# *recurrent network* is a function that is applied again and again: the output of one step, its state, is an input of
# the next step. The encoder computes the states $h_1, \dots, h_S$ from $h_0 = 0$, and the last one is the context $c$:
#
# $$h_j = f(x_j, h_{j-1}), \qquad c = h_S$$
#
# (The model below reads the input in both directions, and joins the two last states.)
#
# The decoder has states $s_t$. The first one, $s_0$, is computed from the context, and each of the others from the
# state before it and the output token before it. $y_0$ is a token that means *start*:
#
# $$s_0 = \tanh(V c), \qquad s_t = g(y_{t-1}, s_{t-1})$$
#
# The probabilities of the next token are computed from the state. $W s_t$ is a vector with one number for each possible
# token. (The model below has another layer before $W$, which also reads $y_{t-1}$.)
#
# $$p(y_t \mid y_1, \dots, y_{t-1}, x) = \operatorname{softmax}(W s_t)$$
#
# $f$ and $g$ are recurrent networks, and $V$ and $W$ are matrices. All their numbers are learned. Here, $f$ and $g$ are
# GRUs (gated recurrent units): their gates, numbers from 0 to 1, control how much of the old state is kept. The softmax
# turns any numbers into positive numbers that sum to 1.
#
# The right-hand sides of the decoder's equations do not contain $x$. The input reaches the output only through $c$.

# %% [markdown]
# ## In Python
#
# The task is to reverse a string: `abc` becomes `cba`. The strings are generated, so there is nothing to download.
# Every letter matters, and there is exactly one correct output. We train on 20,000 random strings of 2 to 12 letters,
# about 2,100 of each length from 4 on. No string is used twice.

# %%
import random
import tempfile

import matplotlib.pyplot as plt

import regard

LETTERS = "abcdefghij"
SETTINGS = {
    "model": "fixed",
    "model.context": "initial",
    "model.encoder.hidden": 64,  # numbers of a state, in each direction
    "model.decoder.hidden": 128,
    "model.dropout": 0.0,
    "data.train": 20_000,
    "data.letters": len(LETTERS),
    "data.shortest": 2,
    "data.longest": 12,
    "data.dev": 200,
    "training.steps": 600,
    "training.validate_every": 600,
}


def train(settings: dict[str, object]) -> regard.Model:
    """Train a model on strings and their reverse, in a temporary folder."""
    folder = tempfile.mkdtemp()
    settings = {**SETTINGS, **settings}
    run = regard.train("sequences", settings, out=folder, quiet=True)
    return run.load(device="cpu")


model = train({})
print(model.settings.model.architecture)
print(model.predict("abc").text)

# %% [markdown]
# A model of the kind `fixed` has no attention. Its encoder consists of two networks: one reads the string from left to
# right, the other from right to left. The last states of both, with 64 numbers each, form the context: 128 numbers.
#
# One short string is no proof. For each length, we let the model reverse 100 random strings, and count how many outputs
# are completely correct.


# %%
def accuracy(model: regard.Model, length: int) -> float:
    """Return the share of 100 random strings that the model reverses without an error."""
    generator = random.Random(length)
    strings = ["".join(generator.choices(LETTERS, k=length)) for _ in range(100)]
    outputs = [prediction.text for prediction in model.predict(strings)]
    pairs = zip(strings, outputs, strict=True)
    return sum(output == string[::-1] for string, output in pairs) / 100


lengths = range(2, 19, 2)
accuracies = {length: accuracy(model, length) for length in lengths}
for length in lengths:
    print(f"{length:2} letters: {accuracies[length]:4.0%}")

# %% alt="Accuracy by length: almost 100% for 4 letters, less than a half for 10, and 0 from 14 letters on."
figure, axes = plt.subplots(figsize=(7, 3.2))
axes.plot(lengths, list(accuracies.values()), marker="o")
axes.axvspan(2, 12, alpha=0.12, label="lengths of the training strings")
axes.set_xticks(lengths)
axes.set(xlabel="letters in the input", ylabel="correct strings", ylim=(-0.03, 1.03))
axes.legend()
plt.show()

# %% [markdown]
# Two things happen:
#
# 1. **From 4 letters on, accuracy falls with the length,** within the training lengths too. The model was trained on
#    about 2,100 strings of 12 letters, and reverses almost no string of this length correctly. All letters must be
#    stored in the same 128 numbers, and the more letters there are, the harder it is to *learn* how to store and
#    recover them.
# 2. **Beyond the training lengths, accuracy is zero.** The model has never had to store or to write that number of
#    letters.
#
# What do the errors look like?

# %%
for string in ("jcab", "jcabfdgehi", "jcabfdgehiaf", "jcabfdgehiafbdhe"):
    print("expected ", string[::-1])
    print("predicted", model.predict(string).text, end="\n\n")

# %% [markdown]
# The first letters are correct. Later, neighbors are exchanged. An output for a string that is longer than those in
# training also lacks letters.

# %% [markdown]
# ## Experiment
#
# `SIZE` is the size of the context and of the decoder states. **Change it to 64 or 256, and run the cell again. Before
# you do: which lengths do you expect to become better or worse?** The run takes half a minute or less.
#
# <details>
# <summary>What comes out</summary>
#
# With the default seed, a model with 64 numbers reverses about half of the strings of 8 letters and a fifth of those of
# 10, fewer than with 128 numbers. With 256, it reverses only a third and a tenth after the same number of steps. So a
# context of more than 128 numbers does not help here (question 2).
#
# </details>

# %%
SIZE = 128

if SIZE != 128:
    other = train({"model.encoder.hidden": SIZE // 2, "model.decoder.hidden": SIZE})
    print("letters    128 ", SIZE)
    for length in lengths:
        share = accuracy(other, length)
        print(f"{length:7} {accuracies[length]:6.0%} {share:5.0%}")

# %% [markdown]
# ## Questions
#
# <details>
# <summary>1. The decoder uses the context only once, for its first state. Why can it still write the last
# letter?</summary>
#
# The context determines $s_0$, and each state is computed from the state before it. The decoder must carry the letters
# that it has not written yet from state to state.
#
# </details>
# <details>
# <summary>2. A context of 128 numbers of 32 bits has 4,096 bits, and 12 letters from an alphabet of 10 need only 12 ·
# log₂ 10 ≈ 40 bits. So why does the model fail?</summary>
#
# Space is not the limit: learning is. Training would have to find an encoder that writes each letter to its own place,
# and a decoder that reads these places in the reverse order. Gradient descent finds it for short strings first. More
# steps would probably help within the training lengths, and not beyond them.
#
# </details>
# <details>
# <summary>3. Strings of 2 letters are shorter than those of 4. Why does the model make more errors with
# them?</summary>
#
# There are only 100 different strings of 2 letters, and no string is used twice. So at most 100 of the 20,000 training
# strings have 2 letters. Most of what the model has learned comes from longer strings.
#
# </details>
#
# The decoder needs a way to look at the input again. Lesson 2 adds it.
