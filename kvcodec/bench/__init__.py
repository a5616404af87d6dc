"""How fast the codecs are on this machine: data, timing, host and GPU measurements, report."""
