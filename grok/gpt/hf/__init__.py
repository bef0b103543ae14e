"""Language models in Hugging Face's forms: models are exported in four forms and imported from GPT-2's.

A folder is what ``from_pretrained`` reads: ``config.json``, ``model.safetensors`` and the tokeniser's files.
"""

from grok.gpt.hf.folder import load_hf_folder, save_hf_folder
from grok.gpt.hf.forms import form_of, hf_config, load_hf, to_hf

__all__ = ["form_of", "hf_config", "load_hf", "load_hf_folder", "save_hf_folder", "to_hf"]
