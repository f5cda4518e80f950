"""Which iterations of which runs a named split takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from protovalue.errors import UserError

RUNS = (1, 2, 3, 4, 5)  # every public data set has five runs of a game


@dataclass(frozen=True)
class Split:
    """A selection of iterations of training; iteration n covers the agent's steps n to n + 1 million."""

    iterations: frozenset[int] | None
    """None: all."""
    runs: tuple[int, ...] | None = None
    """The runs that must be there; None: whichever are."""

    def takes(self, iteration: int) -> bool:
        """Whether this iteration belongs to it."""
        return self.iterations is None or iteration in self.iterations


# Published twice, with different contents under the same words. The plain names are those of the proto-value
# networks' code; sgi- marks those of the self-predictive work, which counts iterations from 1: 1, 25 and 50.
SPLITS = {
    "full": Split(None),
    "weak": Split(frozenset({0}), RUNS),
    "mixed": Split(frozenset({0, 9, 19, 29, 39, 49})),
    "mixed-small": Split(frozenset({0, 24, 49})),
    "sgi-weak": Split(frozenset({0}), RUNS),
    "sgi-mixed": Split(frozenset({0, 24, 49})),
}


def choose_split(name: str, iterations: str | None) -> Split:
    """Return the named split, or the listed iterations of whichever runs there are."""
    if iterations is None:
        return SPLITS[name]
    if name != "full":
        raise UserError(f"--iterations: found {iterations} beside --split {name}, expected one of the two")
    return Split(frozenset(numbers(iterations, "--iterations")))


def numbers(text: str, flag: str) -> list[int]:
    """Return the numbers of a flag, which commas separate."""
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise UserError(f"{flag}: found {text!r}, expected numbers such as 0,9,19")
    return sorted({int(word) for word in words})


def check_runs(split: Split, name: str, runs: Sequence[int]) -> None:
    """Refuse a source that does not have just the runs that a split is defined by."""
    if split.runs is not None and tuple(sorted(set(runs))) != split.runs:
        found = ", ".join(str(run) for run in sorted(set(runs))) or "none that the paths name"
        raise UserError(
            f"--split {name}: found runs {found}, expected 1 to 5; "
            "--iterations 0 takes the same iteration of whichever runs there are"
        )


def check_iterations(split: Split, found: Sequence[int], flag: str) -> None:
    """Refuse a source that lacks an iteration of the split."""
    missing = sorted((split.iterations or frozenset()) - set(found))
    if missing:
        listed = ", ".join(str(number) for number in missing)
        shown = f"{min(found)} to {max(found)}" if found else "none"
        raise UserError(f"{flag}: iteration {listed} is not in the source, which has {shown}")


class Thinning:
    """Takes a proportion of what comes, evenly spread: item k if k * proportion passes a whole number."""

    def __init__(self, proportion: float) -> None:
        self._proportion = proportion
        self._seen: dict[int, int] = {}

    def take(self, iteration: int) -> bool:
        """Whether to take the next episode of this iteration; its first one is always taken."""
        seen = self._seen.get(iteration, 0)
        self._seen[iteration] = seen + 1
        return seen == 0 or int(seen * self._proportion) > int((seen - 1) * self._proportion)
