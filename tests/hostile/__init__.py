"""Inputs made to break readers, and an independent writer of frames to make them with."""
