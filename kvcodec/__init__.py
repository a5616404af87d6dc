"""kvcodec: compress the KV cache of paged LLM inference engines, block by block."""

from kvcodec.api import compress, decompress
from kvcodec.block import BlockSpec, EncodedBlocks, concat, gather_rows
from kvcodec.codec import Codec
from kvcodec.errors import KVCodecError
from kvcodec.plan import Plan
from kvcodec.registry import codec_from_config, codec_names, get_codec, register
from kvcodec.row import Section

__version__ = "0.1.0"

__all__ = [
    "BlockSpec",
    "Codec",
    "EncodedBlocks",
    "KVCodecError",
    "Plan",
    "Section",
    "codec_from_config",
    "codec_names",
    "compress",
    "concat",
    "decompress",
    "gather_rows",
    "get_codec",
    "register",
]
