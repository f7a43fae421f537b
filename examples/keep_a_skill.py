# %% [markdown]
# # Keep a skill while you fine-tune
#
# A pretrained network can do something. You fine-tune it on something new, and it forgets what it could do. This
# notebook shows that in a first plot, prevents it with three lines in a second, and shows in a third what was lost.
#
# It runs in half a minute on a CPU. It needs `pip install -e ".[lab]"` in a checkout, for the plots. The file
# `keep_a_skill.py` is the same as a script, and `python docs/make_notebook.py` makes one from the other.

# %%
from copy import deepcopy

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze import BLIP
from bitfreeze.lab.data import load_digits

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## A pretrained network
#
# Here a small network learns ten handwritten digits, which takes seconds. **Put your own network in its place:**
# load it as you always do. You need from it
#
# - `backbone`, the part that is shared by the old and the new skill,
# - a head for each skill (or one for both: then leave `watch` out below),
# - some hundred samples of what it can do, `old_train`. Labels are not needed.

# %%
images, labels = load_digits()
upright = images[:, None].float() / 16
sideways = upright.rot90(1, (2, 3))
test = torch.arange(len(labels)) % 4 == 0
old_train, old_test = (upright[~test], labels[~test]), (upright[test], labels[test])
new_train, new_test = (sideways[~test], labels[~test]), (sideways[test], labels[test])

pretrained = nn.ModuleDict(
    {
        "backbone": nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
        ),
        "old": nn.Linear(64, 10),
        "new": nn.Linear(64, 10),
    }
)  # fmt: skip


def logits(model, skill, x):
    return model[skill](model["backbone"](x))


def train_one_epoch(model, skill, data, optimizer):
    x, y = data
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        F.cross_entropy(logits(model, skill, x[rows]), y[rows]).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model, skill, data):
    x, y = data
    return (logits(model, skill, x).argmax(1) == y).float().mean().item() * 100


optimizer = torch.optim.AdamW(pretrained.parameters(), lr=1e-3)
for _ in range(10):
    train_one_epoch(pretrained, "old", old_train, optimizer)
print(f"old skill, digits upright: {accuracy(pretrained, 'old', old_test):.1f} % right")

# %% [markdown]
# ## Fine-tuning forgets
#
# The new skill is to read digits that lie on their side, with a head of its own. Nothing here is special: your loop,
# your optimizer. After each epoch both skills are tested.

# %%
EPOCHS = 12


def fine_tune(model, after_epoch=None):
    """Accuracy on the new and on the old skill, before the first epoch and after each."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    history = {"new": [accuracy(model, "new", new_test)], "old": [accuracy(model, "old", old_test)]}
    for _ in range(EPOCHS):
        train_one_epoch(model, "new", new_train, optimizer)
        if after_epoch:
            after_epoch(model)
        history["new"].append(accuracy(model, "new", new_test))
        history["old"].append(accuracy(model, "old", old_test))
    return history


def plot(axes, history, title):
    axes.plot(history["new"], color="#D55E00", marker="s", markersize=4)
    axes.plot(history["old"], color="#0072B2", marker="o", markersize=4)
    axes.text(EPOCHS + 0.3, history["new"][-1] - 2, f"new\n{history['new'][-1]:.1f}", color="#D55E00", va="top")
    axes.text(EPOCHS + 0.3, history["old"][-1] + 2, f"old\n{history['old'][-1]:.1f}", color="#0072B2", va="bottom")
    axes.set(xlim=(-0.3, EPOCHS + 2), ylim=(0, 118), yticks=[0, 50, 100], xlabel="epoch", title=title)
    axes.set_ylabel("test accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)


plain = fine_tune(deepcopy(pretrained))
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
plot(axes, plain, "plain fine-tuning")
plt.show()

# %% [markdown]
# ## Three lines keep the skill
#
# 1. `BLIP(...)`: the part to protect, and how much it may lose. A tolerance of 0.05 nats means that the network may
#    become about 5 % less sure of its old answers, on average.
# 2. `attach()`: from now on each step of any optimizer that moves the backbone is followed by a clamp.
# 3. `consolidate(...)`: measure what the network can do now, on old samples. `forward` says how to get from samples to
#    the scores of the old skill.
#
# The clamp comes every few steps. So `clamp_()` is called before the network is tested in the middle of training.

# %%
model = deepcopy(pretrained)
blip = BLIP(model, watch=model["backbone"], tolerance=0.05)
blip.attach()
report = blip.consolidate(old_train[0].split(64), forward=lambda x: logits(model, "old", x))
print(report)

before = logits(model, "old", old_test[0]).log_softmax(1).detach()
estimated, measured = [0.0], [0.0]


@torch.no_grad()
def look(model):
    blip.clamp_()
    after = logits(model, "old", old_test[0]).log_softmax(1)
    estimated.append(blip.drift())
    measured.append((before.exp() * (before - after)).sum(1).mean().item())


kept = fine_tune(model, look)
figure, panels = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
plot(panels[0], plain, "plain fine-tuning")
plot(panels[1], kept, "the same loop with three more lines")
plt.show()

# %% [markdown]
# ## What it has cost
#
# `blip.drift()` tells at any moment about how much the old skill has lost, without old data. Here old test samples are
# at hand, so the truth can be drawn beside it: the mean divergence of the answers from those before. The estimate is
# too large here, as it mostly is for a network that is sure of its answers.

# %%
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.axhline(0.05, color="#767676", linestyle="--")
axes.text(0, 0.051, "tolerance", color="#767676", va="bottom")
axes.plot(estimated, color="#009E73", marker="^", markersize=4)
axes.plot(measured, color="#0072B2", marker="o", markersize=4)
axes.text(EPOCHS + 0.3, estimated[-1], "estimated", color="#009E73", va="center")
axes.text(EPOCHS + 0.3, measured[-1], "measured", color="#0072B2", va="center")
axes.set(xlim=(-0.3, EPOCHS + 3.5), xlabel="epoch", ylabel="nats a sample", title="what the old skill has lost")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## With your own network
#
# - The old skill has lost too much? Begin anew with `tolerance=0.01`. The new skill is not learned? Take 0.2.
# - No old data? Take samples that are like them, or let the network make some: a language model can write its own.
# - BatchNorm: `BLIP(..., freeze_statistics=True)`.
# - A third skill: call `consolidate` again, with samples of the second one, and go on.
# - Save `blip.state_dict()` beside the weights. The model itself is unchanged: deploy it without `bitfreeze`.
