"""`pvn`: one sub-command per stage. Parsing only; what a command does lives in the module it names."""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protovalue import __version__
from protovalue.errors import UserError, unknown
from protovalue.flags import parse
from protovalue.interrupt import ending_at_once, farewell, raised
from protovalue.processes import wait_quietly
from protovalue.user_code import user_code


@dataclass(frozen=True)
class Command:
    """Where a sub-command's config and function live. Neither is imported before the command is called.

    `config` names a dataclass, or a function that chooses one by the arguments.
    """

    config: str
    run: str
    summary: str
    continues: bool = False
    """Whether the same command goes on where it was interrupted; else it starts again."""


COMMANDS = {
    "collect": Command(
        "protovalue.data.config:CollectConfig",
        "protovalue.collecting:collect_command",
        "Collect experience from an environment into a data set.",
        continues=True,
    ),
    "data info": Command(
        "protovalue.data.config:DataInfoConfig",
        "protovalue.data.info:info",
        "Print what is in a data set; --picture draws some frames.",
    ),
    "data verify": Command(
        "protovalue.data.config:DataVerifyConfig", "protovalue.data.info:verify", "Check every byte of a data set."
    ),
    "import rlu": Command(
        "protovalue.data.config:ImportRluConfig",
        "protovalue.data.import_rlu:import_rlu_command",
        "Import RL Unplugged's Atari episodes into a data set.",
        continues=True,
    ),
    "import dqn-replay": Command(
        "protovalue.data.config:ImportDqnReplayConfig",
        "protovalue.data.import_dqn_replay:import_dqn_replay_command",
        "Import the DQN replay data into a data set.",
        continues=True,
    ),
    "import minari": Command(
        "protovalue.data.config:ImportMinariConfig",
        "protovalue.data.import_minari:import_minari_command",
        "Import a Minari data set that is on this machine.",
        continues=True,
    ),
    "import encoder": Command(
        "protovalue.released.config:ImportEncoderConfig",
        "protovalue.released.command:import_encoder_command",
        "Import an encoder that was released as a SavedModel, such as the paper's.",
        continues=True,
    ),
    "import copy": Command(
        "protovalue.data.config:ImportCopyConfig",
        "protovalue.data.import_copy:import_copy_command",
        "Copy a data set of this program from elsewhere, such as the Hub.",
        continues=True,
    ),
    "export minari": Command(
        "protovalue.data.config:ExportMinariConfig",
        "protovalue.data.export_minari:export_minari_command",
        "Write a data set in Minari's format, without loss.",
    ),
    "tabular": Command(
        "protovalue.tabular.config:TabularConfig",
        "protovalue.tabular.command:tabular",
        "Solve a small world exactly and write a page that shows the theory.",
    ),
    "pretrain": Command(
        "protovalue.pretrain.method_configs:config_class",
        "protovalue.pretrain.loop:pretrain_command",
        "Train an encoder on a data set with one of the methods.",
        continues=True,
    ),
    "online": Command(
        "protovalue.online.config:OnlineConfig",
        "protovalue.online.linear_dqn:online_command",
        "Train linear agents on a frozen encoder, many seeds at once.",
        continues=True,
    ),
    "dqn": Command(
        "protovalue.online.config:DqnConfig",
        "protovalue.online.dqn:dqn_command",
        "Train DQN end to end, the yardstick.",
        continues=True,
    ),
    "evaluate": Command(
        "protovalue.evaluate.config:EvaluateConfig",
        "protovalue.evaluate.episodes:evaluate_command",
        "Play complete episodes with trained agents.",
    ),
    "probe": Command(
        "protovalue.probe.config:ProbeConfig",
        "protovalue.probe.command:probe_command",
        "Read what is true of a state from frozen features.",
    ),
    "sets": Command(
        "protovalue.sets.config:SetsConfig",
        "protovalue.sets.command:sets_command",
        "Look at the sets of states that a proto-value network learned about.",
    ),
    "study run": Command(
        "protovalue.study.config:StudyRunConfig",
        "protovalue.study.command:study_run",
        "Run what a study file names and is not there yet.",
        continues=True,
    ),
    "study status": Command(
        "protovalue.study.config:StudyStatusConfig",
        "protovalue.study.overview:study_status",
        "Show how far a study is.",
    ),
    "study stop": Command(
        "protovalue.study.config:StudyStopConfig",
        "protovalue.study.stopping:study_stop",
        "Let the running stages of a study write a checkpoint and end.",
    ),
    "study plan": Command(
        "protovalue.study.config:StudyPlanConfig",
        "protovalue.study.overview:study_plan",
        "List a study's stages with their estimated times on this machine.",
    ),
    "report": Command(
        "protovalue.report.config:ReportConfig",
        "protovalue.report.command:report_command",
        "Write tables, figures and a page about finished runs.",
    ),
    "claims": Command(
        "protovalue.report.config:ClaimsConfig",
        "protovalue.report.claims_page:claims_command",
        "Write one page of what several reports say of the paper's claims.",
    ),
    "push": Command(
        "protovalue.publish.config:PushConfig",
        "protovalue.publish.push:push_command",
        "Publish an encoder on the Hugging Face Hub.",
    ),
    "zoo list": Command(
        "protovalue.zoo.config:ZooListConfig",
        "protovalue.zoo.listing:zoo_list",
        "List the encoders that come with the package, or print the card of one.",
    ),
    "zoo make": Command(
        "protovalue.publish.config:ZooMakeConfig",
        "protovalue.publish.zoo_make:zoo_make_command",
        "Pack encoders of a finished study into a zoo.",
    ),
    "cache list": Command(
        "protovalue.caches:CacheListConfig",
        "protovalue.caches:cache_list",
        "List what was computed once per data set, with its size.",
    ),
    "cache clear": Command(
        "protovalue.caches:CacheClearConfig",
        "protovalue.caches:cache_clear",
        "Remove what was computed once per data set.",
    ),
    "list": Command(
        "protovalue.listing:ListConfig",
        "protovalue.listing:list_command",
        "List environments, encoders, methods and indicators.",
    ),
    "check": Command(
        "protovalue.check.config:CheckConfig",
        "protovalue.check.command:check_command",
        "Compare a device with the CPU: every method, indicators, agents.",
    ),
    "bench": Command(
        "protovalue.bench:BenchConfig", "protovalue.bench:bench", "Run one of the benchmarks and print its table."
    ),
    "demo": Command(
        "protovalue.demo.config:DemoConfig",
        "protovalue.demo.command:demo",
        "Show what there is in a few minutes: what `make demo` runs.",
        continues=True,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; return 0, or 2 after a user's mistake, 130 after Ctrl-C, 143 after SIGTERM."""
    args = list(sys.argv[1:] if argv is None else argv)
    wait_quietly()
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    try:
        with raised(), user_code():
            return _dispatch(args)
    except UserError as error:
        if debug:
            raise
        print(f"pvn: {_printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        if debug:
            raise
        continues = any(COMMANDS[name].continues for name in COMMANDS if args[: name.count(" ") + 1] == name.split())
        line, code = farewell(error, f"the same command {'continues' if continues else 'starts again'}")
        print(line, file=sys.stderr)
        return code
    except BrokenPipeError:  # the reader of a pipe, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        more = ", expected a folder or a free name" if isinstance(error, FileExistsError) else ""
        print(f"pvn: {_printable(f'{where}{error.strerror or error}{more}')}", file=sys.stderr)
        return 2
    except UnicodeEncodeError as error:  # JSON can hold what no text file can
        if debug:
            raise
        print(f"pvn: found {error.object[error.start : error.end]!a} in a text, expected Unicode", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if debug or not _is_lack_of_memory(error):
            raise
        print(
            f"pvn: out of memory: {_printable(str(error).partition(chr(10))[0] or 'no more is free')}", file=sys.stderr
        )
        return 2


def _is_lack_of_memory(error: Exception) -> bool:
    """Whether an error says that there is not enough memory; PyTorch has no exception of its own for that on a CPU."""
    return isinstance(error, MemoryError) or "t allocate memory" in str(error) or "out of memory" in str(error)


def _printable(text: str) -> str:
    """Escape what would break the line or steer a terminal, and cut the rest: a name may come from a file."""
    text = text if len(text) <= 2_000 else f"{text[:1_500]} ... {text[-400:]}"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if args[0] == "--version":
        print(f"protovalue {__version__}")
        return 0
    name = _command_name(args)
    if name is None:
        print(_overview(args[0] + " "))
        return 0
    command = COMMANDS[name]
    rest = args[len(name.split()) :]
    with ending_at_once():  # imports take seconds
        kind = _load(command.config)
        config = parse(kind if isinstance(kind, type) else kind(rest), f"pvn {name}", rest)
        run = _load(command.run)
    run(config)
    return 0


def _command_name(args: list[str]) -> str | None:
    """Find the sub-command that `args` begin with; None asks for a group's overview, as `pvn data` does."""
    for words in (2, 1):
        name = " ".join(args[:words])
        if name in COMMANDS:
            return name
    group = {name.split()[1] for name in COMMANDS if name.startswith(args[0] + " ")}
    if not group:
        raise unknown("command", args[0], {name.split()[0] for name in COMMANDS})
    if len(args) == 1 or args[1] in ("-h", "--help"):
        return None
    raise unknown(f"command pvn {args[0]}", args[1], group)


def _overview(prefix: str = "") -> str:
    shown = {name: command for name, command in COMMANDS.items() if name.startswith(prefix)}
    width = max(len(name) for name in shown)
    lines = [f"  pvn {name:<{width}}  {command.summary}" for name, command in shown.items()]
    return "\n".join(
        [
            "pvn: state representations for reinforcement learning without rewards, and what they are worth.",
            "",
            *lines,
            "",
            "`pvn COMMAND --help` explains a command with an example. --version prints the version,",
            "--debug shows the traceback of an error.",
        ]
    )


def _load(where: str) -> Any:
    module, name = where.split(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    sys.exit(main())
