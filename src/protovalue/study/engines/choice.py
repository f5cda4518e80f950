"""Which cluster a study's stages run on, by the settings of `pvn study run`."""

from pathlib import Path

from protovalue.errors import UserError
from protovalue.progress import say
from protovalue.study.config import StudyRunConfig
from protovalue.study.engines.cluster import Cluster
from protovalue.study.engines.ray_cluster import RayCluster
from protovalue.study.engines.slurm import Slurm, read_more
from protovalue.study.jobs import SILENT, host, machine, read_record, read_sign, sign_path, silence
from protovalue.study.lease import file_time
from protovalue.study.model import Study
from protovalue.study.plan import Plan
from protovalue.study.rates import estimates, filled, known_rates
from protovalue.study.resources import asks, asks_text
from protovalue.study.state import is_done


def cluster(config: StudyRunConfig, study: Study, laid_out: Plan, root: Path) -> Cluster:
    """Connect to the cluster that was chosen; whatever it cannot run is refused here, before anything starts."""
    more = read_more(config.slurm)
    rates = known_rates(laid_out.stages, root)
    seconds = filled(laid_out.stages, estimates(laid_out.stages, rates, study.environments))
    left = [stage for stage in laid_out.stages if not is_done(stage, root)]
    asked = asks(study, left, seconds)
    if left:
        say(f"asks: {asks_text(left, asked)}")
    if config.engine == "ray":
        return RayCluster(config.ray_address, root, study.threads, asked, config.jobs)
    return Slurm(config.partition, config.account, more, root, study.threads, asked, config.jobs)


def refuse_others(root: Path, laid_out: Plan, engine: str) -> None:
    """Refuse to start where stages still run on another engine: this one could not follow them."""
    now = file_time(root)
    for stage in laid_out.stages:
        record = read_record(root, stage.id)
        sign = read_sign(root, stage.id, record.attempt) if record else None
        if record is None or sign is None or sign.code is not None:
            continue
        if record.engine == engine and (engine != "local" or sign.machine == machine()):
            continue
        if silence(sign_path(root, stage.id), now) < SILENT and not (
            record.engine == "local" and sign.machine == machine()
        ):
            where = sign.host if sign.machine != machine() else f"{host()}, this machine"
            raise UserError(
                f"{root}: {stage.id} still runs on {where} (--engine {record.engine}); "
                f"go on with that engine, or end it: pvn study stop {root}"
            )
