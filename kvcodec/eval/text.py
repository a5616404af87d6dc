"""The text an evaluation reads: a file of the user's, or one that an installed package ships."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from kvcodec.errors import InvalidInputError, MissingExtraError

NEWS = "lee-news"  # the name that stands for the packaged text
_NEWS_FILE = "test/test_data/lee_background.cor"


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it comes from; `sha256` is of the file's bytes."""

    name: str
    source: str
    sha256: str
    content: str


def package_dir(package: str, distribution: str) -> Path:
    """Folder of an installed package whose data files are read; the package is not imported.

    Raises:
        MissingExtraError: it is not installed; the message says how to.
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(
            f"the package {distribution} is not installed: "
            f"pip install 'kvcodec-paged[eval]' and pip install --no-deps {distribution}"
        )
    return Path(found.submodule_search_locations[0])


def load_text(name: str = NEWS) -> Text:
    """Text of a UTF-8 file, or `lee-news`: the Lee background corpus, 299 news articles."""
    if name == NEWS:
        path = package_dir("gensim", "gensim") / _NEWS_FILE
        source = f"gensim {importlib.metadata.version('gensim')}, gensim/{_NEWS_FILE}"
    else:
        path, source = Path(name), name
    try:
        data = path.read_bytes()
        content = data.decode()
    except OSError as error:
        raise InvalidInputError(f"text {name!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"text {name!r} is not UTF-8 (byte {error.start}); convert it first"
        ) from error
    return Text(name, source, hashlib.sha256(data).hexdigest(), content)
