"""The package's copy of the protocol is the program's own."""
import json
import os
import subprocess
import sys
import unittest

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
COPY = os.path.join(SOURCE, "examples", "python", "onepath_scheduler", "protocol.json")
PROGRAM = os.path.join(os.environ.get("ONEPATH_BIN") or sys.exit("ONEPATH_BIN must name a folder"), "onepath")


def run(*words):
    return subprocess.run([PROGRAM, "protocol", *words], capture_output=True, text=True, timeout=20)


class Protocol(unittest.TestCase):
    def test_the_copy_is_up_to_date(self):
        with open(COPY, encoding="utf-8") as file:
            copy = file.read()
        self.assertTrue(copy == run("--json").stdout,
                        f"{COPY} is out of date: run `onepath protocol --json >{COPY}`")

    def test_it_holds_what_a_codec_needs(self):
        protocol = json.loads(run("--json").stdout)
        self.assertEqual(protocol["schema_version"], 1)
        plan = next(m for m in protocol["messages"] if m["name"] == "PLAN")
        self.assertEqual([f["name"] for f in plan["fields"]][:3], ["step", "base_step", "width"])
        self.assertEqual(protocol["enums"]["plan_rule"]["WIDTH"], 14)
        self.assertEqual(protocol["enums"]["status"]["ERR_STALE"], -107)
        self.assertEqual(protocol["enums"]["role"]["executor"], 3)

    def test_people_can_read_it_too(self):
        self.assertIn("STEP_RESULT", run().stdout)
        self.assertIn("base_step", run("PLAN").stdout)
        wrong = run("PLANN")
        self.assertEqual(wrong.returncode, 78)
        self.assertIn("PLANN", wrong.stderr)
        self.assertEqual(run("--help").returncode, 0)


if __name__ == "__main__":
    unittest.main()
