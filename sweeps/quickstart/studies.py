r"""A study of commits and one of batch sizes on this machine, over real JAX programs.

    make study-examples

`python sweeps/quickstart/studies.py FOLDER` makes a repository of a small JAX trainer, with 16
commits after the tag v1. One of them computes the gradient a second time in every step, as a change
does that only means to log something. `XLATUNE_TRAINER` names that folder, `XLATUNE_STUDY` which of
both studies this file declares. The trainer's seconds are those of its process on a core, for
examples and tests are made on machines that run other programs too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pytest_xlatune import (
    BatchSize,
    CellSettings,
    CheckoutLauncher,
    CommandLauncher,
    Commits,
    DesignSettings,
    Protocol,
    SiteSettings,
    Sweep,
    standard_tests,
)

REPOSITORY = os.environ.get("XLATUNE_TRAINER", str(Path.cwd() / ".xlatune" / "trainer"))
# one thread: other programs of this machine take less of a step
DEPLOYED = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
PLANTED_NOTE = "Log the norm of the next gradient"

MODEL = '''\
"""A tower of dense layers and what it loses: JAX."""

import jax.numpy as jnp
import numpy as np

WIDTH, LAYERS = 192, 6


def weights():
    drawn = np.random.default_rng(0).normal(size=(LAYERS, WIDTH, WIDTH)) / WIDTH**0.5
    return list(drawn.astype("float32"))


def loss(params, batch):
    x = batch
    for weight in params:
        x = x + jnp.tanh(x @ weight)
    return jnp.mean((x - batch[:, ::-1]) ** 2)
'''
TRAINER = '''\
"""Train the tower on one synthetic batch; the log is MaxText's.

Seconds are those of this process on a core, for other programs share the cores.
"""

import sys
import time

import jax
import numpy as np

import model
import update

STEPS, TOKENS = int(sys.argv[1]), 64 * int(sys.argv[2])
FLOPS = 6 * TOKENS * model.LAYERS * model.WIDTH**2  # a product forward, two of them backward
params = model.weights()
batch = np.random.default_rng(1).normal(size=(TOKENS, model.WIDTH)).astype("float32")
step_fn = jax.jit(update.step)
for step in range(STEPS):
    began = time.process_time()
    params, loss, norm = jax.block_until_ready(step_fn(params, batch))
    took = time.process_time() - began
    tflops = FLOPS / took / 1e12
    print(f"completed step: {step}, seconds: {took:.6f}, TFLOP/s/device: {tflops:.6f}, "
          f"Tokens/s/device: {TOKENS / took:.3f}, total_weights: {TOKENS}, loss: {loss:.6f}",
          flush=True)
'''
UPDATE = '''\
"""One step of gradient descent."""

import jax
import jax.numpy as jnp
import model

RATE = 0.01


def norm_of(grads):
    return jnp.sqrt(sum(jnp.sum(each**2) for each in grads))


def step(params, batch):
    loss, grads = jax.value_and_grad(model.loss)(params, batch)
    new = [weight - RATE * grad for weight, grad in zip(params, grads)]
    norm = norm_of(grads)
    return new, loss, norm
'''
LOOP = "for weight in params:\n        x = x + jnp.tanh(x @ weight)"
# what a commit changes: a note, a file, the text that goes and the text that comes
EDITS = (
    ("Name the learning rate in full", "update.py", "RATE", "LEARNING_RATE"),
    ("Say which trainer this is", "README.md", "", "A small trainer.\n"),
    ("Scale weights by the root of the width", "model.py", "/ WIDTH**0.5", "* WIDTH**-0.5"),
    ("The batch is drawn by itself", "train.py", "default_rng(1)", "default_rng(2)"),
    ("Name the type of the batch", "train.py", '"float32"', "np.float32"),
    ("Say that rows are flipped", "model.py", "batch[:, ::-1]", "jnp.flip(batch, 1)"),
    ("Sum squares by their product", "update.py", "each**2", "each * each"),
    ("Say how it is started", "README.md", "", "Start: `python train.py STEPS SEQUENCES`.\n"),
    ("The step's clock is named", "train.py", "began", "started"),
    ("Layers by their own name", "model.py", LOOP, LOOP.replace("weight", "layer")),
    (PLANTED_NOTE, "update.py", "norm_of(grads)\n", "norm_of(jax.grad(model.loss)(new, batch))\n"),
    ("Square by the product", "model.py", "(x - jnp.flip(batch, 1)) ** 2",
     "jnp.square(x - jnp.flip(batch, 1))"),
    ("Say what it prints", "README.md", "", "It prints the lines of MaxText.\n"),
    ("Donate the old weights", "train.py", "jax.jit(update.step)",
     "jax.jit(update.step, donate_argnums=0)"),
    ("Name the type of the weights", "model.py", '"float32"', "np.float32"),
    ("Say which licence", "README.md", "", "Licence: as the sweep's.\n"),
)  # fmt: skip


def make_repository(folder: Path) -> tuple[str, ...]:
    """Make the trainer's repository; return the hashes of v1 and the 16 commits after it."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=trainer", "-c", "user.email=trainer@localhost")
        command = ("git", "-C", str(folder), *who, *words)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(note: str) -> str:
        git("add", ".")
        git("commit", "--quiet", "-m", note)
        return git("rev-parse", "HEAD")

    folder.mkdir(parents=True)
    for name, text in (("model.py", MODEL), ("train.py", TRAINER), ("update.py", UPDATE)):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "README.md").write_text("# Trainer\n\n", encoding="utf-8")
    git("init", "--quiet", "--initial-branch=main")
    hashes = [commit("A small trainer")]
    git("tag", "v1")
    for note, name, old, new in EDITS:
        before = (folder / name).read_text(encoding="utf-8")
        after = before.replace(old, new) if old else before + new
        (folder / name).write_text(after, encoding="utf-8")
        hashes.append(commit(note))
    return tuple(hashes)


SWEEPS = {
    "commits": Sweep(
        name="commits",
        cell=CellSettings(
            model_tag="tower",
            parallelism="FSDP=1",
            devices=1,
            deployed=DEPLOYED,
            protocol=Protocol(steps=30, first_step=8, deadline_s=240),
        ),
        launcher=CheckoutLauncher(
            repository=REPOSITORY,
            inner=CommandLauncher(
                argv=(sys.executable, f"{REPOSITORY}/train.py", "{steps}", "4"), cwd=REPOSITORY
            ),
        ),
        site=SiteSettings(executor="local"),
        study=Commits(),
        design=DesignSettings(budget=60),
    ),
    "batch": Sweep(
        name="batch",
        cell=CellSettings(
            model_tag="tower",
            parallelism="FSDP=1",
            devices=1,
            per_device_batch_size=4,
            max_target_length=64,
            deployed=DEPLOYED,
            protocol=Protocol(steps=30, first_step=8, deadline_s=240),
        ),
        launcher=CommandLauncher(
            argv=(sys.executable, f"{REPOSITORY}/train.py", "{steps}", "{per_device_batch_size}"),
            cwd=REPOSITORY,
        ),
        site=SiteSettings(executor="local"),
        study=BatchSize(start=4, largest=16),
        design=DesignSettings(budget=20),
    ),
}
SWEEP = SWEEPS[os.environ.get("XLATUNE_STUDY", "commits")]

if __name__ == "__main__":
    make_repository(Path(sys.argv[1]))
else:
    tests = standard_tests(SWEEP)
