"""The one error that the command line shows as a message, without a traceback."""

from __future__ import annotations


class Unavailable(RuntimeError):
    """Something that the machine must have (a package, a library, disk space, a child process) cannot be had."""
