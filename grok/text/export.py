"""Exports a tokeniser to Hugging Face's format: ``AutoTokenizer.from_pretrained`` reads the files, with equal ids."""

from __future__ import annotations

import json
from typing import Any

from grok.errors import DataError
from grok.text.own_tokenizer import OwnTokenizer
from grok.text.tokenizers import (
    END_OF_TEXT,
    ByteTokenizer,
    CharTokenizer,
    SubwordTokenizer,
    Tokenizer,
    byte_characters,
    tokenizers_library,
)


def tokenizer_files(tokenizer: Tokenizer, context: int) -> dict[str, str]:
    """Return the content of ``tokenizer.json`` and ``tokenizer_config.json`` by file name.

    The exported tokeniser adds no token before or after a text, like this project's.

    Args:
        tokenizer: the tokeniser to export.
        context: the model's context in tokens.

    Raises:
        DataError: the tokeniser is the user's own code, which this format cannot express.
    """
    definition = json.loads(_definition(tokenizer))
    definition["post_processor"] = None
    definition["truncation"] = definition["padding"] = None
    end = getattr(tokenizer, "eot_text", END_OF_TEXT) if tokenizer.eot_id is not None else None
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "bos_token": end,
        "eos_token": end,
    }
    return {
        "tokenizer.json": json.dumps(definition, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False) + "\n",
    }


def _definition(tokenizer: Tokenizer) -> str:
    if isinstance(tokenizer, SubwordTokenizer):
        return tokenizer.to_json()
    if isinstance(tokenizer, OwnTokenizer):
        raise DataError(
            f"the tokeniser {tokenizer.target} is your own code, which Hugging Face's format cannot express: "
            "--without-tokenizer exports only the weights"
        )
    library = tokenizers_library()
    if isinstance(tokenizer, CharTokenizer):
        vocabulary = {c: i for i, c in enumerate(tokenizer.characters)}
        # no unknown token: an unknown character is an error, as in CharTokenizer
        theirs = library.Tokenizer(library.models.WordLevel(vocabulary))
        theirs.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(r"[\s\S]"), "isolated")
        theirs.decoder = library.decoders.Fuse()
    else:
        assert isinstance(tokenizer, ByteTokenizer)
        vocabulary = {character: byte for byte, character in byte_characters().items()}
        theirs = library.Tokenizer(library.models.BPE(vocabulary, []))
        theirs.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        theirs.decoder = library.decoders.ByteLevel()
    if tokenizer.eot_id is not None:
        theirs.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return str(theirs.to_str())
