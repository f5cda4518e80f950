"""Files of results: a report without its runs, parts of a study put together, and a method beside those of others."""

import csv
import json
import math
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protovalue.cli import main
from protovalue.errors import UserError
from protovalue.files import json_line, write_json
from protovalue.report.command import compute
from protovalue.report.config import ReportConfig
from protovalue.report.galleries import look
from protovalue.report.grid import final_loss
from protovalue.report.model import FeatureNumbers, Spread
from protovalue.report.reading import read_results
from protovalue.report.results import EncoderFeatures, Results
from protovalue.report.results_file import RESULTS, join, read_file, write_results
from tests.report import made

ENV, OTHER = "minatar/breakout", "minatar/freeway"


def study(folder: Path, envs: tuple[str, ...] = (ENV, OTHER), methods: tuple[str, ...] = ("pvn", "dqn")) -> Path:
    """Two encoders of each method with two agents in each game, DQNs 10 and 12, random actions 1."""
    cells: list[dict[str, Any]] = []
    for env in envs:
        for method in methods:
            for seed in (0, 1) if method != "dqn" else ():
                name = f"{env[8:]}-{method}-{seed}"
                level = (6.0 if method == "pvn" else 3.0) + seed
                encoder = made.encoder(folder / f"pretrain/{name}", method, seed)
                (encoder / "metrics.jsonl").write_text(json.dumps({"step": 10, "loss": 0.25}) + "\n")
                made.run(folder / f"online/{name}", env, [level, level + 2], encoder)
                cells.append(
                    {"env": env, "method": method, "pretraining_seed": seed, "seeds": [0, 1],
                     "encoder": f"pretrain/{name}", "run": f"online/{name}"}
                )  # fmt: skip
        if "dqn" in methods:
            made.run(folder / f"dqn/{env[8:]}", env, [10.0, 12.0], steps=9_000)
            entry = {"env": env, "method": "dqn", "pretraining_seed": None, "seeds": [0, 1], "run": f"dqn/{env[8:]}"}
            cells.append(entry)
        write_json(folder / f"random-{env[8:]}.json", made.played(env, [1.0]))
    return made.study(folder, cells, random_policy={env: f"random-{env[8:]}.json" for env in envs})


def kept(folder: Path, results: Results) -> Path:
    return write_results(results, (), folder / RESULTS)


def table(report: Path, name: str) -> list[dict[str, str]]:
    with (report / f"tables/{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    made_one = study(tmp_path / "study")
    shutil.rmtree(tmp_path / "study/online/freeway-pvn-1")
    before = replace(read_results([made_one]), stage_seconds={"online": 12.5}, stages_without_time=3)
    after = read_results([kept(tmp_path, before)])
    for one in fields(Results):
        if one.name != "cells":
            assert getattr(after, one.name) == getattr(before, one.name), one.name
    assert len(after.missing) == 1
    for new, old in zip(after.cells, before.cells, strict=True):
        for name in (
            "env",
            "method",
            "width",
            "tasks",
            "data_seed",
            "pretraining_seed",
            "seeds",
            "checksum",
            "episodes",
        ):
            assert getattr(new, name) == getattr(old, name)
        assert (new.steps, new.settings, new.seconds) == (old.steps, old.settings, old.seconds)
        np.testing.assert_array_equal(new.returns, old.returns)
        np.testing.assert_array_equal(new.curve_steps, old.curve_steps)
        np.testing.assert_array_equal(new.curve, old.curve)  # with the gap where no episode ended
        assert (new.kept, new.encoder, new.data) == (tmp_path / RESULTS, None, None)
        assert not new.run.is_absolute()
        assert final_loss(new) == final_loss(old)
    assert {final_loss(cell) for cell in after.cells} == {0.25, None}


def test_a_report_of_the_file_has_the_numbers_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study(tmp_path / "study")
    assert main(["report", "study", "--out", "first", "--features", "none", "--draws", "200"]) == 0
    shutil.rmtree("study")
    for place, out in (("first", "second"), ("second/results.jsonl", "third")):
        capsys.readouterr()
        assert main(["report", place, "--out", out, "--draws", "200"]) == 0
        assert "PVN  7.50 [1.15, 13.85]  2 encoders x 2 agents" in capsys.readouterr().out
        for name in ("games.csv", "aggregates.csv", "improvement.csv"):
            assert Path(out, "tables", name).read_bytes() == Path("first/tables", name).read_bytes()
        assert Path(out, "figures/curves-minatar-breakout.svg").is_file()
        assert Path(out, RESULTS).read_bytes() == Path("first", RESULTS).read_bytes()


def test_parts_of_a_study_that_ran_in_two_places_are_one(tmp_path: Path) -> None:
    whole = study(tmp_path / "whole")
    first, second = study(tmp_path / "a", (ENV,)), study(tmp_path / "b", (OTHER,))
    halves = read_results([kept(tmp_path, read_results([first])), second])
    expected = read_results([whole])
    assert (halves.methods, halves.envs, halves.random_policy) == (("PVN", "DQN"), (ENV, OTHER), {ENV: 1.0, OTHER: 1.0})
    for method in expected.methods:
        for env in expected.envs:
            np.testing.assert_array_equal(halves.scores()[method][env], expected.scores()[method][env])
    assert halves.notes[0] == f"results of 2 places side by side: {tmp_path / RESULTS}, {second}"
    assert halves.notes[1:] == expected.notes
    other = replace(read_results([second]), file="title = 2")
    apart = join([(first, read_results([first])), (second, other)])
    assert apart.notes[1] == "of studies whose files differ, so perhaps not the same in all games: DQN, PVN"
    numbers = [compute(one, ReportConfig(draws=200, features="none", runs=(tmp_path,))) for one in (halves, expected)]
    assert numbers[0].aggregates == numbers[1].aggregates


def test_a_method_of_ones_own_stands_beside_published_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has the yardsticks, so one's own study needs neither DQN nor a scale."""
    monkeypatch.chdir(tmp_path)
    kept(tmp_path, read_results([study(tmp_path / "theirs")]))
    shutil.rmtree("theirs")
    mine = study(tmp_path / "mine", methods=("bc",))
    plain = json.loads((mine / "study.json").read_text())
    plain.pop("sha256", None)
    write_json(mine / "study.json", {**plain, "normalise": "none", "name": "mine", "random_policy": {}})
    assert main(["report", RESULTS, "mine", "--out", "out", "--features", "none", "--draws", "200"]) == 0
    by_method = {row["Method"]: row for row in table(tmp_path / "out", "aggregates")}
    assert float(by_method["PVN"]["Mean"]) == pytest.approx(0.65)  # (7.5 - 1) / (11 - 1)
    assert float(by_method["BC"]["Mean"]) == pytest.approx(0.35)  # (4.5 - 1) / (11 - 1)
    assert "BC   4.50" in capsys.readouterr().out
    assert read_results([Path("out")]).title == "A made study"


def test_what_one_place_misses_another_has(tmp_path: Path) -> None:
    both = study(tmp_path / "both")
    other = tmp_path / "other"
    shutil.copytree(both, other)
    for name in ("online/freeway-pvn-1", "dqn/freeway", "dqn/breakout"):
        shutil.rmtree(both / name)
    kept(tmp_path, read_results([both]))
    for name in ("online/breakout-pvn-0", "online/breakout-pvn-1", "online/freeway-pvn-0"):
        shutil.rmtree(other / name)
    joined = read_results([tmp_path / RESULTS, other])
    assert joined.missing == ()
    assert len(joined.cells) == 6
    shutil.rmtree(other / "dqn/breakout")
    (left,) = read_results([tmp_path / RESULTS, other]).missing
    assert (left.env, left.method, left.reason) == (ENV, "DQN", "not begun")


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    first, second = study(tmp_path / "a", (ENV,)), study(tmp_path / "b", (OTHER,))
    file = kept(tmp_path, read_results([first]))
    with pytest.raises(UserError, match=f"a: found PVN in {ENV}, agents 0, 1, which .*jsonl has too, expected each"):
        read_results([file, first])
    with pytest.raises(UserError, match="expected each once: leave one of the two out"):
        read_results([file, file])
    with pytest.raises(UserError, match="results.jsonl: found results of a report among other runs"):
        read_results([file, second / "online"])
    results = read_results([second])
    kept(tmp_path / "b", replace(results, normalise="human"))
    with pytest.raises(UserError, match="found scores normalised by human, expected dqn as in"):
        read_results([file, tmp_path / "b" / RESULTS])
    kept(tmp_path / "b", replace(results, random_policy={ENV: 2.0}))
    with pytest.raises(UserError, match=f"found 2.0 as the return of random actions in {ENV}, expected 1.0"):
        read_results([file, tmp_path / "b" / RESULTS])
    cells = tuple(
        replace(cell, seeds=(7, 8), env=ENV, settings={**cell.settings, "version.torch": "9"}) for cell in results.cells
    )
    kept(tmp_path / "b", replace(results, cells=cells, envs=(ENV,)))
    with pytest.raises(UserError, match="version.torch is 9, but 2.13.0 in .*both are PVN: a report does not mix them"):
        read_results([file, tmp_path / "b" / RESULTS])


def lines(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for one in found:
        one.pop("crc32")
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: rows.pop(), "found 5 lines after the first, expected 6"),
        (lambda rows: rows.append(rows[-1]), "found 7 lines after the first, expected 6"),
        (lambda rows: rows[0].update(version=2), "expected format 'protovalue results', version 1"),
        (lambda rows: rows[0].update(normalise="wealth"), "line 1: field normalise: found 'wealth'"),
        (lambda rows: rows[2].update(returns=[1.0]), "line 3: field returns: found .1.0., expected one for each"),
        (lambda rows: rows[2].update(returns=[1.0, math.inf]), "line 3: field returns"),
        (lambda rows: rows[2].update(curve=[[1.0], [2.0]]), "line 3: field curve: .*expected 2 rows of 3"),
        (lambda rows: rows[2].update(method="Magic"), "line 3: found Magic in minatar/breakout, online, expected"),
        (lambda rows: rows[2].update(env="minatar/chess"), "line 3: found PVN in minatar/chess, online, expected what"),
        (lambda rows: rows[3].update(settings=[1]), "line 4: field settings"),
        (lambda rows: rows[1]["settings"].clear(), "line 2: found PVN in .*, without a kind of agents, expected"),
        (lambda rows: rows.clear(), "expected format"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_is_refused_by_name(tmp_path: Path, change: Any, expected: str) -> None:
    path = kept(tmp_path, read_results([study(tmp_path / "study")]))
    rows = lines(path)
    change(rows)
    path.write_bytes(b"".join(map(json_line, rows)))
    with pytest.raises(UserError, match=f"results.jsonl: .*{expected}"):
        read_results([path])


def test_a_damaged_or_cut_file_is_named(tmp_path: Path) -> None:
    path = kept(tmp_path, read_results([study(tmp_path / "study")]))
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"returns": [6.0', b'"returns": [9.0', 1))
    with pytest.raises(UserError, match=r"results.jsonl: damaged: line 2 \(its checksum does not match\)"):
        read_results([path])
    path.write_bytes(good[:-20])
    with pytest.raises(UserError, match=r"results.jsonl: damaged: line 7 \(cut short\)"):
        read_results([path])


def test_features_that_were_measured_are_kept(tmp_path: Path) -> None:
    results = read_results([study(tmp_path / "study")])
    each = (EncoderFeatures(0, 0, 128, 20.5, math.nan, None), EncoderFeatures(0, 1, 128, 30.5, 0.25, 0.5))
    spread = Spread(0, 0, 0)
    path = write_results(results, [FeatureNumbers(ENV, "PVN", 2, 128, spread, spread, None, each)], tmp_path / RESULTS)
    again = read_file(path)
    assert math.isnan(again.features[ENV, "PVN"][0].smoothness)
    assert again.features[ENV, "PVN"][1] == each[1]
    (found,) = look(again, quiet=True).features
    assert (found.env, found.method, found.encoders, found.num_features) == (ENV, "PVN", 2, 128)
    assert found.effective_rank == Spread(25.5, 20.5, 30.5)
    assert found.smoothness == Spread(0.25, 0.25, 0.25)
    assert look(again, "none").features == ()
    (first,) = look(again, "first", quiet=True).features
    assert first.encoders == 1


def test_encoders_at_hand_are_measured_beside_those_that_are_not(tmp_path: Path) -> None:
    """A random initialisation can always be made again, so its run is enough to measure it."""
    for seed in (0, 1):
        made.run(tmp_path / f"online/random-{seed}", ENV, [1.0], f"random:minatar:1:{seed}")
    here = read_results([tmp_path / "online"])
    (alone,) = look(here, quiet=True).features
    assert [one.pretraining_seed for one in alone.each] == [0, 1]
    first, second = (replace(here, cells=(cell,)) for cell in here.cells)
    path = write_results(first, look(first, quiet=True).features, tmp_path / RESULTS)
    looked = look(join([(path, read_file(path)), (tmp_path, second)]), quiet=True)
    (found,) = looked.features
    assert [one.pretraining_seed for one in found.each] == [0, 1]
    assert [one.rank for one in found.each] == [one.rank for one in alone.each]
    assert looked.notes[0].startswith(f"features in {ENV}: those of encoders that are not at hand were measured by")
    assert [one.method for one in looked.galleries[0].embeddings] == ["random"]
