"""The runner: replay over pipes, and a core that dies leaves a log that leads to the place."""
import io
import os
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
EXAMPLES = os.path.join(SOURCE, "examples", "python")
sys.path.insert(0, EXAMPLES)

from onepath_scheduler import codec, records, runner, testing  # noqa: E402
from onepath_scheduler.books import Scheduler  # noqa: E402
from onepath_scheduler.codec import ROLE  # noqa: E402

MORTAL = '''
from onepath_scheduler import codec, runner
from onepath_scheduler.books import Scheduler

class Mortal(Scheduler):
    def on_input(self, now_ns, peer, message):
        if message.NAME == "SUBMIT":
            raise RuntimeError("a mistake of mine")
        return super().on_input(now_ns, peer, message)

runner.main(runner.parser("x"), lambda options: Mortal())
'''


def record(kind, channel, sequence, message=None, parts=None):
    if parts is None:
        body, blob = codec.encode(message)
        parts = [codec.encode_header(message.KIND, 5, 0, message.request), body] + ([blob] if blob else [])
    return records.Record(kind, channel, sequence, 1000 + sequence, parts)


def replay(*given):
    sink = io.BytesIO()
    code = runner.replay(Scheduler(), io.BytesIO(b"".join(r.encode() for r in given)), sink)
    sink.seek(0)
    got = []
    while (one := records.read_record(sink)) is not None:
        got.append(one)
    return code, got


class Replay(unittest.TestCase):
    def test_each_input_has_its_outputs_and_one_digest(self):
        code, got = replay(
            record(records.CHANNEL_DEF, 2, 4, parts=[b"gateway", b"gateway", b"7"]),
            record(records.IN, 0, 5, codec.PeerUp(peer=2, role=ROLE.GATEWAY, name="gateway", epoch=7)),
            record(records.IN, 2, 8, codec.Finish(request=3)),
            record(records.TIMER, 0, 9, parts=[codec.encode(codec.Timer(deadline_ns=3))[0]]))
        self.assertEqual(code, 0)
        self.assertEqual([(r.kind, r.sequence) for r in got if r.kind == records.STATE_DIGEST],
                         [(records.STATE_DIGEST, 5), (records.STATE_DIGEST, 8), (records.STATE_DIGEST, 9)])
        first = [codec.kind_name(codec.decode_header(r.parts[0])[1]) for r in got if r.sequence == 5
                 and r.kind == records.OUT]
        self.assertEqual(first, ["MODEL_INFO", "LOAD"])
        outs = [r for r in got if r.kind == records.OUT]
        self.assertTrue(all(r.channel == 2 and codec.decode_header(r.parts[0])[2] == 5 for r in outs))

    def test_what_cannot_be_used_is_an_error_not_a_traceback(self):
        for bad in (record(records.IN, 0, 1, parts=[]), record(records.IN, 0, 1, parts=[b"\xc1", b"\x90"]),
                    record(records.TIMER, 0, 1, parts=[]), record(records.TIMER, 0, 1, parts=[b"\xc1"]),
                    record(records.IN, 0, 1, parts=[codec.encode_header(codec.Plan.KIND, 1, 1)]),
                    record(records.IN, 0, 1, parts=[codec.encode_header(9999, 1, 1), b"\x90"])):
            code, got = replay(bad)
            self.assertEqual((code, got), (1, []))
        sink = io.BytesIO()
        self.assertEqual(runner.replay(Scheduler(), io.BytesIO(struct.pack("<II", 8, 0)), sink), 1)


class Live(unittest.TestCase):
    def test_a_core_that_dies_leaves_its_last_input(self):
        with tempfile.TemporaryDirectory() as folder:
            script, endpoint = os.path.join(folder, "mortal.py"), f"ipc://{folder}/s"
            with open(script, "w", encoding="utf-8") as file:
                file.write(MORTAL)
            log = os.path.join(folder, "run.alog")
            environment = {**os.environ, "PYTHONPATH": EXAMPLES}
            process = subprocess.Popen([sys.executable, script, "--endpoint", endpoint, "--record", log],
                                       stderr=subprocess.PIPE, text=True, env=environment)
            gateway = testing.Connector(endpoint)
            try:
                self.assertEqual(gateway.open(30).name, "mortal")
                self.assertIsNotNone(gateway.receive(10, codec.ModelInfo))
                gateway.send(codec.Submit(request=9, prompt_length=1, generation_max=1, tokens=[1],
                                          sampling=testing.sampling()))
                _, text = process.communicate(timeout=30)
            finally:
                gateway.close()
                process.kill()
                process.wait()
            self.assertNotEqual(process.returncode, 0)
            self.assertIn("a mistake of mine", text)
            with open(log, "rb") as file:
                file.seek(codec.LIMITS["log_header_size"])
                stream = b"".join(r.encode() for r in iter(lambda: records.read_record(file), None)
                                  if r.kind in (records.IN, records.TIMER))
            done = subprocess.run([sys.executable, script], input=stream, capture_output=True, timeout=30,
                                  env={**environment, "ONEPATH_REPLAY": "1"})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(b"a mistake of mine", done.stderr)

    def test_a_socket_that_is_in_use_and_a_remote_one_are_refused_with_the_remedy(self):
        for endpoint, words in (("tcp://0.0.0.0:5555", "--allow-remote"), ("tcp://10.1.2.3:5", "--allow-remote"),
                                ("nonsense", "--allow-remote"), ("ipc:///no/such/folder/x", "another endpoint")):
            done = subprocess.run([sys.executable, os.path.join(EXAMPLES, "fcfs.py"), "--endpoint", endpoint],
                                  capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 1, endpoint)
            self.assertIn(words, done.stderr)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, os.path.join(EXAMPLES, "fcfs.py"), "--endpoint", f"ipc://{folder}/s"]
            first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            try:
                self.assertIn("listening", first.stderr.readline())
                second = subprocess.run(command, capture_output=True, text=True, timeout=30)
                self.assertEqual(second.returncode, 1)
                self.assertIn("in use", second.stderr)
            finally:
                first.terminate()
                first.communicate(timeout=30)
            self.assertEqual(first.returncode, 0)


if __name__ == "__main__":
    unittest.main()
