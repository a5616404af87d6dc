"""Implementations of codecs: `<codec>_triton.py`, `<codec>_vector.py`, `<codec>_native.py`."""
