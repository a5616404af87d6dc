"""kvcodec: compress the KV cache of paged LLM inference engines, block by block."""

from kvcodec.api import compress, decompress
from kvcodec.block import BlockSpec, EncodedBlocks, concat, gather_rows
from kvcodec.codec import Codec
from kvcodec.errors import KVCodecError
from kvcodec.frame import Frame, dumps, loads
from kvcodec.heads import merge_heads, take_heads
from kvcodec.identity import Identity
from kvcodec.plan import Plan
from kvcodec.profile import Profile
from kvcodec.quantizer import transcode
from kvcodec.registry import codec_from_config, codec_names, get_codec, register
from kvcodec.row import Section
from kvcodec.warmup import warmup

__version__ = "0.1.0"

__all__ = [
    "BlockSpec",
    "Codec",
    "EncodedBlocks",
    "Frame",
    "Identity",
    "KVCodecError",
    "Plan",
    "Profile",
    "Section",
    "codec_from_config",
    "codec_names",
    "compress",
    "concat",
    "decompress",
    "dumps",
    "gather_rows",
    "get_codec",
    "loads",
    "merge_heads",
    "register",
    "take_heads",
    "transcode",
    "warmup",
]
