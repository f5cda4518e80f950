"""`pvn study stop`: from any machine that sees the folder, whether or not the study's process is alive."""

import os
import time
from dataclasses import replace
from pathlib import Path

from protovalue.errors import UserError
from protovalue.files import open_file, read_json
from protovalue.progress import say
from protovalue.schema import checked
from protovalue.study.command import open_study
from protovalue.study.config import StudyStopConfig
from protovalue.study.engines.slurm import cancel_job
from protovalue.study.folder import STUDY, Events, histories, read_events, study_fields
from protovalue.study.jobs import JOBS, SILENT, Record, read_sign, sign_path, silence, write_record
from protovalue.study.lease import STOP, Lease, deciding, file_time

LOOK = 1.0  # seconds between two looks


def study_stop(config: StudyStopConfig) -> None:
    """Ask whoever runs the study to stop it; if nobody does, ask the jobs that still run."""
    root = _folder(config)
    holder = deciding(root)
    if holder is not None:
        os.close(open_file(root / JOBS / STOP, os.O_WRONLY | os.O_CREAT))
        say(f"{root}: asked process {holder.pid} on {holder.host}; its stages write a checkpoint and end")
        while deciding(root) == holder:
            time.sleep(LOOK)
        print(f"{root}: stopped; pvn study run goes on")
        return
    with Lease(root):
        count = _stop_jobs(root)
    print(f"{root}: {f'{count} stage(s) stopped; pvn study run goes on' if count else 'nothing runs'}")


def _folder(config: StudyStopConfig) -> Path:
    if not config.study.is_dir():
        root = open_study(config.study, config.out)[1]
    elif config.out is not None:
        raise UserError(f"--out: found {config.out}, expected it with a study file only; {config.study} is a folder")
    else:
        root = config.study
    if not (root / STUDY).exists():
        raise UserError(f"{root}: found no {STUDY}, expected the folder of a study")
    study_fields(root)
    return root


def _stop_jobs(root: Path) -> int:
    """Ask the jobs that live on without the study's process, and wait for them; return how many there were."""
    begun = {stage for stage, one in histories(read_events(root)).items() if one.last == "start"}
    jobs = {record.stage: record for record in _records(root) if record.stage in begun}
    asked: dict[str, Record] = {}
    queued = 0
    for stage, record in jobs.items():
        sign = read_sign(root, stage, record.attempt)
        if sign is None and record.engine != "local":
            write_record(root, replace(record, stop=True))
            queued += 1
            how = (
                "taken out of the queue"
                if record.engine == "slurm" and cancel_job(record.handle)
                else ("ends as soon as it begins")
            )
            say(f"{stage}: {record.engine} job {record.handle or record.title} waits: {how}")
        elif sign is not None and sign.code is None and silence(sign_path(root, stage), file_time(root)) < SILENT:
            write_record(root, replace(record, stop=True))
            asked[stage] = record
            say(f"{stage}: asked to stop on {sign.host}")
    count = len(asked) + queued
    events = Events(root)
    try:
        while asked:
            time.sleep(LOOK)
            for stage, record in list(asked.items()):
                sign = read_sign(root, stage, record.attempt)
                if sign is not None and sign.code is not None:
                    name = "done" if sign.code == 0 else "interrupted"
                    events.write(stage, name, seconds=sign.seconds, cpu_seconds=sign.cpu_seconds)
                    del asked[stage]
                elif silence(sign_path(root, stage), file_time(root)) >= SILENT:
                    del asked[stage]  # it is gone without a word
    finally:
        events.close()
    return count


def _records(root: Path) -> list[Record]:
    found = []
    for path in sorted((root / JOBS).glob("*.json")):
        if path.name.endswith(".sign.json") or path.name.startswith("driver-"):
            continue
        try:
            found.append(checked(Record, read_json(path), path))
        except UserError as error:
            say(f"pvn: {error}; it is passed over")
    return found
