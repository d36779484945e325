"""The other end of a link, for tests and benches of schedulers: plays a gateway or an executor."""
import itertools
import time

import zmq

from . import codec
from .codec import ROLE

_attempts = itertools.count(1)


class Connector:
    """A DEALER that shakes hands and counts.  Use `receive` in a loop; it also sends heartbeats."""

    def __init__(self, endpoint, role=ROLE.GATEWAY, name="gateway", epoch=None):
        self.role, self.name, self.epoch = role, name, epoch or time.time_ns()
        self.sequence_in = self.sequence_out = 0
        self.beat_at = 0.0
        self.context = zmq.Context()
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.ROUTING_ID,
                               f"{self.name}.{self.epoch}.{next(_attempts)}".encode())
        self.dealer.setsockopt(zmq.IMMEDIATE, 1)
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.connect(endpoint)

    def send_frames(self, *frames):
        self.dealer.send_multipart(frames)

    def send(self, message, sequence=None):
        """Counted from 1; `sequence` 0 for handshakes."""
        if sequence is None:
            self.sequence_out += 1
            sequence = self.sequence_out
        body, blob = codec.encode(message)
        header = codec.encode_header(message.KIND, self.epoch, sequence, message.request)
        self.send_frames(*([header, body, blob] if blob else [header, body]))

    def hello(self, **changes):
        fields = {"version_min": codec.VERSION_MIN, "version_max": codec.VERSION,
                  "role": self.role, "name": self.name, "epoch": self.epoch, **changes}
        self.send(codec.Hello(**fields), 0)

    def open(self, seconds=10):
        """The whole handshake; returns INIT, or REFUSE."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.dealer.poll(250, zmq.POLLOUT):
                self.hello()
                answer = self.receive(0.25, (codec.Init, codec.Refuse))
                if isinstance(answer, codec.Init):
                    self.send(codec.Ready(epoch=self.epoch), 0)
                if answer is not None:
                    return answer
        raise TimeoutError(f"no answer to HELLO within {seconds} s")

    def receive(self, seconds=10, kinds=None):
        """The next message (of one of the classes `kinds`); None if none comes in time."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self.sequence_out and now >= self.beat_at or self.sequence_in and now >= self.beat_at:
                self.beat_at = now + 0.2
                self.send(codec.Heartbeat())
            if self.dealer.poll(max(0, min(end - now, 0.1)) * 1000):
                frames = self.dealer.recv_multipart()
                _, kind, _, sequence, request, _ = codec.decode_header(frames[0])
                message = codec.decode(kind, *frames[1:])
                message.request, message.sequence = request, sequence
                if sequence:
                    if sequence != self.sequence_in + 1:
                        raise AssertionError(f"{sequence} after {self.sequence_in}")
                    self.sequence_in = sequence
                if kinds is None and kind != codec.Heartbeat.KIND \
                        or kinds is not None and isinstance(message, kinds):
                    return message
            elif time.monotonic() >= end:
                return None

    def close(self):
        self.dealer.close()
        self.context.term()


def sampling(**fields):
    """Encoded SAMPLING: greedy, for ever, unless said otherwise."""
    usual = {"top_p": 1.0, "repetition_penalty": 1.0, "ignore_eos": True}
    return codec.encode(codec.Sampling(**{**usual, **fields}))[0]
