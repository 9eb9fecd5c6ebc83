"""Overrides as people type them, checked one by one: everything wrong is found at once and said in plain sentences.

Hydra stops at the first mistake, advises to add a + to a mistyped key, takes any key after `+hydra.` without a word, and
cannot parse a prompt such as `What's here?`. Its own parser and types still decide; only the words are ours.
"""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.schema import literal, options

Groups = dict[str, list[str]]

_LONGEST = 32  # characters of a value that tables and names show

_DECIDED = {  # options of Hydra's that this project settles
    "hydra.output_subdir": "the run folder's config.yaml holds the configuration",
    "hydra.mode": "-m makes a sweep",
    "hydra.job.chdir": "paths mean what they mean where you stand",
}


class OverrideReader:
    """Reads the overrides of one script, whose options are those of `schema` and whose YAML groups are `groups`."""

    def __init__(self, schema: type, groups: Groups, sweeping: bool) -> None:
        self.schema, self.groups, self.sweeping = schema, groups, sweeping
        self.options = options(schema)

    def read(self, arguments: list[str]) -> tuple[list[str], list[str]]:
        """The overrides that Hydra can take as they are, and a sentence for each of the others."""
        good, found = [], []
        for argument in map(self._quote_free_text, arguments):
            try:
                override = OverridesParser.create().parse_override(argument)
            except HydraException:
                key, equals, _ = argument.partition("=")
                advice = f"put quotes around the value: '{key}=\"...\"'" if equals else "write KEY=VALUE"
                found.append(f"cannot read {argument!r}: {advice}")
                continue
            problems = list(self._problems(override))
            found += problems
            if not problems:
                good.append(argument)
        return good, found

    def nearest(self, key: str) -> str:
        """What to say about a key that does not exist: the option or group that was probably meant."""
        names = {group: group for group in self.groups}
        for option, metadata in self.options.items():
            names |= dict.fromkeys((option, option.split(".")[-1], *metadata["also"]), option)
        best = difflib.get_close_matches(key, names, n=1) or difflib.get_close_matches(key.split(".")[-1], names, n=1)
        return f"did you mean {names[best[0]]}?" if best else "--help lists the options"

    def _quote_free_text(self, argument: str) -> str:
        """A free-text option's value, taken letter for letter, as a quoted string of Hydra's; other arguments as they are.

        A value that is already one quoted string means what is between the quotes. In a sweep, commas must keep their
        meaning, so Hydra's grammar holds there.
        """
        key, equals, text = argument.partition("=")
        if not equals or self.sweeping or text == "null" or not self.options.get(key, {}).get("free_text"):
            return argument
        if text[:1] in ("'", '"'):
            try:
                if isinstance(OverridesParser.create().parse_override(argument).value(), str):
                    return argument
            except HydraException:
                pass
        return override_of(key, text)

    def _problems(self, override: Override) -> Iterator[str]:
        key, text = override.key_or_group, override.input_line
        if override.is_delete():
            yield f"{text}: options are set, not removed; give {key} a value"
        elif key.startswith("hydra/"):
            return  # a group of Hydra's or of a plugin, which Hydra itself checks
        elif key in _DECIDED or key.startswith("hydra.runtime"):
            yield f"{key} is not yours to set: {_DECIDED.get(key, 'Hydra fills it in')}"
        elif key.split(".")[0] == "hydra":
            yield from _hydra_problems(key)
        elif override.is_sweep_override() and not self.sweeping:
            yield f"{text} names several values: add -m to run them all, or put quotes around one value with commas"
        elif key in self.groups:
            if override.is_add():
                yield f"{text}: the group {key} exists, write it without +"
            for choice in _values(override):
                if choice not in self.groups[key]:
                    typed = "null" if choice is None else choice
                    yield f"{key}={typed} is not one of {', '.join(self.groups[key])}"
        elif key not in self.options:
            yield f"there is no option {key}: {self.nearest(key)}"
        elif override.is_add():
            yield f"{text}: the option {key} exists, write it without +"
        else:
            for value in _values(override):
                yield from self._type_problems(key, value)
                if value == "???":
                    yield f"{key}=??? is refused: Hydra takes ??? for a value that is missing"

    def _type_problems(self, key: str, value: Any) -> Iterator[str]:
        try:
            OmegaConf.update(OmegaConf.structured(self.schema), key, value)
        except OmegaConfBaseException:
            whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
            yield f"{key}={value} is refused: it must be {self._type_of(key)}{f'; write {value:.0f}' if whole else ''}"

    def _type_of(self, key: str) -> str:
        hint: Any = self.schema
        for part in key.split("."):
            hint = get_type_hints(hint)[part]
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list[str]: "a list"}
        return next(words[kind] for kind in (hint, *get_args(hint)) if kind in words)


def override_of(key: str, text: str) -> str:
    """The override that sets a key to exactly this text."""
    return f"{key}={QuotedString(literal(text), Quote.single).with_quotes()}"


def key_and_value(override: str) -> tuple[str, str]:
    """The two halves of an override as typed, without a + before it or quotes around its value."""
    key, _, value = override.lstrip("+").partition("=")
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return key, value[1:-1] if quoted else value


def short(value: str) -> str:
    """A typed value as tables and names show it: one line, and no more digits than one can take in."""
    with contextlib.suppress(ValueError):
        if len(value) > 8:
            return f"{float(value):.4g}"
    value = " ".join(value.split())
    return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"


def name_of_changes(overrides: Iterable[str]) -> str:
    """What sets a job apart, as a part of a folder's name: head_size=16,seed=2; at most 90 bytes, safe in any shell."""
    changes = dict(map(key_and_value, overrides))
    last_words = [key.split(".")[-1] for key in changes]
    names = [word if last_words.count(word) == 1 else key for key, word in zip(changes, last_words, strict=True)]
    values = [re.sub(r"[^\w.+-]+", "-", short(value)).strip("-") or "-" for value in changes.values()]
    joined = ",".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
    return joined.encode()[:90].decode(errors="ignore").rstrip("-,.=")


def yaml_groups(*folders: Path) -> Groups:
    """{"data": ["playlet", "text", ...], ...}: the YAML groups in these folders and the choices in each."""
    groups: Groups = {}
    for path in sorted(path for folder in folders for path in folder.glob("*/**/*.yaml")):
        folder = next(folder for folder in folders if folder in path.parents)
        group, _, choice = path.relative_to(folder).with_suffix("").as_posix().partition("/")
        groups.setdefault(group, []).append(choice)
    return groups


def _values(override: Override) -> list[Any]:
    """The values that an override names: one, or in a sweep several; those of a search space are not known beforehand."""
    if override.is_discrete_sweep():
        return list(override.sweep_iterator())
    return [] if override.is_sweep_override() else [override.value()]


def _hydra_problems(key: str) -> Iterator[str]:
    """Of Hydra's own keys, only those that it reads pass, and those under dictionaries that are the user's to fill."""
    node: Any = OmegaConf.structured(HydraConf)
    walked, *rest = key.split(".")
    for part in rest:
        if not OmegaConf.is_dict(node) or OmegaConf.get_type(node) is dict:
            return
        names = list(map(str, node))  # `part in node` would miss keys that have no value yet
        if part not in names:
            best = difflib.get_close_matches(part, names, n=1)
            advice = f"did you mean {walked}.{best[0]}?" if best else "--hydra-help tells more"
            yield f"Hydra has no option {key}: {advice}"
            return
        node = None if OmegaConf.is_missing(node, part) else node[part]
        walked += f".{part}"
