"""Settings: dataclasses with a meaning for each setting, checks of their values, and the identity of runs.

Nothing here imports torch: planning thousands of runs must start in milliseconds.
"""

from grok.config.arithmetic import ArithmeticConfig
from grok.config.common import RunConfig
from grok.config.fields import flatten
from grok.config.gpt import GptConfig
from grok.config.identity import MODES, NUMERICS_VERSION, Identity, config_columns, identify, load_config, load_configs

__all__ = [
    "MODES",
    "NUMERICS_VERSION",
    "ArithmeticConfig",
    "GptConfig",
    "Identity",
    "RunConfig",
    "config_columns",
    "flatten",
    "identify",
    "load_config",
    "load_configs",
]
