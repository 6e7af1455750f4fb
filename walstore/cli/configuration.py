"""Configuration: what walstore serve is set to, by a file, the environment and ``--set``.

A setting is named SECTION.FIELD, such as ``log.retention_bytes``; the sections are classes of settings, so
a field that is added to one can be set at once. Of a setting that is given in several places the last of
these counts: the default, the file of ``--config``, the environment, ``--set``.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from walstore.cli.errors import UsageError
from walstore.cli.output import visible
from walstore.core.settings import Settings
from walstore.core.validation.fields import GIB, KIB, MIB, Rule, rule_of, show
from walstore.errors import InvalidSettingsError
from walstore.http import HttpSettings
from walstore.serve import ServeSettings
from walstore.store.store_settings import StoreSettings

VERSION: Final = 1
"""Version of the file's format; a file without one has this."""
PREFIX: Final = "WALSTORE_"
"""``log.retention_bytes`` is ``WALSTORE_LOG_RETENTION_BYTES`` in the environment."""
_SHOWN: Final = 200
"""How many characters of a wrong value are shown."""
NONE: Final = "none"
"""How None is written: TOML has no word for it."""

_DRAINS: Final = ("serve.drain_seconds", "http.drain_seconds")
_UNITS: Final = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
_KUBERNETES: Final = re.compile(r".*_(SERVICE_(HOST|PORT.*)|PORT|PORT_\d+_(TCP|UDP|SCTP).*)")
"""Variables that Kubernetes sets for a service, here for one named ``walstore-log``."""
_SIZE: Final = re.compile(r"([0-9]{1,18}) ?(KiB|MiB|GiB)")


class Source(NamedTuple):
    """Where a value comes from."""

    name: str
    """As messages show it: ``--set``, a variable, or a file."""
    value: Any
    before: str = ""
    """The source whose value it replaced."""


class Configuration:
    """The settings of all sections, and where each value comes from."""

    def __init__(
        self,
        *,
        file: Mapping[str, Any] | None = None,
        file_name: str = "",
        environment: Mapping[str, str] | None = None,
        given: Sequence[str] = (),
        drain_seconds: float | None = None,
    ) -> None:
        """Check all values; UsageError for one that is unknown, given twice, or not allowed.

        ``file`` is the content of a TOML file, ``given`` are the texts of ``--set``, ``drain_seconds`` is the
        option of that name.
        """
        self._rules: Final = dict(_rules(_sections()))
        self._sources: Final[dict[str, Source]] = {}
        for name, value in self._of_file(file or {}, file_name):
            self._put(name, value, file_name)
        for variable, name in self._of_environment(environment or {}):
            self._put(name, (environment or {})[variable], variable)
        for name, value in self._of_options(given):
            self._put(name, value, "--set")
        if drain_seconds is not None:
            for name in _DRAINS:
                self._put(name, drain_seconds, "--drain-seconds")
        self.log: Final[Settings] = self._make("log", Settings)
        self.store: Final[StoreSettings] = self._make("store", StoreSettings)
        self.serve: Final[ServeSettings] = self._make("serve", ServeSettings)
        self.http: Final[HttpSettings] = self._make("http", HttpSettings)

    @cached_property
    def upload(self) -> Any:
        """The ``UploadSettings`` of a tier, made once; MissingExtraError without the extra ``cloud``."""
        from uploader import UploadSettings

        return self._make("upload", UploadSettings)

    def check_used(self, unused: Mapping[str, str]) -> None:
        """Raise UsageError for a setting of ``--set`` in a section that has no part in what is served.

        ``unused`` says what each such section needs. A file and an environment may be shared by several
        servers, so theirs are left aside.
        """
        for name, source in self._sources.items():
            needed = unused.get(name.partition(".")[0])
            if needed is not None and source.name == "--set":
                raise UsageError(f"--set {name} needs {needed}")

    def as_toml(self, unused: Mapping[str, str]) -> str:
        """Return all settings as a file of ``--config``, each with its source."""
        lines = [f"version = {VERSION}"]
        section = ""
        for name, rule in self._rules.items():
            table, _, field = name.rpartition(".")
            if table != section:
                note = unused.get(table.partition(".")[0])
                lines += ["", f"[{table}]" + (f"  # not used without {note}" if note else "")]
                section = table
            lines.append(f"{field} = {_as_toml(self._value(name), rule)}  # {self._origin(name)}")
        return "\n".join(lines) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Return all settings by name, each with its value and source."""
        return {
            name: {"value": self._value(name), "source": self._origin(name)} for name in self._rules
        }

    def _value(self, name: str) -> Any:
        if name in self._sources:
            return self._sources[name].value
        found: Any = _sections()[name.partition(".")[0]]()
        for part in name.split(".")[1:]:
            found = getattr(found, part)
        return found

    def _origin(self, name: str) -> str:
        source = self._sources.get(name)
        if source is None:
            return "default"
        return f"{source.name}, not {source.before}" if source.before else source.name

    def _put(self, name: str, value: Any, source: str) -> None:
        rule = self._rule(name, source)
        checked = _checked(name, value, rule, source)
        before = self._sources.get(name)
        self._sources[name] = Source(source, checked, "" if before is None else before.name)

    def _rule(self, name: str, source: str) -> Rule:
        rule = self._rules.get(name)
        if rule is None:
            near = difflib.get_close_matches(name, self._rules, 1)
            hint = f"; did you mean {near[0]}?" if near else "; --show-config lists them"
            raise UsageError(f"{source}: there is no setting {name}{hint}")
        return rule

    def _of_file(self, file: Mapping[str, Any], file_name: str) -> Iterator[tuple[str, Any]]:
        version = file.get("version", VERSION)
        if version != VERSION or isinstance(version, bool):
            raise UsageError(
                f"{file_name} is of version {version!r}; this walstore reads version {VERSION}"
            )
        tables = sorted({name.rpartition(".")[0] for name in self._rules})
        for name, content in file.items():
            if name != "version":
                yield from _leaves(name, content, tables, file_name)

    def _of_environment(self, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield variables that are set, with the names of their settings."""
        names = {variable_of(name): name for name in self._rules}
        sections = tuple(f"{PREFIX}{section.upper()}_" for section in _sections())
        for variable, value in environment.items():
            if not variable.startswith(sections) or not value:
                continue
            if variable not in names:
                if _KUBERNETES.fullmatch(variable):
                    continue
                near = difflib.get_close_matches(variable, names, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UsageError(f"the variable {variable} names no setting{hint}")
            yield variable, names[variable]

    def _of_options(self, given: Sequence[str]) -> Iterator[tuple[str, str]]:
        seen: set[str] = set()
        for text in given:
            name, equals, value = text.partition("=")
            name = name.strip()
            if not equals or not name:
                raise UsageError(
                    f"--set takes NAME=VALUE, such as log.retention_bytes=10GiB, not {text!r}"
                )
            if name in seen:
                raise UsageError(f"--set {name} is given twice")
            seen.add(name)
            yield name, value.strip()

    def _make(self, section: str, kind: Any) -> Any:
        """Return the settings of a section, those of its parts included."""
        values: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {}
        for name, source in self._sources.items():
            first, _, field = name.partition(".")
            if first != section:
                continue
            part, _, inner = field.partition(".")
            if inner:
                parts.setdefault(part, {})[inner] = source.value
            else:
                values[part] = source.value
        try:
            for declared in dataclasses.fields(kind):
                rule = rule_of(declared)
                if declared.name in parts and rule is not None and rule.holds is not None:
                    values[declared.name] = rule.holds(**parts[declared.name])
            return kind(**values)
        except InvalidSettingsError as error:  # of two settings together: each alone is allowed
            raise UsageError(f"[{section}]: {error}") from None


def configure(
    path: Path | None, given: Sequence[str], drain_seconds: float | None
) -> Configuration:
    """Return what the options, the environment of this process and a file say together. Blocking.

    ``drain_seconds`` is an option of its own for a setting of two sections. UsageError as of
    :class:`Configuration`, or if the file cannot be read.
    """
    file = {} if path is None else parse_file(_read(path), visible(path))
    if drain_seconds is not None:
        drains = " and ".join(_DRAINS)
        if any(text.partition("=")[0].strip() in _DRAINS for text in given):
            raise UsageError(f"--drain-seconds is for {drains}, which --set gives, too")
    return Configuration(
        file=file,
        file_name=visible(path),
        environment=os.environ,
        given=given,
        drain_seconds=drain_seconds,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read --config {path}: {error.strerror}") from None


def variable_of(name: str) -> str:
    """Return the variable of the environment for a setting."""
    return PREFIX + name.replace(".", "_").upper()


def parse_file(content: bytes, file_name: str) -> dict[str, Any]:
    """Return the content of a TOML file; UsageError if it is none."""
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # also a number of too many digits, and deep nesting
        raise UsageError(f"{file_name} is no TOML file: {error}") from None


def _sections() -> dict[str, Any]:
    """Return the classes by section; that of a tier only with the extra ``cloud``, which it needs."""
    found: dict[str, Any] = {"log": Settings, "store": StoreSettings}
    try:
        from uploader import UploadSettings
    except ImportError:
        pass
    else:
        found["upload"] = UploadSettings
    return {**found, "serve": ServeSettings, "http": HttpSettings}


def _rules(sections: Mapping[str, Any]) -> Iterator[tuple[str, Rule]]:
    """Yield all settings with their rules; a nested class after the fields of its owner."""
    for section, kind in sections.items():
        nested: list[tuple[str, Any]] = []
        for field in dataclasses.fields(kind):
            rule = rule_of(field)
            if rule is not None and rule.holds is None:
                yield f"{section}.{field.name}", rule
            elif rule is not None:
                nested.append((f"{section}.{field.name}", rule.holds))
        yield from _rules(dict(nested))


def _leaves(
    name: str, content: object, tables: Iterable[str], file_name: str
) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a table of the file; UsageError for one that is none of ours."""
    if name in tables and not isinstance(content, dict):
        raise UsageError(f"{file_name}: {name} must be a table, [{name}]")
    if name not in tables and isinstance(content, dict):
        near = difflib.get_close_matches(name, tables, 1)
        hint = f"; did you mean [{near[0]}]?" if near else f"; there are {', '.join(tables)}"
        raise UsageError(f"{file_name}: there is no table [{name}]{hint}")
    if not isinstance(content, dict):
        yield name, content
        return
    for field, value in content.items():
        yield from _leaves(f"{name}.{field}", value, tables, file_name)


def _checked(name: str, value: Any, rule: Rule, source: str) -> Any:
    try:
        return rule.check(name, _parsed(value, rule) if isinstance(value, str) else value)
    except InvalidSettingsError as error:
        raise UsageError(f"{source}: {error}") from None


def _parsed(text: str, rule: Rule) -> Any:
    """Return the value that a text writes, or the text itself, which the rule then judges."""
    word = text.strip()
    if rule.optional and word.lower() == NONE:
        return None
    if word in rule.words:
        return word
    if rule.kind == "bytes" and (found := _SIZE.fullmatch(word)) is not None:
        return int(found[1]) * _UNITS[found[2]]
    try:
        value = tomllib.loads(f"value = {word}")["value"]
    except (ValueError, RecursionError):  # no TOML, or a number of too many digits
        return text[:_SHOWN]
    return value if isinstance(value, bool | int | float) else text


def _as_toml(value: Any, rule: Rule) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    shown = show(value, rule.kind)
    return shown if shown == str(value) else f'"{shown}"'
