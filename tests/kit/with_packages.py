"""Runs a script with a Python that has msgpack and pyzmq: ONEPATH_PYTHON, or the one that './run test'
makes.  Without one it fails: a test that is not run has not passed."""
import os
import sys


def python():
    cache = os.environ.get("ONEPATH_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "onepath")
    path = os.environ.get("ONEPATH_PYTHON") or os.path.join(cache, "venv", "bin", "python")
    if not os.path.exists(path):
        sys.exit(f"{path} is missing: './run test' makes it, or set ONEPATH_PYTHON to a Python with "
                 "msgpack and pyzmq")
    return path


if __name__ == "__main__":
    os.execv(python(), [python(), *sys.argv[1:]])
