# %% [markdown]
# # Keep a skill while you fine-tune
#
# A pretrained network can do something. You fine-tune it on something new, and it forgets what it could do. This
# notebook shows that in a first plot, prevents it with three lines in a second, and shows in a third what was lost.
#
# It takes four minutes on one core of a CPU. It needs `pip install -e ".[lab]"` in a checkout, for the plots, and
# `bitfreeze data get stories15m` for the network (61 MB, with npm). The file `keep_a_skill.py` is the same as a script,
# and `python docs/make_notebook.py` makes one from the other.

# %%
from copy import deepcopy
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from bitfreeze import BLIP
from bitfreeze.lab.data import load_stories15m
from bitfreeze.lab.nets import pretrained_llama

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## A pretrained network
#
# stories15M (A. Karpathy, 2023) is a language model of 15 million weights that tells children's stories. **Put your own
# network in its place.** You need from it
#
# - the part to protect: here `blocks`, which is all but the embedding,
# - some samples of what it can do. Labels are not needed. The stories that this model was trained on are not at hand,
#   so it writes some itself: 32 to measure, and 16 others to test.

# %%
published = load_stories15m()
pretrained = pretrained_llama(published)
stories = pretrained.write(48, length=64, generator=torch.Generator().manual_seed(0))
old, old_test = stories[:32], stories[32:]


def scores(model, text):
    """Scores of each next token."""
    return model.scores(model(text[:, :-1]))


def loss(model, text):
    """Nats a token: how surprised the model is."""
    return F.cross_entropy(scores(model, text).flatten(0, 1), text[:, 1:].flatten())


@torch.no_grad()
def tell(model, beginning="Once upon a time", length=40):
    text = torch.tensor([published.tokenizer.encode(beginning)])
    while text.shape[1] < length:
        text = torch.cat([text, scores(model, F.pad(text, (0, 1)))[:, -1:].argmax(-1)], 1)
    return " ".join(published.tokenizer.decode(text[0].tolist()).split())  # on one line


print(tell(pretrained))

# %% [markdown]
# ## Fine-tuning forgets
#
# The new skill is Python's manual, which comes with Python. Nothing here is special: your loop, your optimizer. Every
# ten steps the loss on both kinds of text is tested. A lower loss is better.

# %%
tokens = torch.tensor(published.tokenizer.encode(" ".join(topics.values())))
manual = tokens[: len(tokens) // 64 * 64].view(-1, 64)
manual = manual[torch.randperm(len(manual))]
new_test, new = manual[:32], manual[64:544]
EVERY = 10  # steps between two tests


@torch.no_grad()
def both_losses(model):
    return loss(model, new_test).item(), loss(model, old_test).item()


def fine_tune(model, look=lambda model: None):
    """Losses on the new and the old skill, before the first step and after every tenth."""
    optimizer = torch.optim.AdamW(model.blocks.parameters(), lr=3e-4)
    history = [both_losses(model)]
    for step, batch in enumerate(new.split(8), 1):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        if step % EVERY == 0:
            look(model)
            history.append(both_losses(model))
    return history


def plot(axes, history, title):
    steps = [EVERY * k for k in range(len(history))]
    for number, (name, color, marker) in enumerate([("new", "#D55E00", "s"), ("old", "#0072B2", "o")]):
        values = [losses[number] for losses in history]
        axes.plot(steps, values, color=color, marker=marker, markersize=4)
        axes.text(steps[-1] + 2, values[-1], f"{name}\n{values[-1]:.2f}", color=color, va="center")
    axes.set(xlim=(-2, steps[-1] + 12), ylim=(0, 10), yticks=[0, 5, 10], xlabel="step", title=title)
    axes.set_ylabel("test loss, nats a token")
    axes.spines[["top", "right"]].set_visible(False)


plain = deepcopy(pretrained)
forgets = fine_tune(plain)
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
plot(axes, forgets, "plain fine-tuning")
plt.show()
print(tell(plain))

# %% [markdown]
# ## Three lines keep the skill
#
# 1. `BLIP(...)`: the part to protect, and how much it may lose. A tolerance of 0.05 nats means that the network may
#    become about 5 % less sure of its old answers, on average.
# 2. `attach()`: from now on each step of any optimizer that moves the blocks is followed by a clamp.
# 3. `consolidate(...)`: measure what the network can do now, on old samples. `forward` says how to get from samples to
#    scores.
#
# The clamp comes every few steps. So `clamp_()` is called before the network is tested in the middle of training.

# %%
model = deepcopy(pretrained)
blip = BLIP(model, watch=model.blocks, tolerance=0.05)
blip.attach()
report = blip.consolidate(old.split(16), forward=lambda text: scores(model, text))
print(report)

# %%
before = scores(pretrained, old_test).log_softmax(-1).detach()
estimated, measured = [0.0], [0.0]


@torch.no_grad()
def look(model):
    blip.clamp_()
    after = scores(model, old_test).log_softmax(-1)
    estimated.append(blip.drift())
    measured.append((before.exp() * (before - after)).sum(-1).mean().item())


keeps = fine_tune(model, look)
figure, panels = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
plot(panels[0], forgets, "plain fine-tuning")
plot(panels[1], keeps, "the same loop with three more lines")
plt.show()
print(tell(model))

# %% [markdown]
# ## What it has cost
#
# `blip.drift()` tells at any moment about how much the old skill has lost, without old data. Here other stories are at
# hand, so the truth can be drawn beside it: the mean divergence of the predictions from those before.

# %%
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
steps = [EVERY * k for k in range(len(measured))]
axes.axhline(0.05, color="#767676", linestyle="--")
axes.text(0, 0.051, "tolerance", color="#767676", va="bottom")
axes.plot(steps, estimated, color="#009E73", marker="^", markersize=4)
axes.plot(steps, measured, color="#0072B2", marker="o", markersize=4)
sides = ("bottom", "top") if estimated[-1] > measured[-1] else ("top", "bottom")  # so that the words stay apart
axes.text(steps[-1] + 2, estimated[-1], "estimated", color="#009E73", va=sides[0])
axes.text(steps[-1] + 2, measured[-1], "measured", color="#0072B2", va=sides[1])
axes.set(xlim=(-2, steps[-1] + 20), xlabel="step", ylabel="nats a token", title="what the old skill has lost")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## With your own network
#
# - The old skill has lost too much? Begin anew with `tolerance=0.01`. The new skill is not learned? Take 0.2.
# - No old data? Take samples that are like them, or let the network make some, as here.
# - Heads of their own for old and new skills: watch what they share, `watch=model.backbone`.
# - BatchNorm: `BLIP(..., freeze_statistics=True)`.
# - A third skill: call `consolidate` again, with samples of the second one, and go on.
# - Save `blip.state_dict()` beside the weights. The model itself is unchanged: deploy it without `bitfreeze`.
