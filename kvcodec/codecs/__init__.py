"""The codecs, one per file; the file stem is the codec's name."""
