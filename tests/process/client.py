"""The official `openai` client against a running node (openai_client.py holds the conversation)."""
import os
import subprocess
import sys

from system import System, check, main


def the_official_client_passes():
    python = os.environ.get("ONEPATH_PYTHON")
    check(python, "ONEPATH_PYTHON must name a Python with the openai package; './run test' makes one")
    with System("--max-model-len", "2048", "--max-num-seqs", "8") as node:
        node.wait_ready()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "openai_client.py")
        done = subprocess.run([python, script, "--base-url", f"http://127.0.0.1:{node.port}"],
                              capture_output=True, text=True, timeout=200)
        sys.stdout.write(done.stdout)
        check(done.returncode == 0, f"the client's script ended with {done.returncode}: {done.stderr[-2000:]}")
        check(node.stop() == 0, "exit code")


if __name__ == "__main__":
    main([the_official_client_passes])
