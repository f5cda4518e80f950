"""The [methods] tables of a study file: each a method under a name of its own, and no two of them the same."""

import re
from collections.abc import Mapping
from typing import Any

from protovalue.errors import UserError, unknown
from protovalue.pretrain.methods import method_class, method_names
from protovalue.registry import checksum, is_file
from protovalue.released.config import ImportEncoderConfig
from protovalue.study.data_table import check_template
from protovalue.study.env_table import Given, own_environments
from protovalue.study.lines import Source
from protovalue.study.model import DQN, RANDOM, RANDOM_KEEPS, RELEASED, RELEASED_WIDTH, MethodEntry
from protovalue.study.settings import check_keys, check_names, field_names, settings
from protovalue.study.values import NAME, NAME_TEXT, read_text

METHOD_KEYS = ("method", "title", "env", "encoders")  # of a method's table, beside its settings
RELEASED_KEYS = ("kind", "source", "title", "env", "encoders")  # the same where encoders are imported


def read_methods(
    source: Source, values: Mapping[str, Any], given: Mapping[str, Given], shared: Mapping[str, Any]
) -> tuple[MethodEntry, ...]:
    """Read the methods; `given` are the options in [env], and `shared` the settings in [pretrain]."""
    tables = values.get("methods", {})
    if not tables:
        raise source.error(["methods"], "methods: found none, expected at least one table such as [methods.pvn]")
    entries = []
    for name, table in tables.items():
        path = ["methods", name]
        if not isinstance(table, dict):
            raise source.error(path, f"{name}: found {table!r}, expected a table: [methods.{name}]")
        if not re.fullmatch(NAME, name):
            raise source.error(path, f"methods: found {name!r}, expected {NAME_TEXT}")
        if "kind" in table:
            entries.append(_released(source, path, table, given))
            continue
        method = read_text(source, path, table, "method", name)
        title = read_text(source, path, table, "title", name)
        own = {key: value for key, value in table.items() if key not in METHOD_KEYS}
        environments = own_environments(source, path, table, given)
        if method == DQN:
            for key in own:
                raise source.error([*path, key], f"{key}: found in [methods.{name}], expected it in [dqn]")
            if "encoders" in table:
                reason = f"encoders: found in [methods.{name}], expected seeds in [dqn]: it has no encoders"
                raise source.error([*path, "encoders"], reason)
            entries.append(MethodEntry(name, title, method, environments=environments))
            continue
        try:
            config = method_class(method).Config
        except UserError as error:
            better = error if is_file(method) else unknown("method", method, [*method_names(), DQN])
            raise source.error([*path, "method"], better) from None
        known = RANDOM_KEEPS if method == RANDOM else field_names(config)
        check_keys(source, path, own, known.union(METHOD_KEYS))
        checked = settings(source, path, own, config)
        check_names(source, path, checked)
        code = checksum([method, checked.get("indicator"), checked.get("architecture", shared.get("architecture"))])
        entries.append(
            MethodEntry(name, title, method, checked, code, environments, encoders=_encoders(source, path, table))
        )
    ends = [entry for entry in entries if entry.method == DQN]
    if len(ends) > 1:
        raise source.error(["methods", ends[1].name], "methods: found dqn twice, expected one: [dqn] has its settings")
    for key, what in (("title", lambda entry: entry.title), ("settings", _identity)):
        seen: dict[Any, str] = {}
        for entry in entries:
            other = seen.setdefault(what(entry), entry.name)
            if other != entry.name:
                raise source.error(
                    ["methods", entry.name], f"methods: {entry.name} has the same {key} as {other}, expected another"
                )
    return tuple(entries)


def _released(source: Source, path: list[str], table: Mapping[str, Any], given: Mapping[str, Given]) -> MethodEntry:
    """Read a method whose encoders are not pretrained here but imported."""
    if table["kind"] != RELEASED:
        raise source.error([*path, "kind"], unknown("kind", str(table["kind"]), [RELEASED]))
    check_keys(source, path, table, field_names(ImportEncoderConfig).union(RELEASED_KEYS))
    template = table.get("source")
    if not isinstance(template, str) or not template:
        what = f"source: found {template!r}, expected text such as 'gs://bucket/{{game}}/{{seed}}'"
        raise source.error([*path, "source"], what)
    check_template(source, [*path, "source"], template)
    if len(given) > 1 and "{game}" not in template:
        raise source.error([*path, "source"], "source: found no {game}, expected it with several environments")
    own = {key: value for key, value in table.items() if key not in RELEASED_KEYS}
    checked = {"width": RELEASED_WIDTH, **settings(source, path, own, ImportEncoderConfig)}
    title = read_text(source, path, table, "title", path[-1])
    environments = own_environments(source, path, table, given)
    encoders = _encoders(source, path, table)
    return MethodEntry(path[-1], title, RELEASED, checked, "", environments, template, encoders)


def _encoders(source: Source, path: list[str], table: Mapping[str, Any]) -> int | None:
    """Read how many of the study's encoders a method has; None is all."""
    found = table.get("encoders")
    if found is not None and (not isinstance(found, int) or isinstance(found, bool) or found < 1):
        raise source.error([*path, "encoders"], f"encoders: found {found!r}, expected a whole number from 1 on")
    return found


def _identity(entry: MethodEntry) -> tuple[Any, ...]:
    played = sorted((env, sorted(variant.resolved.items())) for env, variant in entry.environments.items())
    return (entry.method, entry.source, repr(sorted(entry.settings.items(), key=lambda item: item[0])), repr(played))
