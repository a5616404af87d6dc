"""Adapters, one per inference engine; each imports its engine, none is imported by kvcodec."""
