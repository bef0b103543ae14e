"""``python -m sweeps.search study=NAME [overrides]``: begins a study, or goes on where it stopped.

Studies are files of ``conf/study/``; every setting of a run can be overridden as in
``grok.run``, and ``study.trials``, ``study.seeds`` ... say how much of the study to do.
Exit status 0: the study is finished; 1: interrupted, or a trial failed; 2: refused.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from grok.cli.compose import conf_source
from grok.errors import ConfigError, GrokError
from grok.run import as_meant, explain, is_refusal
from sweeps.search.carry_out import carry_out
from sweeps.search.config import NO_STUDY, refuse_unknown, split_study
from sweeps.search.space import Plain

USAGE = """python -m sweeps.search study=NAME [overrides]
  study=NAME                        a file of conf/study/
  study.trials=N study.seeds=K      how many settings to try, with how many seeds each
  study.compare=true                the finished study's best setting against the default, on fresh seeds
  dry_run=true                      say what would be done
Any setting of grok.run can be given too, for example store.path=DIR workers=2."""


def compose(words: Sequence[str]) -> Plain:
    """Return the nested settings that Hydra makes of a command line, the study under ``study``.

    Raises:
        ConfigError, hydra.errors.HydraException, omegaconf.errors.OmegaConfBaseException: what is refused.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    if not any(word.startswith(("study=", "+study=")) for word in words):
        raise ConfigError(NO_STUDY)
    source = conf_source()
    GlobalHydra.instance().clear()
    if source.startswith("pkg://"):
        opened: Any = initialize_config_module(source.removeprefix("pkg://"), version_base="1.3")
    else:
        opened = initialize_config_dir(source, version_base="1.3")
    with opened:
        composed = hydra_compose("config", overrides=[_as_meant(word) for word in words])
        settings = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(settings, dict)
    return {str(key): value for key, value in settings.items()}


def _as_meant(word: str) -> str:
    """Return an override as Hydra needs it: ``study`` is a group that only searches have.

    >>> _as_meant("study=quickstart"), _as_meant("study.space.optim.lr={low:1,high:2}")
    ('+study=quickstart', '++study.space.optim.lr={low:1,high:2}')
    """
    if word.startswith("study="):
        return f"+{word}"
    if word.startswith("study.space."):
        return f"++{word}"
    if word.startswith("study."):
        refuse_unknown(word.partition("=")[0])
    return as_meant(word)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (without the program's name) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or {"-h", "--help"} & set(words):
        print(USAGE)
        return 0 if words else 2
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            study, raw_space, base = split_study(compose(words))
        return carry_out(study, raw_space, base, ["python", "-m", "sweeps.search", *words])
    except Exception as error:
        if not is_refusal(error):
            raise
        print(f"error: {explain(error)}", file=sys.stderr)
        return error.exit_status if isinstance(error, GrokError) else 2


if __name__ == "__main__":
    sys.exit(main())
