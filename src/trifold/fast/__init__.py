"""Faster versions of the operations in `nn`, by device and precision."""
