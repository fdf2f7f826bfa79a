"""Wrappers for frameworks. Each module needs an extra of its own; none is imported by the rest of the package."""
