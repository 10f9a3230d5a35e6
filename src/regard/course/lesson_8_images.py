# %% [markdown]
# # Lesson 8: Attend and tell
#
# A model that describes pictures: where it looks for each word, soft and hard, and what it says if a part is missing.

# %% [markdown]
# ## The idea
#
# Attention reads a set of vectors. So far, each vector belonged to a word. *Show, Attend and Tell* (Xu et al. 2015)
# uses vectors that belong to the parts of a picture. A convolutional network divides the picture into a grid of cells,
# and computes a vector for each cell, its *annotation*. The decoder is the one that you know: at each word, it compares
# its query with all cells, and reads a weighted average of their annotations.
#
# There are two ways to read, which you know from lesson 4. **Soft** attention reads an average of all cells. **Hard**
# attention reads a single cell. The weights can be drawn over the picture, so you see where the model looks when it
# writes a word.

# %% [markdown]
# ## The equation
#
# Let $v_1, \dots, v_S$ be the annotations of the $S$ cells, and $q_t$ the state of the decoder before word $t$. The
# scores are those of additive attention, with learned matrices $W$ and $U$ and a learned vector $u$:
#
# $$e_{tj} = u^\top \tanh(W q_t + U v_j)$$
#
# $$a_t = \operatorname{softmax}(e_t)$$
#
# Soft attention reads the average $c_t$. Hard attention draws one cell $j_t$ with the probabilities $a_t$, or takes the
# most likely one after training:
#
# $$\text{soft:} \quad c_t = \sum_j a_{tj} v_j$$
#
# $$\text{hard:} \quad c_t = v_{j_t}, \quad j_t \sim a_t$$
#
# The sign $\sim$ means *drawn with the probabilities*. The draw has no gradient, so hard attention is trained with a
# trick, REINFORCE: if a draw led to a better prediction than the average of recent draws, its probability is increased.

# %% [markdown]
# ## In Python
#
# We draw our own pictures: two colored shapes, side by side or one above the other. If they are side by side, the
# caption names the left one first; if one is above the other, the upper one. If one is at the lower left and the other
# at the upper right, the rules contradict each other, so even a perfect model makes a few errors.
# `regard.register_corpus` makes our function available as training data.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import regard

SIZE, SHAPE = 32, 14  # of a picture and of a shape, in pixels
COLORS = {"red": (214, 39, 40), "green": (44, 160, 44)}
COLORS |= {"blue": (31, 84, 214), "yellow": (240, 214, 40)}

y, x = np.mgrid[-1 : 1 : SHAPE * 1j, -1 : 1 : SHAPE * 1j]
SHAPES = {
    "circle": x**2 + y**2 <= 1,
    "square": np.maximum(abs(x), abs(y)) <= 0.85,
    "cross": np.minimum(abs(x), abs(y)) <= 0.3,
}


def paint(objects):
    """Return a picture of objects: the color, the shape, and the row and column of the upper left corner."""
    picture = np.full((SIZE, SIZE, 3), 235, np.uint8)
    for color, shape, top, left in objects:
        picture[top : top + SHAPE, left : left + SHAPE][SHAPES[shape]] = COLORS[color]
    return picture


def draw(generator):
    """Return a random picture and its caption."""
    objects = []
    is_column = generator.random() < 0.5
    for half in (0, SIZE // 2):
        color, shape = generator.choice(list(COLORS)), generator.choice(list(SHAPES))
        along = half + generator.integers(SIZE // 2 - SHAPE + 1)
        across = generator.integers(SIZE - SHAPE + 1)
        top, left = (along, across) if is_column else (across, along)
        objects.append((color, shape, top, left))
    return paint(objects), " ".join(f"{color} {shape}" for color, shape, _, _ in objects)


generator = np.random.default_rng(0)
test, dev, train = ([draw(generator) for _ in range(count)] for count in (200, 200, 2000))
test_pictures = [picture for picture, _ in test]


def load_shapes():
    return regard.Corpus(train=regard.Pairs.of(train), dev=regard.Pairs.of(dev), test=regard.Pairs.of(test))


regard.register_corpus("shapes", load_shapes, source_kind="image")

# %% alt="Four pictures with their captions."
figure, panels = plt.subplots(1, 4, figsize=(8, 2.6))
for axes, (picture, caption) in zip(panels, test, strict=False):
    axes.imshow(picture)
    axes.set_title("{} {}\n{} {}".format(*caption.split()))
    axes.axis("off")
plt.show()

# %% [markdown]
# The encoder has three 3 × 3 convolutions. Each halves the resolution, so the 32 × 32 pixels become a grid of 4 × 4
# cells with 64 numbers each. A learned vector for its position is added to each cell, because attention does not know
# where a cell is. The decoder is a GRU. We train 600 steps with 32 pictures each.

# %%
folder = Path(tempfile.mkdtemp())
encoder = {"kind": "cnn", "height": SIZE, "width": SIZE, "positions": "learned"}
settings = {
    "data": {"kind": "shapes"},
    "tokenizer": "word",
    "model": {
        "kind": "recurrent",
        "embedding": 32,
        "encoder": {**encoder, "channels": [16, 32, 64], "depth": 1},
        "decoder": {"cell": "gru", "hidden": 64},
        "attention": "show-attend-tell-soft",
        "dropout": 0,
    },
    "training": {"steps": 600, "batch_size": 32, "learning_rate": 0.006},
}
run = regard.train(settings, out=folder / "soft", quiet=True)
soft = run.load(device="cpu")
print(soft.predict(test_pictures[0]).text)

# %% [markdown]
# ### Where it looks
#
# At each word, the model has a weight for each of the 16 cells. We draw a cell darker if its weight is small, relative
# to the largest weight of the word.


# %%
def draw_weights(panels, model, picture):
    """Draw a picture for each word of its caption, under the weights of this word."""
    prediction = model.predict(picture)
    words = prediction.text.split()
    for axes, word, weights in zip(panels, words, prediction.attention, strict=False):
        light = weights.reshape(4, 4) / weights.max()
        light = 0.5 + 0.5 * light.repeat(SIZE // 4, 0).repeat(SIZE // 4, 1)
        axes.imshow((picture * light[..., None]).astype(np.uint8))
        axes.set_title(word)
        axes.axis("off")


# %% alt="Two pictures, once for each word of their captions: the cells of the mentioned object are bright."
figure, rows = plt.subplots(2, 4, figsize=(8, 4.6))
for panels, (picture, _) in zip(rows, test, strict=False):
    draw_weights(panels, soft, picture)
plt.show()

# %% [markdown]
# The model was trained with captions only, without the places of the objects. In these two pictures, it looks at the
# object that it names.

# %% [markdown]
# ### Soft and hard
#
# Hard attention is difficult to train from random parameters, because at first the draws are useless. So we start from
# the parameters of the soft model (`training.init_from`), and train 150 more steps with REINFORCE. `reward`
# and `entropy` are the weights of two terms of the loss: the reward, and a bonus that keeps the attention weights from
# collapsing on one cell too early.

# %%
reinforce = {
    "model.attention.select": {"kind": "hard", "reward": 0.01, "entropy": 0.001},
    "training.init_from": str(run.path),
    "training.steps": 150,
    "training.learning_rate": 0.002,
}
run = regard.train(settings, reinforce, out=folder / "hard", quiet=True)
hard = run.load(device="cpu")

for name, model in {"soft": soft, "hard": hard}.items():
    accuracy = model.evaluate(test, metrics="accuracy")["accuracy"]
    weights = np.concatenate([each.attention for each in model.predict(test_pictures)])
    cells = (weights > 0.01).sum(1).mean()
    print(f"{name}: {accuracy:.0%} correct captions, {cells:.1f} cells per word")
    assert accuracy > 0.85

# %% alt="A caption with soft attention in the first row, and with hard attention, one cell per word, below."
figure, rows = plt.subplots(2, 4, figsize=(8, 4.6))
for panels, model in zip(rows, (soft, hard), strict=True):
    draw_weights(panels, model, test_pictures[2])
plt.show()

# %% [markdown]
# Both describe the pictures equally well. Soft attention has weights above 0.01 on about two cells per word, and hard
# attention reads exactly one. In the lower row, the bright cell is the only one that attention reads. Its annotation
# also depends on the pixels around it (question 2). The other cells can still have an effect: in both
# models, the first state of the decoder is computed from the average of all cells.

# %% [markdown]
# ### Brush a part out
#
# The weights claim that the last two words depend on the second object. We test the claim as with erasure in lesson 5:
# we change the input, and not the weights. The edit `mask_region` fills cells with the average color of the picture,
# before the model sees it. We brush out the cell with the largest weight at the third word, and its neighbors. As a
# control, we brush out the place that has the least weight, summed over all words.


# %%
def around(center):
    """Return a cell and its neighbors."""
    rows, columns = np.divmod(np.arange(16), 4)
    is_near = (abs(rows - center // 4) <= 1) & (abs(columns - center % 4) <= 1)
    return np.flatnonzero(is_near).tolist()


def brush(picture, center, **options):
    """Return the trace of a picture without a cell and its neighbors."""
    return soft.trace(picture, edits=[{"kind": "mask_region", "cells": around(center)}], **options)


kept = {"largest": 0, "least": 0}
changed = kept.copy()
for picture in test_pictures[:30]:
    prediction = soft.predict(picture)
    total = prediction.attention[:4].sum(0)
    least = min(range(16), key=lambda cell: total[around(cell)].sum())
    for name, center in {"largest": prediction.attention[2].argmax(), "least": least}.items():
        edited = brush(picture, center).prediction
        kept[name] += edited.tokens[:2] == prediction.tokens[:2]
        changed[name] += edited.tokens[2:] != prediction.tokens[2:]
for name, count in kept.items():
    print(f"{name} weight: {count} of 30 keep words 1 and 2, {changed[name]} change words 3 and 4")

assert kept["largest"] >= 20 <= kept["least"]
assert changed["largest"] >= 15 > changed["least"]

# %% [markdown]
# Without the cells around the largest weight of the third word, in most pictures the words of the first object stay and
# those of the second change. Without the cells with the least weight, few words change. So the model depends on what it
# looks at. But what does it write about an object that is not there? In the explorer, select a word to see its weights
# over the picture.

# %% alt="The explorer with the picture without its second object: the caption mentions the first object twice."
example = next(picture for picture, caption in test if caption == "green circle blue square")
prediction = soft.predict(example)
trace = brush(example, prediction.attention[2].argmax(), queries=True)
print(f"{prediction.text} → {trace.prediction.text}")
trace

# %% [markdown]
# It writes the first object again. Every caption in the training data has two objects, so the decoder describes two.

# %% [markdown]
# ## Experiment
#
# Draw your own picture: `OBJECTS` is a list of colors, shapes and the position of the upper left corner (row, column),
# from 0 to 18. **Put one object at the lower left and one at the upper right: which one is named first? Then try one
# object, and three. What do you expect in each case, and where will the model look?**

# %% alt="A red circle and a blue cross under the weights of each word."
OBJECTS = [("red", "circle", 9, 1), ("blue", "cross", 9, 17)]

figure, panels = plt.subplots(1, 4, figsize=(8, 2.4))
draw_weights(panels, soft, paint(OBJECTS))
plt.show()

# %% [markdown]
# <details>
# <summary>What comes out</summary>
#
# Two objects on this diagonal have no order: in training, half of such pictures name the left object first, and half
# the upper one. In our run, the order depends on the colors and shapes, and sometimes the model mixes both objects. One
# object is named twice. Of three objects, the model names two.
#
# </details>

# %% [markdown]
# ## Questions
#
# <details>
# <summary>1. The training data does not say where an object is. How does the model learn where to look?</summary>
#
# The weights are part of the computation of the probability of each word. If more weight on a cell makes the correct
# word more likely, then the gradient increases this weight. With hard attention, there is no such gradient, and a good
# draw is rewarded instead.
#
# </details>
# <details>
# <summary>2. The brightest cell covers only a corner of an object. Does the model know only this corner?</summary>
#
# No. Each convolution looks at 3 × 3 pixels of the layer before, so after three of them, an annotation depends on about
# 15 × 15 pixels, and not only on the 8 × 8 pixels of its cell. A weight is on an annotation, and not on pixels. The
# characters of lesson 5 have the same property: a weight was on a state.
#
# </details>
# <details>
# <summary>3. Soft attention may average two cells that contain different objects. Why is this a problem, and why does
# it rarely happen here?</summary>
#
# The average of *red circle* and *blue cross* could be the average of *red cross* and *blue circle*: which color
# belongs to which shape is lost. A model that mixes the two makes errors, so training moves the weights to one object
# at a time.
#
# </details>
#
# This is the end of the course. You started with one context vector. Attention replaced it by a new context at each
# step. You saw attention from one text to another, within a text, and from a text to a picture. To continue with your
# own data, see `regard train --pairs FILE` for texts and `regard train --images FOLDER --pairs FILE` for pictures;
# `regard explore RUN` opens your model in the explorer.
