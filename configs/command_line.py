"""The command line in front of Hydra: help, refusals before any work, and a folder that belongs to one run.

Composing, sweeping and launching are Hydra's. What stands here are the parts in which a user should read one sentence
instead of a traceback. It imports no torch.
"""

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import hydra
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.checks import problems
from configs.launch import launch
from configs.overrides import OverrideReader, override_of, yaml_groups
from configs.schema import UserError, options
from configs.sweeping import Job, checked, holds_a_sweep, name_job_folders, run_sweep
from configs.terminal import drop_standard_output, mend_standard_streams, sentence

CONFIGS = Path(__file__).parent
_COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)
_MOST_COMBINATIONS = 64  # of a sweep that are checked before its first job; every job checks itself again


class CommandLine:
    """One script's command line: `prepare` at its top, before torch is imported, and `run` at its end."""

    def __init__(self, name: str, schema: type, introduction: str | None) -> None:
        """`name` is the script and its YAML file, `schema` its configuration, `introduction` the first part of its help."""
        self.name, self.schema, self.introduction = name, schema, introduction or ""
        self.writes_runs = name == "train"
        self.flags: list[str] = []  # arguments that are Hydra's own
        self.overrides: list[str] = []
        self.sweeping = False
        self.created: list[Path] = []  # folders that were made for this run
        self.found: Path | None = None  # or the one that was there
        self.search_path: list[str] = []  # the user's own configuration folder, if any
        ConfigStore.instance().store(name=f"{name}_schema", node=schema)
        name_job_folders()

    def prepare(self, arguments: list[str]) -> None:
        """Answer help, completion and displays of the configuration; refuse, with status 2, what cannot be honoured."""
        mend_standard_streams()
        try:
            os.getcwd()
        except FileNotFoundError:
            sys.exit(self._say("the folder that you are in does not exist any more: go to one that does"))
        try:
            self._prepare(arguments)
        except BrokenPipeError:  # as in --help | head
            drop_standard_output()
            sys.exit()
        except (UserError, *_COMPOSITION_ERRORS, ValueError, AssertionError, OSError) as error:  # Hydra raises most
            sys.exit(self._say(sentence(error)))

    def _prepare(self, arguments: list[str]) -> None:
        parsed, unknown = get_args_parser().parse_known_args(arguments)
        typed = parsed.overrides + [argument for argument in unknown if not argument.startswith("-")]
        wrong_flags = [argument for argument in unknown if argument.startswith("-")]
        self.flags = [argument for argument in arguments if argument not in typed]
        self.sweeping = parsed.multirun
        folders = [CONFIGS, Path(parsed.config_dir)] if parsed.config_dir else [CONFIGS]
        self.search_path = [f"file://{folder.absolute()}" for folder in folders[1:]]
        groups = yaml_groups(*folders)
        if not self.writes_runs:  # presets are of training
            groups = {group: choices for group, choices in groups.items() if hasattr(self.schema(), group)}
        if parsed.help:
            print(self._help(groups), flush=True)
            sys.exit()
        if parsed.shell_completion or parsed.hydra_help or parsed.info:
            self._hand_over(lambda _: None, arguments)
            sys.exit()

        reader = OverrideReader(self.schema, groups, self.sweeping)
        self.overrides, found = reader.read(typed)
        found += [f"{folder} is no folder of configurations" for folder in folders if not folder.is_dir()]
        if parsed.config_name or parsed.config_path:
            found.append("another main configuration is not supported: put a preset into experiment/ of a --config-dir")
        for flag in wrong_flags:
            meant = reader.nearest(flag.strip("-").partition("=")[0])
            found.append(f"{flag}: options are written KEY=VALUE, without dashes; {meant}")
        if self.sweeping and not self.writes_runs:
            found.append("-m is for train.py")
        found += self._value_problems()
        if found:
            if launch().rank > 0:
                time.sleep(5)  # the first process says the same, and whoever started both ends this one
            sys.exit(self._say(*dict.fromkeys(found)))
        if parsed.cfg:
            self._hand_over(lambda _: None, self.flags + self.overrides)
            sys.exit()

    def run(
        self,
        main: Callable[[Any], Any],
        before: Callable[[Any, bool], list[str]] | None = None,
        after_sweep: Callable[[Path], None] = lambda _: None,
    ) -> None:
        """Run `main(config)` once, or once for each job of a sweep, and exit with a status that says how it went.

        `before(config, sweeping)` runs first, when no folder exists yet, and returns overrides that replace those of the
        same key. A UserError or OSError ends in one sentence and status 2; a sweep first does its other jobs.
        `after_sweep` shows what these came to, by what lies in the sweep's folder.
        """

        def once(composed: Any) -> Any:
            try:
                return main(checked(composed))
            except BrokenPipeError:  # whoever read our output has had enough
                drop_standard_output()
                raise SystemExit(0) from None
            except (UserError, OSError) as error:
                if self.writes_runs:
                    self._leave_nothing_empty(Path(HydraConfig.get().runtime.output_dir))
                raise SystemExit(self._say(sentence(error))) from None

        try:
            if before is not None:
                for overrides in list(self._jobs()):
                    self._replace(before(self._composed(overrides), self.sweeping))
            folder = self._claimed_folder() if self.writes_runs else Path()
            if not self.sweeping:
                self._hand_over(once, self.flags + self.overrides)
                return
            self._prepare_jobs()
            job = Job(self.name, main)
            sys.exit(run_sweep(job, folder, lambda: self._hand_over(job, self.flags + self.overrides), after_sweep))
        except (UserError, OSError, *_COMPOSITION_ERRORS) as error:
            for made in self.created:
                self._leave_nothing_empty(made)
            sys.exit(self._say(sentence(error)))

    def _prepare_jobs(self) -> None:
        """Tell Hydra which options are no changes, and the processes of launchers where this project lies."""
        typed = OverridesParser.create().parse_overrides(self.overrides)
        fixed = {override.key_or_group for override in typed if not override.is_sweep_override()}
        key = "hydra.job.config.override_dirname.exclude_keys"
        if not self._sets(key):
            self.overrides.append(f"{key}=[{','.join(key for key in sorted(fixed) if not key.startswith('hydra'))}]")
        beside = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(CONFIGS.parent), *([beside] if beside else [])])

    def _say(self, *sentences: str) -> int:
        for said in sentences:
            print(f"{self.name}.py: {said}", file=sys.stderr)
        return 2

    def _hand_over(self, main: Callable[[Any], Any], arguments: list[str]) -> None:
        sys.argv = [sys.argv[0], *arguments]
        os.environ["HYDRA_FULL_ERROR"] = (
            "1"  # errors come here, to be said in a sentence, and bugs show their traceback
        )
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=self.name)(main)()

    def _sets(self, key: str) -> bool:
        return any(override.lstrip("+").startswith(f"{key}=") for override in self.overrides)

    def _replace(self, overrides: list[str]) -> None:
        keys = {override.partition("=")[0] for override in overrides}
        self.overrides = [override for override in self.overrides if override.partition("=")[0] not in keys] + overrides

    def _composed(self, overrides: list[str]) -> Any:
        """The configuration that Hydra makes of these overrides, its own under the key `hydra`."""
        search_path = [f"hydra.searchpath={self.search_path}"] if self.search_path else []
        with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
            return compose(self.name, overrides + search_path, return_hydra_config=True)

    def _jobs(self) -> Iterator[list[str]]:
        """The overrides of the one run, or of each job of a sweep; values from a search space are left out."""
        choices: list[list[str]] = []
        for text, override in zip(
            self.overrides, OverridesParser.create().parse_overrides(self.overrides), strict=True
        ):
            if override.is_discrete_sweep():
                choices.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
            elif not override.is_sweep_override():
                choices.append([text])
        yield from map(list, itertools.islice(itertools.product(*choices), _MOST_COMBINATIONS))

    def _value_problems(self) -> Iterator[str]:
        jobs = list(self._jobs())
        placed = self.sweeping or self._sets("hydra.run.dir")
        if not jobs:
            yield "the sweep has no jobs: a range in it is empty"
        for overrides in jobs:
            try:
                composed = self._composed(overrides)
                if placed and OmegaConf.select(composed, "resume") is not None:
                    yield "resume= goes on in the run's own folder: leave out -m and hydra.run.dir"
                mine = OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"])
                yield from problems(OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(self.schema), mine)))
            except (*_COMPOSITION_ERRORS, ValueError) as error:
                yield sentence(error)

    def _claimed_folder(self) -> Path:
        """Make the folder of this run or sweep, so that it is nobody else's, and tell Hydra of it."""
        key = "hydra.sweep.dir" if self.sweeping else "hydra.run.dir"
        config = self._composed(next(self._jobs()))
        typed = self._sets(key)
        folder = Path(OmegaConf.select(config, key))
        if "${" in str(folder):  # Hydra would read it as an interpolation, however it is written
            raise UserError(f"{folder}: a folder with ${{ in its name cannot be used; rename it")
        if folder.is_dir():
            self.found = folder.absolute()
        if config.get("resume") is not None:
            return folder  # which `before` has found
        self.created = [place for place in (folder, *folder.parents) if not place.exists()]
        if typed and holds_a_sweep(folder):
            raise UserError(f"{folder} holds a sweep already: choose another folder")
        try:
            if typed:
                folder.mkdir(parents=True, exist_ok=True)
            else:
                folder = _new_folder(folder)
        except OSError as error:
            reason = error.strerror if error.filename == str(folder) else sentence(error)
            raise UserError(f"cannot make the folder {folder} ({reason}): choose another with {key}=FOLDER") from error
        self._replace([override_of(key, str(folder))])
        return folder

    def _leave_nothing_empty(self, folder: Path) -> None:
        """After a refusal, take away the folder if nothing of worth is in it, and those that were made around it."""
        if folder.absolute() == self.found:
            return
        with contextlib.suppress(OSError):
            left = list(folder.iterdir())
            if len(left) == 1 and left[0].name in ("train.log", "multirun.yaml"):
                left[0].unlink()
            folder.rmdir()
            for around in self.created[1:]:
                around.rmdir()

    def _help(self, groups: dict[str, list[str]]) -> str:
        """The commands people need first, then groups and options, a line each."""
        lines = [self.introduction.strip(), ""]
        if groups:
            shown = [f"  {group}: {', '.join(choices)}" for group, choices in groups.items()]
            lines += ["Groups, as GROUP=CHOICE:", *(fill(line, 120, subsequent_indent=6 * " ") for line in shown), ""]
        lines += ["Options, as KEY=VALUE, with their defaults:"]
        defaults = OmegaConf.structured(self.schema)
        for key, metadata in options(self.schema).items():
            default = OmegaConf.select(defaults, key)
            value = "[...]" if OmegaConf.is_list(default) else default
            value = value if isinstance(value, str) else json.dumps(value)
            choices = f" ({'|'.join(metadata['choices'])})" if metadata["choices"] else ""
            lines.append(f"  {f'{key}={value}':<34} {metadata['help']}{choices}")
        return "\n".join([*lines, "", "Hydra's own flags, such as --cfg job and -m: --hydra-help"])


def _new_folder(wanted: Path) -> Path:
    """Make a folder that did not exist: the wanted one, or the first free of wanted_2, wanted_3, ..."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    folder, number = wanted, 1
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1
            folder = wanted.with_name(f"{wanted.name}_{number}")


def run_script(main: Callable[[list[str]], None], introduction: str | None) -> None:
    """Run a small script with its arguments; what cannot be done is one sentence, and exit status 2."""
    mend_standard_streams()
    arguments = sys.argv[1:]
    try:
        if {"-h", "--help"} & {*arguments}:
            print(introduction, flush=True)
            return
        main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has had enough
        drop_standard_output()
    except (UserError, OSError, ValueError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
