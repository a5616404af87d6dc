"""Byte formats: one page per codec, and the golden vectors."""
