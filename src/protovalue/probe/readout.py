"""Linear readouts of labels from features, by the protocol of the AtariARI benchmark.

A softmax over the classes of each variable, trained by Adam in batches with early stopping on validation accuracy, and
judged by the weighted F1 score on episodes that it has not seen. The variables of an encoder are trained side by side:
each has its own weights, its own loss and its own end, so that the result is that of training one after the other.

F1 is of answers, and where one class is nearly always right the answer is always that class, whatever the features
hold. The area under the curve is of the order in which the readout puts states. Its readout is that of the least
validation loss, because accuracy does not move there.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score, roc_auc_score
from torch import Tensor, nn

from protovalue.errors import UserError
from protovalue.evaluate.probe_file import FeatureScale, Scores, Variable
from protovalue.probe.labels import Labelled
from protovalue.probe.scaling import scale_features
from protovalue.randomness import numpy_generator

SHARES = (0.7, 0.1, 0.2)
"""Of the episodes: to train, to stop, to judge by."""
LEARNING_RATE, BATCH, PATIENCE = 3e-4, 64, 15
EPISODES = 5  # the least, so that each part has one
CHANCE = 0.5  # the area under the curve of features that tell nothing
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


def majority(task: Task) -> Scores:
    """Return the scores of answering always with the most frequent class of training."""
    found = []
    for j in range(len(task.variables)):
        answer = np.bincount(task.classes[task.train, j]).argmax()
        found.append(weighted_f1(task.classes[task.judge, j], np.full(len(task.judge), answer)))
    return Scores(found, [CHANCE] * len(found))


def weighted_f1(truth: NDArray[np.int64], answers: NDArray[np.int64]) -> float:
    """Return the mean F1 of the classes that occur, weighted by how often they do."""
    return float(f1_score(truth, answers, average="weighted", zero_division=0.0))


def area_under_curve(truth: NDArray[np.int64], likelihoods: NDArray[np.float32]) -> float:
    """Return how often a state of a class is held to be likelier of it than a state of another class.

    The mean over the classes that some of the states have and others have not; ties count half. By chance 1/2.

    Args:
        truth: classes (N,); -1 is one that training has not, so that it is another class to all.
        likelihoods: of each class (N, C), as large numbers or small.
    """
    found = []
    for one in np.unique(truth[truth >= 0]):
        own = truth == one
        if not own.all():
            found.append(float(roc_auc_score(own, likelihoods[:, one])))
    return float(np.mean(found)) if found else CHANCE


def read_frozen(task: Task, features: Tensor, seed: int, epochs: int, scale: FeatureScale) -> Scores:
    """Return the scores of all variables, read from frozen features (N, k)."""
    scaled = scale_features(features, torch.from_numpy(task.train), scale)
    return _read(task, lambda part: scaled[torch.from_numpy(part)], scaled.shape[1], seed, epochs, ())


def read_trained(task: Task, network: nn.Module, num_features: int, seed: int, epochs: int) -> Scores:
    """Return the scores of a network that is trained end to end on the labels: a ceiling of its shape."""

    def see(part: Indices) -> Tensor:
        found: Tensor = network(torch.from_numpy(task.states.observations[part]))
        return found

    return _read(task, see, num_features, seed, epochs, tuple(network.parameters()))


class _Best:
    """The parameters at the best validation score of each variable, until it has not risen for `PATIENCE` epochs."""

    def __init__(self, parameters: Sequence[nn.Parameter], variables: int) -> None:
        self._parameters = parameters
        self._kept = [parameter.detach().clone() for parameter in parameters]
        self._best = np.full(variables, -np.inf)
        self._since = np.zeros(variables, np.int64)
        self._going = np.ones(variables, np.bool_)

    @property
    def is_going(self) -> bool:
        """Whether a variable may still get better."""
        return bool(self._going.any())

    @torch.no_grad()
    def see(self, scores: NDArray[np.float64]) -> None:
        """Keep the parameters of the variables whose scores (J,) are the best yet; what they share, where one is."""
        better = self._going & (scores > self._best)
        self._best = np.where(better, scores, self._best)
        self._since = np.where(better, 0, self._since + 1)
        self._going &= self._since < PATIENCE
        rows = torch.from_numpy(better)
        for copy, parameter in zip(self._kept[:2], self._parameters[:2], strict=True):  # weight and bias
            copy[rows] = parameter[rows]
        if better.any():
            for copy, parameter in zip(self._kept[2:], self._parameters[2:], strict=True):
                copy.copy_(parameter)

    @torch.no_grad()
    def restore(self) -> None:
        """Set the parameters to what was kept."""
        for copy, parameter in zip(self._kept, self._parameters, strict=True):
            parameter.copy_(copy)


def _read(
    task: Task, see: Callable[[Indices], Tensor], num_features: int, seed: int, epochs: int,
    shared: Sequence[nn.Parameter],
) -> Scores:  # fmt: skip
    """Train readouts, and with them what variables share; then stopping is common, too."""
    J, C = len(task.variables), max(task.counts)
    weight = nn.Parameter(torch.zeros(J, num_features, C))
    bias = nn.Parameter(torch.zeros(J, C))
    absent = torch.arange(C)[None, :] >= torch.tensor(task.counts)[:, None]  # (J, C)
    optimizer = torch.optim.Adam([weight, bias, *shared], lr=LEARNING_RATE)
    most_accurate, likeliest = (_Best([weight, bias, *shared], J) for _ in range(2))
    rng = numpy_generator(seed)

    def logs(part: Indices) -> Tensor:
        """Return the logarithms of the classes' probabilities (N, J, C)."""
        out = torch.einsum("bk,jkc->bjc", see(part), weight) + bias
        return out.masked_fill(absent, -torch.inf).log_softmax(dim=2)

    for _ in range(epochs):
        order = rng.permutation(task.train)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            loss = -logs(part).gather(2, task.targets(part)[:, :, None]).mean(dim=0).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = _all(logs, task.stop)
        accuracy = (found.argmax(axis=2) == task.classes[task.stop]).mean(axis=0)
        likelihood = _mean_of_known(found, task.classes[task.stop])
        if shared:
            accuracy, likelihood = np.full(J, accuracy.mean()), np.full(J, likelihood.mean())
        most_accurate.see(accuracy)
        likeliest.see(likelihood)
        if not (most_accurate.is_going or likeliest.is_going):
            break
    truth = task.classes[task.judge]
    most_accurate.restore()
    answers = _all(logs, task.judge).argmax(axis=2)
    likeliest.restore()
    found = _all(logs, task.judge)
    return Scores(
        [weighted_f1(truth[:, j], answers[:, j]) for j in range(J)],
        [area_under_curve(truth[:, j], found[:, j]) for j in range(J)],
    )


def _mean_of_known(logs: NDArray[np.float32], classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean logarithm of the true classes' probabilities (J,), over the states whose class training has."""
    known = classes >= 0
    own = np.take_along_axis(logs, np.maximum(classes, 0)[:, :, None], axis=2)[:, :, 0]
    return np.asarray(np.where(known, own, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1), np.float64)


@torch.no_grad()
def _all(logs: Callable[[Indices], Tensor], part: Indices) -> NDArray[np.float32]:
    """Return the logarithms (N, J, C) of all states of a part."""
    return torch.cat([logs(part[i : i + 1024]) for i in range(0, len(part), 1024)]).numpy()
