"""Linear readouts of labels from features, by the protocol of the AtariARI benchmark.

A softmax over the classes of each variable, trained by Adam in batches with early stopping on validation accuracy, and
judged by the weighted F1 score on episodes that it has not seen. The variables of an encoder are trained side by side:
each has its own weights, its own loss and its own end, so that the result is that of training one after the other.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor, nn

from protovalue.errors import UserError
from protovalue.evaluate.probe_file import Variable
from protovalue.probe.labels import Labelled
from protovalue.randomness import numpy_generator

SHARES = (0.7, 0.1, 0.2)
"""Of the episodes: to train, to stop, to judge by."""
LEARNING_RATE, BATCH, PATIENCE = 3e-4, 64, 15
EPISODES = 5  # the least, so that each part has one
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """Labelled states, cut into three parts, and the variables that tell something."""

    states: Labelled
    variables: tuple[Variable, ...]
    classes: NDArray[np.int64]
    """(N, J): labels as numbers of the classes that the training part has; -1 where it has not."""
    counts: tuple[int, ...]
    """Classes of each variable."""
    train: Indices
    stop: Indices
    judge: Indices

    def targets(self, part: Indices) -> Tensor:
        """Return the classes of a part."""
        return torch.from_numpy(self.classes[part])


def make_task(states: Labelled, seed: int) -> Task:
    """Cut states by episodes, drop what occurs twice, and drop variables that tell too little."""
    numbers = numpy_generator(seed).permutation(np.unique(states.episodes))
    if len(numbers) < EPISODES:
        raise UserError(
            f"--states: found {len(states.episodes):,} states of {len(numbers)} episodes, expected states of "
            f"{EPISODES} or more, to cut them by episodes"
        )
    first = max(1, round(SHARES[0] * len(numbers)))
    second = min(len(numbers) - 1, first + max(1, round(SHARES[1] * len(numbers))))
    shared = numbers[:first], numbers[first:second], numbers[second:]
    parts = [np.flatnonzero(np.isin(states.episodes, own)) for own in shared]
    seen = {_digest(states.observations[i]) for i in parts[0]}
    parts[2] = np.array([i for i in parts[2] if _digest(states.observations[i]) not in seen], np.int64)
    if len(parts[2]) == 0:
        raise UserError("--states: found no state to judge by that does not occur in training, expected more states")
    told = [j for j in range(len(states.variables)) if entropy(states.labels[:, j]) >= states.least_entropy]
    if not told:
        raise UserError("--states: found no variable that changes enough to be probed, expected some")
    classes, counts = np.full((len(states.labels), len(told)), -1, np.int64), []
    for place, j in enumerate(told):
        known = np.unique(states.labels[parts[0], j])
        at = np.searchsorted(known, states.labels[:, j]).clip(max=len(known) - 1)
        classes[:, place] = np.where(known[at] == states.labels[:, j], at, -1)
        counts.append(len(known))
    variables = tuple(states.variables[j] for j in told)
    return Task(states, variables, classes, tuple(counts), parts[0], parts[1], parts[2])


def _digest(observation: NDArray[np.generic]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(observation).tobytes(), digest_size=16).digest()


def entropy(labels: NDArray[np.int64]) -> float:
    """Return the entropy of labels in nats."""
    _, counts = np.unique(labels, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def majority(task: Task) -> list[float]:
    """Return the F1 of every variable for answering always with the most frequent class of training."""
    found = []
    for j in range(len(task.variables)):
        answer = np.bincount(task.classes[task.train, j]).argmax()
        found.append(weighted_f1(task.classes[task.judge, j], np.full(len(task.judge), answer)))
    return found


def weighted_f1(truth: NDArray[np.int64], answers: NDArray[np.int64]) -> float:
    """Return the mean F1 of the classes that occur, weighted by how often they do."""
    return float(f1_score(truth, answers, average="weighted", zero_division=0.0))


def read_frozen(task: Task, features: Tensor, seed: int, epochs: int) -> list[float]:
    """Return the F1 of every variable, read from frozen features (N, k), which are divided by their training RMS."""
    scale = features[torch.from_numpy(task.train)].square().mean().sqrt()
    scaled = features / scale if scale > 0 else features
    return _read(task, lambda part: scaled[torch.from_numpy(part)], features.shape[1], seed, epochs, ())


def read_trained(task: Task, network: nn.Module, num_features: int, seed: int, epochs: int) -> list[float]:
    """Return the F1 of every variable of a network that is trained end to end on the labels: a ceiling of its shape."""

    def see(part: Indices) -> Tensor:
        found: Tensor = network(torch.from_numpy(task.states.observations[part]))
        return found

    return _read(task, see, num_features, seed, epochs, tuple(network.parameters()))


def _read(
    task: Task, see: Callable[[Indices], Tensor], num_features: int, seed: int, epochs: int,
    shared: Sequence[nn.Parameter],
) -> list[float]:  # fmt: skip
    """Train readouts, and with them what variables share; then stopping is common, too."""
    J, C = len(task.variables), max(task.counts)
    weight = nn.Parameter(torch.zeros(J, num_features, C))
    bias = nn.Parameter(torch.zeros(J, C))
    absent = torch.arange(C)[None, :] >= torch.tensor(task.counts)[:, None]  # (J, C)
    optimizer = torch.optim.Adam([weight, bias, *shared], lr=LEARNING_RATE)
    kept = [parameter.detach().clone() for parameter in (weight, bias, *shared)]
    best, since, going = np.full(J, -1.0), np.zeros(J, np.int64), np.ones(J, np.bool_)
    rng = numpy_generator(seed)

    def logits(features: Tensor) -> Tensor:
        out = torch.einsum("bk,jkc->bjc", features, weight) + bias
        return out.masked_fill(absent, -torch.inf)

    for _ in range(epochs):
        order = rng.permutation(task.train)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            log = logits(see(part)).log_softmax(dim=2)
            loss = -log.gather(2, task.targets(part)[:, :, None]).mean(dim=0).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = (_answers(logits, see, task.stop) == task.classes[task.stop]).mean(axis=0)
        if shared:
            accuracy = np.full(J, accuracy.mean())
        better = going & (accuracy > best)
        best = np.where(better, accuracy, best)
        since = np.where(better, 0, since + 1)
        with torch.no_grad():
            rows = torch.from_numpy(better)
            kept[0][rows], kept[1][rows] = weight[rows], bias[rows]
            if better.any():
                for copy, parameter in zip(kept[2:], shared, strict=True):
                    copy.copy_(parameter)
        going &= since < PATIENCE
        if not going.any():
            break
    with torch.no_grad():
        for copy, parameter in zip(kept, (weight, bias, *shared), strict=True):
            parameter.copy_(copy)
    answers = _answers(logits, see, task.judge)
    return [weighted_f1(task.classes[task.judge, j], answers[:, j]) for j in range(J)]


@torch.no_grad()
def _answers(logits: Callable[[Tensor], Tensor], see: Callable[[Indices], Tensor], part: Indices) -> NDArray[np.int64]:
    """Return the most likely class (N, J) of every state of a part."""
    found = [logits(see(part[i : i + 1024])).argmax(dim=2) for i in range(0, len(part), 1024)]
    return torch.cat(found).numpy()
