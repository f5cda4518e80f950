"""`pvn push`: an encoder with its card to the Hugging Face Hub, in one commit."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from protovalue import hub
from protovalue.card import CARD, PICTURE, RESULTS, Result, card, read_results, write_results
from protovalue.encoder import CONFIG, FORMAT, MODEL, FrozenEncoder, encoder_folder, load_encoder, own_folder
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.files import read_bytes, read_json, write_json
from protovalue.publish.config import PushConfig
from protovalue.publish.results import of_run, without_places, without_places_in

_PNG = b"\x89PNG\r\n\x1a\n"


def push(config: PushConfig) -> hub.Repository:
    """Publish an encoder; return its repository at the new commit. What is refused leaves the Hub as it was."""
    repository = hub.Repository.of(config.to)
    if repository.revision != "main":
        raise UserError(f"{config.to}: found a revision, expected hf://ORG/NAME: a commit on its main branch is made")
    if hub.is_address(config.encoder):
        raise UserError(f"{config.encoder}: it is on the Hub already, expected a folder, a run or zoo:NAME")
    encoder = load_encoder(config.encoder)
    folder = own_folder(encoder_folder(config.encoder))
    results = [*read_results(folder), *(of_run(run, encoder, folder, config.to) for run in config.runs)]
    picture = _picture(config, encoder)
    hub.require_token(repository)
    _check_target(repository)
    with tempfile.TemporaryDirectory() as name:
        files = _files(folder, Path(name), results, picture, config)
        message = (
            f"{encoder.about.get('method') or 'An encoder'} for {encoder.about.get('env_id') or 'any environment'}"
        )
        return hub.upload(repository, files, message, config.private)


def push_command(config: PushConfig) -> None:
    """Publish, and say how the encoder is called from now on."""
    done = push(config)
    print(f"{done}: published; protovalue.load_encoder({config.to!r}) and pvn online --encoder {config.to} take it")


def _check_target(repository: hub.Repository) -> None:
    """Refuse to write over what is no encoder."""
    if CONFIG not in (hub.files_of(repository) or ()):
        return

    def check(path: Path) -> None:
        try:
            said = json.loads(read_bytes(path)).get("format")
        except (ValueError, AttributeError):
            said = None
        if said != FORMAT:
            raise UserError(f"{repository}: holds something else than an encoder, expected a new name")

    hub.fetch(repository, (CONFIG,), "no encoder here", 1 << 26, check)


def _picture(config: PushConfig, encoder: FrozenEncoder) -> bytes:
    """Return the picture that is given, or draw one in the encoder's environment."""
    if config.picture is not None:
        found = read_bytes(config.picture)
        if not found.startswith(_PNG):
            raise UserError(f"--picture: {config.picture}: found no PNG file, expected one")
        return found
    from protovalue.publish.picture import draw

    env_id = encoder.about.get("env_id")
    try:
        if env_id is None:
            raise UserError("the encoder names no environment")
        env = make(str(env_id), 1, **encoder.about.get("env_options", {}))
    except UserError as error:
        raise UserError(f"--picture: none can be drawn ({error}), expected a PNG file") from error
    try:
        return draw(encoder, env)
    finally:
        env.close()


def _files(
    folder: Path, new: Path, results: Sequence[Result], picture: bytes, config: PushConfig
) -> Mapping[str, bytes | Path]:
    """Return what is uploaded; no path of this machine is in it."""
    fields = read_json(folder / CONFIG)
    write_json(new / CONFIG, {**fields, "about": without_places(fields["about"])})
    own = read_bytes(folder / CARD).decode() if (folder / CARD).is_file() else f"# {config.to}\n"
    own = without_places_in(own, fields["about"])
    head = _metadata(fields, results, config)
    text = card(own, config.to, results, config.license, picture=True, head=head)
    files: dict[str, bytes | Path] = {
        CONFIG: read_bytes(new / CONFIG),
        MODEL: folder / MODEL,
        CARD: text.encode(),
        PICTURE: picture,
    }
    if results:
        write_results(new, results)
        files[RESULTS] = read_bytes(new / RESULTS)
    return files


def _metadata(fields: Mapping[str, object], results: Sequence[Result], config: PushConfig) -> str:
    """Return the head of the card, YAML: what the Hub searches by, and the results as its model-index."""
    from huggingface_hub import EvalResult, ModelCardData

    about = fields["about"]
    assert isinstance(about, dict)
    env = str(about.get("env_id") or "")
    tags = ["protovalue", "reinforcement-learning", "representation-learning", str(about.get("method") or "")]
    scores = [
        EvalResult(
            task_type="reinforcement-learning",
            task_name="linear agents on frozen features",
            dataset_type=one.env,
            dataset_name=one.env,
            metric_type="mean_reward",
            metric_name=f"mean return of {len(one.returns)} agents, {one.episodes} episodes each",
            metric_value=round(one.mean, 4),
        )
        for one in results
    ]
    data = ModelCardData(
        license=config.license,
        library_name="protovalue",
        pipeline_tag="reinforcement-learning",
        tags=[tag for tag in [*tags, *env.split("/")] if tag],
        model_name=config.to.rpartition("/")[2],
        eval_results=scores or None,
    )
    return str(data.to_yaml())
