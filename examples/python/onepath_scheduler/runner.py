"""Drives a core: live on a link, with its own log if wanted, or in replay of a log.

A core has
    on_input(now_ns, peer, message)   returns what to send, as an iterable of (peer, message)
    deadline_ns()                     when it wants a TIMER; codec.U64_MAX = never
and may have
    idle()      after DRAIN: whether it has finished everything; without it: at once
    digest()    a 64-bit number made of the state that decides what follows

Peer 0 is the core's own side: PEER_UP, PEER_DOWN, TIMER and DRAIN come from there, and a NAK sent
there is written to the error output.  A core reads no clock and draws no random number: then
`onepath log replay FILE --exec 'python3 my_scheduler.py'` gives the same outputs again.
"""
import argparse
import gc
import os
import re
import signal
import struct
import sys
import time

from . import codec, link, records
from .codec import ROLE, ProtocolError

DIGEST_INPUTS = 64  # inputs between two recorded digests
DRAIN_NS = 60_000_000_000
BATCH = 64          # messages taken before timers are looked at


def parser(text):
    """The options that every scheduler has; add your own."""
    made = argparse.ArgumentParser(description=text,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--endpoint", default="ipc:///tmp/onepath-scheduler",
                      help="where gateway and executor connect to: ipc://PATH or tcp://HOST:PORT "
                           "(ipc:///tmp/onepath-scheduler)")
    stem = re.sub("[^a-z0-9]+", "-", os.path.splitext(os.path.basename(sys.argv[0]))[0].lower())
    made.add_argument("--name", default=stem.strip("-")[:31] or "external",
                      help="[a-z0-9-]{1,31}; not 'scheduler': that is the built-in one's, and two of "
                           "one name take each other for an older and a newer self (%(default)s)")
    made.add_argument("--record", metavar="FILE.alog", help="write the log of this run")
    made.add_argument("--heartbeat-ms", type=int, default=250, help="5 to 10000 (250)")
    made.add_argument("--allow-remote", action="store_true",
                      help="bind an address that other machines reach; nothing is encrypted")
    made.add_argument("--quiet", action="store_true", help="only say what is wrong")
    return made


def main(options_parser, make):
    """Parses the command line, makes the core with `make(options)` and runs it."""
    options = options_parser.parse_args()
    if not 5 <= options.heartbeat_ms <= 10000:
        options_parser.error(f"--heartbeat-ms is {options.heartbeat_ms}; it takes 5 to 10000")
    if not link._NAME.match(options.name):
        options_parser.error(f"--name is '{options.name}'; it takes [a-z0-9-], 1 to 31 of them")
    core = make(options)
    if os.environ.get("ONEPATH_REPLAY"):
        sys.exit(replay(core, sys.stdin.buffer, sys.stdout.buffer))
    sys.exit(Runner(core, options).run())


def _encode_out(epoch, cause, message):
    header = codec.encode_header(message.KIND, epoch, 0, message.request, cause)
    return header, codec.encode(message)


def _record_parts(header, parts):
    body, blob = parts
    return [header, body, blob] if blob else [header, body]


class Runner:
    def __init__(self, core, options):
        self.core, self.quiet, self.name = core, options.quiet, options.name
        self.epoch = time.time_ns()
        self.inputs = 0
        self.now_ns = time.monotonic_ns()
        self.stop_asked = 0
        self.socket = link.Socket(options.endpoint, options.allow_remote)
        self.links = link.Links(self.socket.send, options.name, self.epoch,
                                options.heartbeat_ms * link.MS, lambda: self.inputs, self.log)
        self.log_file = records.LogWriter(options.record, options.name, self.epoch) \
            if options.record else None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.log(f"listening on {self.socket.endpoint}")

    def log(self, text):
        if not self.quiet:
            print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def _on_signal(self, _number, _frame):
        self.stop_asked += 1  # once: in good order; twice: now

    def tick(self):
        self.now_ns = max(self.now_ns, time.monotonic_ns())
        return self.now_ns

    # ---- inputs -----------------------------------------------------------------------------------

    def step(self, peer, message, parts=None, header=None):
        """Gives the core one input and sends what it answers."""
        now_ns = self.tick()
        self.inputs += 1
        if self.log_file is not None:
            self._record_input(now_ns, peer, message, parts, header)
        for to, answer in self.core.on_input(now_ns, peer, message):
            parts = codec.encode(answer)
            if self.log_file is not None:
                head = codec.encode_header(answer.KIND, self.epoch, 0, answer.request, self.inputs)
                self.log_file.append(records.OUT, to, now_ns, _record_parts(head, parts))
            if to == 0:
                print(f"{self.name}: {codec.kind_name(answer.kind)} of a peer: {answer.detail}",
                      file=sys.stderr, flush=True)
            else:
                self.links.send(to, answer, self.inputs, parts)
        if self.log_file is not None and self.inputs % DIGEST_INPUTS == 0 \
                and hasattr(self.core, "digest"):
            self.log_file.append(records.STATE_DIGEST, 0, now_ns,
                                 [struct.pack("<Q", self.core.digest())])

    def _record_input(self, now_ns, peer, message, parts, header):
        if parts is None:
            parts = codec.encode(message)
        if message.KIND == codec.Timer.KIND:
            self.log_file.append(records.TIMER, peer, now_ns, [parts[0]])
            return
        if header is None:
            header = codec.encode_header(message.KIND, self.epoch, 0)
        self.log_file.append(records.IN, peer, now_ns, _record_parts(header, parts), message.sequence)

    def handle(self, events):
        """What the links report, and what that leads to."""
        while events:
            for event in events:
                if event[0] == "message":
                    _, peer, header, body, blob, message = event
                    self.step(peer, message, (body, blob), codec.encode_header(*header[1:]))
                elif event[0] == "up":
                    remote = self.links.by_number[event[1]]
                    if self.log_file is not None:
                        self.log_file.append(records.CHANNEL_DEF, remote.number, self.tick(), [
                            remote.name.encode(), ROLE.name(remote.role).lower().encode(),
                            str(remote.epoch).encode()])
                    self.step(0, codec.PeerUp(peer=remote.number, role=remote.role,
                                              name=remote.name, epoch=remote.epoch))
                else:
                    remote, why = event[1], event[2]
                    self.step(0, codec.PeerDown(peer=remote.number, role=remote.role,
                                                epoch=remote.epoch, detail=codec.text(why)))
            events = self.links.take_events()  # peers that a send just lost

    # ---- the loop ---------------------------------------------------------------------------------

    def run(self):
        """Until SIGTERM or SIGINT and everything begun has ended.  Returns the exit code."""
        try:
            self._run()
            return 0
        finally:
            # Also after an exception of the core: then its last input is in the log, and replay
            # comes to the same place.
            if self.log_file is not None:
                self.log_file.close()

    def _run(self):
        gc.collect()
        gc.freeze()  # what exists now lives as long as the process
        draining_until_ns, probes = None, []
        while True:
            if self.stop_asked and draining_until_ns is None:
                self.log("asked to end: finishing what was begun")
                draining_until_ns = self.tick() + DRAIN_NS
                self.step(0, codec.Drain(grace_ns=DRAIN_NS))
            if draining_until_ns is not None:
                idle = getattr(self.core, "idle", lambda: True)
                if self.stop_asked > 1 or idle() or self.tick() >= draining_until_ns:
                    break
            self._receive_batch()
            now_ns = self.tick()
            if self.core.deadline_ns() <= now_ns:
                self.step(0, codec.Timer(deadline_ns=self.core.deadline_ns()))
                self.handle(self.links.take_events())
            if self.socket.connection_ended():
                probes = [now_ns + wait for wait in link.PROBE_WAITS_NS]
            while probes and probes[0] <= now_ns:
                probes.pop(0)
                self.handle(self.links.probe(now_ns))
            self._wait(probes, draining_until_ns)
        self.links.goodbye("the scheduler ends")
        self.socket.close()

    def _receive_batch(self):
        for _ in range(BATCH):
            frames = self.socket.receive()
            if frames is None:
                self.handle(self.links.tick(self.tick()))
                return
            self.handle(self.links.receive(self.tick(), frames))
        self.handle(self.links.tick(self.tick(), is_drained=False))

    def _wait(self, probes, draining_until_ns):
        now_ns = self.tick()
        until_ns = min(self.core.deadline_ns(), self.links.deadline_ns(), now_ns + 250 * link.MS)
        if probes:
            until_ns = min(until_ns, probes[0])
        if draining_until_ns is not None:
            until_ns = min(until_ns, now_ns + 20 * link.MS)
        if until_ns > now_ns:
            if self.log_file is not None:
                self.log_file.flush()
            self.socket.wait(until_ns - now_ns)


# ---- replay ---------------------------------------------------------------------------------------

def replay(core, source, sink):
    """Records of kind CHANNEL_DEF, IN and TIMER from `source`; for each input its OUT records and
    one STATE_DIGEST record go to `sink`.  Returns the exit code at the end of the stream."""
    inputs, epoch = 0, 0
    try:
        while True:
            record = records.read_record(source)
            if record is None:
                return 0
            if record.kind == records.TIMER:
                message = codec.decode(codec.Timer.KIND, record.parts[0])
            elif record.kind == records.IN:
                _, kind, sender, sequence, request, _ = codec.decode_header(record.parts[0])
                message = codec.decode(kind, record.parts[1], *record.parts[2:3])
                message.request, message.sequence = request, sequence
                if record.channel == 0:
                    epoch = sender  # of our own side: ours at the time
            else:
                continue
            inputs += 1
            for to, answer in core.on_input(record.time_ns, record.channel, message):
                header, parts = _encode_out(epoch, inputs, answer)
                sink.write(records.Record(records.OUT, to, record.sequence, record.time_ns,
                                          _record_parts(header, parts)).encode())
            digest = core.digest() if hasattr(core, "digest") else 0
            sink.write(records.Record(records.STATE_DIGEST, 0, record.sequence, record.time_ns,
                                      [struct.pack("<Q", digest)]).encode())
            sink.flush()
    except (ProtocolError, IndexError) as error:
        print(f"replay: record {inputs + 1} of the inputs cannot be used: {error}", file=sys.stderr)
        return 1
