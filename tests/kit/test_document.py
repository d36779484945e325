"""docs/scheduler-protocol.md shows the bytes, the rules and the messages that there are."""
import os
import re
import sys
import unittest

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
sys.path.insert(0, os.path.join(SOURCE, "examples", "python"))

import wire_example  # noqa: E402
from onepath_scheduler import codec  # noqa: E402


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


class Document(unittest.TestCase):
    def setUp(self):
        self.text = read("docs", "scheduler-protocol.md")

    def test_the_worked_example_is_what_the_codec_makes(self):
        match = re.search(r"<!-- wire: begin.*?-->\n```\n(.*?)\n```\n<!-- wire: end -->", self.text, re.S)
        self.assertTrue(match, "no worked example")
        self.assertTrue(match.group(1) == "\n".join(wire_example.example()).strip(),
                        "out of date: put the output of tests/kit/wire_example.py there")

    def test_every_rule_of_plans_is_described(self):
        for name, value in codec.ENUMS["plan_rule"].items():
            if value:
                self.assertIn(f"| {value} {name} |", self.text)

    def test_every_message_of_a_scheduler_is_linked(self):
        reference = read("docs", "protocol.md")
        for name in ("EXECUTOR_INFO", "RESET", "ADMIT", "PLAN", "STEP_RESULT", "PLAN_REFUSED", "MODEL_INFO",
                     "SUBMIT", "FINISH", "TOKENS", "FINISHED", "LOAD"):
            kind = next(k for k, cls in codec.BY_KIND.items() if cls.NAME == name)
            self.assertIn(f"[{name}](protocol.md#{name.lower()}-{kind})", self.text)
            self.assertIn(f"### {name} ({kind})", reference)

    def test_the_scheduler_of_the_walk_through_is_python(self):
        for code in re.findall(r"```python\n(.*?)```", self.text, re.S):
            compile(code, "scheduler-protocol.md", "exec")


if __name__ == "__main__":
    unittest.main()
