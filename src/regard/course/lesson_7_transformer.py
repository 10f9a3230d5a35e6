# %% [markdown]
# # Lesson 7: The Transformer, layer by layer
#
# A small Transformer on a file of pairs that you can replace with your own, with every layer computed step by step.

# %% [markdown]
# ## The idea
#
# The Transformer (Vaswani et al. 2017) is an encoder and a decoder without recurrent networks. It has only four kinds
# of layers, and you know most of them:
#
# 1. **Embeddings** turn tokens into vectors, and add the positions (lesson 6).
# 2. **Multi-head attention** moves information between positions. The encoder attends to itself. The decoder attends to
#    what it has written (self-attention with a causal mask), and to the encoder (cross-attention, as in lesson 2).
# 3. **Feed-forward layers** transform the vector of each position on its own, with a hidden layer of neurons.
# 4. A **linear layer** at the end turns each vector of the decoder into a score for each word of the vocabulary, and
#    the softmax turns the scores into probabilities.
#
# Two details make deep stacks of these layers trainable. A **residual connection** adds the input of a layer to its
# output, so that a layer only has to learn a change. **Layer normalization** then brings the numbers of each vector to
# mean 0 and variance 1.
#
# In training, the correct words are the input of the decoder, so all steps are computed at once. In prediction, the
# decoder reads the words that it has written, one step after the other.

# %% [markdown]
# ## The equation
#
# Let $d$ be the size of the vectors, $x$ the vector of one position, and $f$ an attention or feed-forward layer. (An
# attention layer also reads the vectors of other positions.) Each layer is used in the same way:
#
# $$x \leftarrow \operatorname{LN}(x + f(x))$$
#
# $$\operatorname{LN}(x) = \gamma \odot \frac{x - \mu}{\sigma} + \beta$$
#
# $\operatorname{LN}$ is layer normalization: $\mu$ and $\sigma$ are the mean and the standard deviation of the $d$
# numbers of $x$, the vectors $\gamma$ and $\beta$ are learned, and $\odot$ multiplies two vectors number by number. The
# feed-forward layer, $\operatorname{FFN}$, has two learned matrices $W_1$ and $W_2$ and two learned vectors $b_1$ and
# $b_2$. $W_1 x$ has more numbers than $x$, usually $4d$:
#
# $$\operatorname{FFN}(x) = W_2 \max(0, W_1 x + b_1) + b_2$$
#
# Here, $\max(0, \cdot)$ replaces negative numbers with 0. Without it, the two matrices would be equivalent to one.
#
# A *block* of the encoder is self-attention and FFN. A block of the decoder is causal self-attention, cross-attention
# and FFN. Encoder and decoder are stacks of such blocks. The first $x$ is $\sqrt{d}$ times the embedding of the token,
# plus the vector of its position.

# %% [markdown]
# ## In Python
#
# ### Your pairs
#
# The cell writes 768 English sentences with their German translations to the file `pairs.tsv`: a sentence, a tab, a
# translation. **If there is already a file with this name in the folder, it is used.** So you can replace it with your
# own pairs: another language, formulas, spellings, whatever has a source and a target of a few words.
#
# Half of the pairs are for training. A tenth, *dev*, is for choosing the checkpoint, and the others are the test set.
#
# A translation word by word would be wrong. In German, *the* depends on the noun (*den Baum, die Lampe, das Buch*), the
# verb is at the end, and *today* is in the middle.

# %%
import itertools
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import regard
from regard.data.tokens.tokenizers import START

SUBJECTS = {"I have": "ich habe", "you have": "du hast"}
SUBJECTS |= {"we have": "wir haben", "they have": "sie haben"}
VERBS = {
    "seen": "gesehen",
    "heard": "gehört",
    "found": "gefunden",
    "bought": "gekauft",
    "painted": "gemalt",
    "lost": "verloren",
}
NOUNS = {"dog": "den Hund", "cat": "die Katze", "horse": "das Pferd", "car": "das Auto"}
NOUNS |= {"tree": "den Baum", "lamp": "die Lampe", "book": "das Buch", "hat": "den Hut"}
ADVERBS = {"": "", " today": " heute", " yesterday": " gestern", " often": " oft"}

SENTENCE = "we have painted the tree today"
PAIRS = Path("pairs.tsv")

if not PAIRS.exists():
    with PAIRS.open("w", encoding="utf-8") as file:
        for s, v, n, a in itertools.product(SUBJECTS, VERBS, NOUNS, ADVERBS):
            german = f"{SUBJECTS[s]}{ADVERBS[a]} {NOUNS[n]} {VERBS[v]}"
            print(f"{s} {v} the {n}{a}\t{german}", file=file)

rows = (line.split("\t") for line in PAIRS.read_text("utf-8").splitlines())
pairs = [(source, target) for source, target in rows]
random.Random(0).shuffle(pairs)
half, dev_size = len(pairs) // 2, len(pairs) // 10
train, dev, test = pairs[:half], pairs[half : half + dev_size], pairs[half + dev_size :]
print(f"{len(train)} pairs to learn from, {len(test)} to test, for example:")
print(*test[0], sep="\n")

# %% [markdown]
# The model has two encoder blocks and two decoder blocks, vectors of 32 numbers and four heads. The Transformer of the
# paper has six blocks on each side, 512 numbers and eight heads: the same code, with other numbers.

# %%
settings = {
    "tokenizer": {"kind": "word", "shared": False},
    "model": {
        "kind": "transformer",
        "size": 32,
        "feedforward": 128,
        "layers": 2,
        "heads": 4,
        "dropout": 0,
    },
    "training": {"steps": 400, "batch_size": 32, "learning_rate": 0.005, "warmup": 50},
}
folder = tempfile.mkdtemp()
run = regard.train(pairs=train, dev=dev, overrides=settings, out=folder, quiet=True)
model = run.load(device="cpu")
accuracy = model.evaluate(test, metrics="accuracy")["accuracy"]
print(f"{accuracy:.0%} of the test pairs are translated correctly")
print(model.predict(SENTENCE).text)

# %% [markdown]
# ### The whole Transformer, step by step
#
# Now we compute the output again. We take only the learned parameters from `model.network`, and write attention,
# normalization and residual connections ourselves. A part such as `to_query` is a linear layer: calling it multiplies
# by its matrix and adds its bias.


# %%
def normalize(x, part):
    """Layer normalization of each row of x."""
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return part.weight * (x - mean) / (variance + 1e-5).sqrt() + part.bias


def attend(x, memory, part, causal=False):
    """Attend from each row of x to the rows of the memory. Return outputs and weights."""
    heads, size = 4, x.shape[1] // 4
    projected = part.to_query(x), part.to_key(memory), part.to_value(memory)
    q, k, v = (each.view(-1, heads, size).transpose(0, 1) for each in projected)
    scores = q @ k.transpose(1, 2) / size**0.5  # (heads, rows of x, rows of the memory)
    if causal:
        is_later = torch.ones_like(scores).triu(1).bool()
        scores = scores.masked_fill(is_later, -torch.inf)
    weights = scores.softmax(-1)
    return part.output((weights @ v).transpose(0, 1).reshape(x.shape)), weights


def feed_forward(x, part):
    return part.outer(part.inner(x).relu())


def embed(ids, part):
    vectors = part.tokens.weight[ids]
    words, size = vectors.shape
    return size**0.5 * vectors + regard.sinusoidal_positions(words, size)


def encode(ids, encoder):
    x = embed(ids, encoder.embedding)
    for block in encoder.layers:
        new, _ = attend(x, x, block.attention)
        x = normalize(x + new, block.after_attention.norm)
        x = normalize(x + feed_forward(x, block.feedforward), block.after_feedforward.norm)
    return x


def decode(ids, memory, decoder):
    """Return the log-probabilities of each next word, and the weights of cross-attention."""
    x, cross_weights = embed(ids, decoder.embedding), []
    for block in decoder.layers:
        new, _ = attend(x, x, block.self_attention, causal=True)
        x = normalize(x + new, block.after_self.norm)
        new, weights = attend(x, memory, block.cross_attention)
        x = normalize(x + new, block.after_cross.norm)
        x = normalize(x + feed_forward(x, block.feedforward), block.after_feedforward.norm)
        cross_weights.append(weights)
    return decoder.output(x).log_softmax(-1), cross_weights


# %% [markdown]
# That is all of it. Do these functions compute the same as regard? The decoder receives the start token and the words
# before each step, and predicts the next word, until the end token `</s>`. The sign `▁` marks the beginning of a word.

# %%
trace = model.trace(SENTENCE, queries=True)
source_ids = model.predictor.reader.tokenizer.ids([SENTENCE])[0]
inputs = [START, *(step.id for step in trace.steps[0][:-1])]

with torch.no_grad():
    memory = encode(source_ids, model.network.encoder)
    log_probs, cross_weights = decode(inputs, memory, model.network.decoder)

for step, row in zip(trace.steps[0], log_probs, strict=True):
    print(f"{step.token:9} regard {step.log_prob:8.5f}, by hand {row[step.id]:8.5f}")
    assert abs(step.log_prob - row[step.id]) < 1e-3

print("memory:       ", tuple(memory.shape))
print("log_probs:    ", tuple(log_probs.shape))
print("cross_weights:", tuple(cross_weights[-1].shape), "in each block")

# %% [markdown]
# The numbers agree. Look at the shapes: the memory has a vector of 32 numbers for each of the 6 source words. At each
# of the 7 steps, the decoder computes a log-probability for each of the 31 tokens of the target vocabulary, and each of
# the 4 heads of a block has 7 × 6 weights.
#
# ### What the heads look at
#
# The figure shows the cross-attention of the last block. Each head has its own pattern.

# %% alt="Four heads of cross-attention. In some of them, the step that writes den attends to the word tree."
words = [step.token.strip("▁") for step in trace.steps[0]]
figure, panels = plt.subplots(1, 4, figsize=(10, 3.2), sharey=True, layout="constrained")
for head, axes in enumerate(panels):
    image = axes.imshow(cross_weights[-1][head], cmap="Blues", vmin=0, vmax=1)
    axes.set_title(f"head {head + 1}")
    axes.set_xticks(range(len(source_ids)), SENTENCE.split(), rotation=90)
    axes.set_yticks(range(len(words)), words)
panels[0].set_ylabel("word of the output")
figure.supxlabel("word of the source", y=-0.06, fontsize=12)
figure.colorbar(image, ax=panels, label="weight")
plt.show()

# %% [markdown]
# Look at the row of *den*. To choose between *den*, *die* and *das*, it is not enough to read *the*: the model must
# know the noun. Heads whose row of *den* is dark at *tree* read it there. The noun can also reach *den* in another way:
# the self-attention of the encoder has already mixed *tree* into the vectors of its neighbors, as in lesson 5.
#
# The explorer shows the attention weights of all layers. The ribbons are the average of all blocks and heads. On the
# tab *Attention*, choose numbers for *Layer* (here, a block) and *Head* to see a single head, and *Encoder
# self-attention* to see how the words of the source attend to each other.

# %% alt="The explorer with the translation of we have painted the tree today."
trace

# %% [markdown]
# ## Experiment
#
# **First**, what does the model write for sentences that differ from all training sentences? No training sentence
# starts with *today*, and every one has a verb and an object. Write down what you expect before you run the cell, and
# change `TEXTS`.
#
# **Then use your own pairs.** Replace `pairs.tsv` in the folder of the notebook, change `SENTENCE` in the first cell to
# one of your sources, and run all cells. A few hundred pairs with short sources are enough if they follow a pattern;
# the model learns for about ten seconds. What pattern do you expect in the heads?

# %%
TEXTS = ["today we have painted the tree", "the tree", "we have painted"]

for text in TEXTS:
    print(f"{text} → {model.predict(text).text}")

# %% [markdown]
# <details>
# <summary>What comes out</summary>
#
# In our run, *today* at the beginning changes nothing: the translation is correct. For *the tree*, the model adds a
# subject and a verb; for *we have painted*, an object. It can also write an object or an article twice. Question 3 asks
# why.
#
# </details>

# %% [markdown]
# ## Questions
#
# <details>
# <summary>1. The decoder computes all steps at once in training, and one after the other in prediction. Why is the
# result the same?</summary>
#
# In training, the correct words are the input. Because of the causal mask, the vector of a step depends only on the
# words before it, so it does not matter whether the later words are there. Without the mask, the model would read the
# next word in training instead of predicting it.
#
# </details>
# <details>
# <summary>2. Which layers let a word know of other words? In which one do source and target meet?</summary>
#
# Feed-forward layers, normalizations and residual connections work on each position alone. Information moves between
# positions only in the attentions, and from the source to the target only in the cross-attention.
#
# </details>
# <details>
# <summary>3. For <em>the tree</em>, the model writes a subject and a verb, although the source has
# neither. Why?</summary>
#
# Every target that it has seen has a subject, an adverb or none, an object and a verb. It fills these places even if
# the source has nothing for them. For a source that is unlike the training data, attention weights do not warn you.
#
# </details>
#
# Nothing in a decoder with attention depends on the source being text. In the last lesson, the source is a picture, and
# the decoder is a recurrent one again, a GRU.
