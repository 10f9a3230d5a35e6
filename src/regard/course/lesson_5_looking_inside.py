# %% [markdown]
# # Lesson 5: Looking inside
#
# What attention weights mean and what they do not, tested by erasing parts of the input and by editing the weights.

# %% [markdown]
# ## The idea
#
# A matrix of attention weights looks like an explanation: the model wrote *this* because it looked *there*. There are
# two questions about such a picture:
#
# - Is it **plausible**? Do the weights agree with what a human would look at?
# - Is it **faithful**? Do the weights show what the output depends on?
#
# A plausible picture need not be faithful. Jain and Wallace (2019, *Attention is not Explanation*) found that weights
# often disagree with other measures of importance, and that very different weights often lead to the same output.
# Wiegreffe and Pinter (2019, *Attention is not not Explanation*) replied that this depends on the task, and that one
# must first test whether the model needs its attention at all.
#
# In this lesson, you make these tests yourself. There are two ways to find out what an output depends on: change the
# **input**, which is called *attribution*, or change the **weights**.

# %% [markdown]
# ## The equation
#
# Let $y_t$ be the output token of step $t$. Attention gives
# input token $j$ the weight $a_{tj}$ at this step. Another measure of how much token $j$ matters for $y_t$ is
# **erasure**. It replaces the token by the one for unknown characters, and runs the model again:
#
# $$o_{tj} = \log p(y_t) - \log p_j(y_t)$$
#
# $p(y_t)$ is the probability that the model gives to $y_t$, and $p_j(y_t)$ is the probability without token $j$. Both
# are computed with the same previous output $y_1, \dots, y_{t-1}$. The score is positive if the token makes $y_t$ more
# likely, and negative if it makes $y_t$ less likely.
#
# To test the weights themselves, replace the weights $a_t$ of one step with other weights $b_t$:
#
# $$\Delta_t = \log p(y_t) - \log p_{b_t}(y_t)$$
#
# $p_{b_t}(y_t)$ is the probability with the other weights. If $\Delta_t$ is close to 0, the output of this step does
# not depend on the difference between $a_t$ and $b_t$.

# %% [markdown]
# ## In Python
#
# The model of this lesson reads dates in three English formats, character by character, and writes them in the standard
# form. It has a recurrent encoder that reads in both directions, a recurrent decoder, and additive attention.

# %%
import calendar
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import regard

generator = random.Random(0)


def write_date() -> tuple[str, str]:
    """Return a random date as text, and in the standard form."""
    year, month = generator.randint(1950, 2029), generator.randint(1, 12)
    day, name = generator.randint(1, 28), calendar.month_name[month]
    formats = f"{day} {name} {year}", f"{name} {day}, {year}", f"{year}, {name} {day}"
    return generator.choice(formats), f"{year}-{month:02}-{day:02}"


test = [write_date() for _ in range(200)]
folder = Path(tempfile.mkdtemp())
lines = ["\t".join(write_date()) + "\n" for _ in range(4000)]
(folder / "dates.tsv").write_text("".join(lines))

TRAINING = {"steps": 300, "batch_size": 32, "learning_rate": 0.01, "warmup": 30}


def train(name: str, **model: object) -> regard.Model:
    """Train a small model, and print how many dates of the test set it writes correctly."""
    settings = {
        "model": {"embedding": 32, "dropout": 0, "decoder": {"hidden": 64}, **model},
        "training": {**TRAINING, "validate_every": 300},
        "data.train": str(folder / "dates.tsv"),
    }
    run = regard.train("pairs", settings, out=folder / name, quiet=True)
    trained = run.load(device="cpu")
    print(f"{name}: {trained.evaluate(test, metrics='accuracy')['accuracy']:.0%} correct")
    return trained


encoder = {"hidden": 32}
model = train("attention", kind="recurrent", encoder=encoder, attention="bahdanau")

# %% [markdown]
# ### Is attention needed here?
#
# The first test of Wiegreffe and Pinter: train the model again with equal weights that stay fixed. Every input token
# has the same weight at every step, so the context is the average of the encoder states. In regard, this is a fixed
# context that the decoder reads at every step. If this model were as good, then learned weights would not be needed,
# and there would be nothing to explain.

# %%
averaging = {"hidden": 32, "summary": "mean"}
average = train("average", kind="fixed", encoder=averaging, context="every_step")

# %% [markdown]
# Attention is needed. Now look at the weights for one date. `Model.trace` returns a prediction with its weights and the
# most likely tokens of each step; `queries=True` adds queries, keys and values for the tab *Equation*. On this page,
# the trace opens as an interactive explorer; in a notebook, you see a picture of the weights. Choose a character of the
# output to see where the model looked, and which other characters it considered.

# %% alt="The explorer with the attention weights for March 14, 1987: most digits attend to the same digit."
SOURCE, TARGET = "March 14, 1987", "1987-03-14"
trace = model.trace(SOURCE, queries=True)
assert trace.prediction.text == TARGET
trace

# %% [markdown]
# The picture is plausible: the last digits of the year and of the day attend to the same digits of the source. The
# hyphens also attend to some characters, although every output has the same hyphens. (The `assert` lines of the lessons
# check what the text says.)
#
# ### Change the input: attribution
#
# `Model.attribute` computes scores of the input tokens. Erasure is called *occlusion* there. The figure shows the
# weights and the scores side by side. Each map is divided by its largest absolute value. Negative scores are blue.

# %% alt="Maps of attention and erasure: they agree at the last digits of year and day, not at the hyphens."
attention = trace.prediction.attention
erasure = model.attribute(SOURCE, TARGET, method="occlusion").scores
maps = {"attention": attention, "erasure": erasure}

figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for axes, (name, scores) in zip(panels, maps.items(), strict=True):
    image = axes.imshow(scores / abs(scores).max(), cmap="coolwarm", vmin=-1, vmax=1)
    axes.set(title=name, xlabel="character of the input")
    axes.set_xticks(range(len(SOURCE)), list(SOURCE.replace(" ", "␣")))
    axes.set_yticks(range(len(TARGET)), list(TARGET))
panels[0].set_ylabel("character of the output")
figure.colorbar(image, ax=panels, label="value / largest value")
plt.show()

for t in (3, 6, 9):
    letters = [SOURCE[scores[t].argmax()] for scores in maps.values()]
    print(f"at {TARGET[t]}: the largest weight is on {letters[0]}, the largest score on {letters[1]}")

# %% [markdown]
# At the last digits of year and day, the two maps agree. At the second digit of the month, the *3*, the largest weight
# and the largest score can be on different letters of *March*. How often do they agree? For 20 dates, we count how
# often the largest weight and the largest erasure score are on the same character.

# %%
same = np.zeros(len(TARGET))
for source, target in test[:20]:
    attribution = model.attribute(source, target, method="occlusion")
    same += attribution.prediction.attention.argmax(1) == attribution.scores.argmax(1)
for label, count in zip("YYYY-MM-DD", same, strict=True):
    print(f"{label}: the same character in {count:2.0f} of 20 dates")

assert min(same[3], same[9]) > 12 > max(same[4], same[7])

# %% [markdown]
# At the last digits of year and day, they mostly agree. They disagree most at the hyphens: there, all erasure scores
# are near 0, but weights always sum to 1. At the month, they often differ, too, and there are two reasons:
#
# - **A weight is on a state, and not on a character.** The encoder reads in both directions, so its state at *c* in
#   *March* also depends on the letters around it. A weight on *c* can mean that *h* was read.
# - **Erasing depends on what remains.** *March* without *r* is still March. The score of a letter can be small even if
#   the model reads it.
#
# ### Change the weights
#
# Now the test of faithfulness. `Model.trace` accepts *edits*: changes that are applied while the model computes the
# output again. First we move the attention at the last digit of the year from `7` to `8`: to position 12 of the source
# instead of 13, counted from 0.


# %%
def look_at(t: int, j: int) -> dict[str, object]:
    """Return an edit that puts all weight of step t on position j of the source."""
    weights = [float(each == j) for each in range(len(SOURCE))]
    return {"kind": "set_row", "attention": "decoder.attention", "step": t, "weights": weights}


edited = model.trace(SOURCE, edits=[look_at(t=3, j=12)])
print(f"{SOURCE} → {edited.prediction.text}")

assert edited.prediction.text[3] == "8"

# %% [markdown]
# The model writes `8`. At this step, the output depends on the weights. Is this true of every step? For 10 dates, we
# replace the weights of one step at a time with equal weights, and with the same weights in a random order, as Jain and
# Wallace did. The figure shows $\Delta_t$: a dot for each date, and a bar for the average.

# %% alt="The change by output position: near 0 at the hyphens, several units at the last digits."
shuffler = np.random.default_rng(0)


def log_probs(source: str, target: str, *edits: dict[str, object]) -> list[float]:
    """Return the log-probability of each character of the target."""
    return [step.log_prob for step in model.trace(source, target, edits=edits).steps[0]]


changes: dict[str, list[float]] = {"equal": [], "shuffled": []}
for source, target in test[:10]:
    before = log_probs(source, target)
    weights = model.force([source], [target])[0].attention
    for t in range(len(target)):
        row = {"attention": "decoder.attention", "step": t}
        shuffled = shuffler.permutation(weights[t]).tolist()
        edits = {
            "equal": {"kind": "uniform_row", **row},
            "shuffled": {"kind": "set_row", **row, "weights": shuffled},
        }
        for name, edit in edits.items():
            changes[name].append(before[t] - log_probs(source, target, edit)[t])

figure, axes = plt.subplots(figsize=(7, 3.4))
steps = np.arange(len(TARGET))
for offset, (name, values) in zip((-0.15, 0.15), changes.items(), strict=True):
    deltas = np.array(values).reshape(-1, len(TARGET))
    axes.bar(steps + offset, deltas.mean(0), 0.3, alpha=0.5, label=f"{name} weights")
    axes.plot(steps + offset, deltas.T, ".", color="gray", markersize=4)
axes.set_xticks(steps, list("YYYY-MM-DD"))
axes.set(xlabel="character of the output", ylabel="Δ (drop in log-probability)")
axes.legend()
plt.show()

print("means           " + "".join(f"{character:>6}" for character in "YYYY-MM-DD"))
for name, values in changes.items():
    means = np.array(values).reshape(-1, len(TARGET)).mean(0)
    print(f"{name:8} weights" + "".join(f"{mean:z6.1f}" for mean in means))
    assert max(means[4], means[7]) < 0.1 < 1 < min(means[3], means[8], means[9])

# %% [markdown]
# Both sides of the debate are right, at different steps of the same model:
#
# - At the **hyphens**, neither equal nor shuffled weights change the output. The decoder knows from its own state that
#   a hyphen comes next. The weights do not explain why the model writes a hyphen. (They could still change later steps;
#   this test does not measure that.)
# - At the **digits that must be read**, the last of the year and those of the day, other weights change the output:
#   with equal weights, $\Delta_t$ is about 3 on average. A drop of 3 multiplies the probability by $e^{-3}$, which is 5
#   %. Some dots are near 0: for these dates, the model writes the same digit with other weights. The other digits are
#   between these extremes.
# - At the **first two digits**, equal weights change little. The century is 19 or 20, and a blurred context is enough
#   to decide. Shuffled weights change more: a wrong place is worse than a blur.

# %% [markdown]
# ## Experiment
#
# `T` is a step of the output, and `J` a position of the source, both counted from 0. The edit puts all weight of the
# step on this position: on the `9` of `1987`, when the model writes the last digit of the day. **Try to make the model
# write another day, another month or another separator.** Before you run the cell, write down what you expect. Does the
# edit also change the output *after* the step?

# %%
T, J = 9, 11  # the last digit of the day, and the 9 of 1987

edited = model.trace(SOURCE, edits=[look_at(T, J)])
print(f"{SOURCE} → {edited.prediction.text}, without the edit {TARGET}")

# %% [markdown]
# <details>
# <summary>What comes out</summary>
#
# In our run, the model writes `1987-03-19`: it copies the digit that it looks at. Another separator cannot be written:
# at the hyphens, no position changes the output. Most edits change only one step. An exception is `T, J = 5, 6`: the
# month becomes `10`, because the decoder knows that it has written `1`, and the next digit fits this.
#
# </details>

# %% [markdown]
# ## Questions
#
# <details>
# <summary>1. At a hyphen, one character of the source has the largest weight. What can you conclude about how the
# model writes a hyphen?</summary>
#
# Nothing from the picture alone. The weights of every step sum to 1, so they must be somewhere, also if the decoder
# does not need the context. Only the test shows it: the hyphen stays when the weights change.
#
# </details>
# <details>
# <summary>2. A colleague replaces the weights of your model at one step, and the output stays the same. Are the weights
# of your model meaningless?</summary>
#
# No. Some steps, such as those of the hyphens, do not need the context. Or several states contain the same information,
# because each state of the encoder also depends on the letters around it. First test whether attention is needed. (Here
# it is: without it, only a third of the dates are correct.) Then test at which steps the weights matter.
#
# </details>
# <details>
# <summary>3. Erasure gives a letter a score near 0. Does the model ignore it?</summary>
#
# Not necessarily. Other letters may provide the same information, so the model does not need this one. Erase several at
# once to find out. Also, a text without a letter is unlike the training data, so a large score can be an effect of the
# strange input.
#
# </details>
#
# A picture of weights is a hypothesis, and the edits are the test. In the next lesson, the encoder itself is made of
# attention.
