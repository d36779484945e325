"""The link: one ROUTER that gateways and an executor connect to (docs/protocol.md, Opening a link).

`Links` is the protocol without a socket: frames and times in, frames and events out, so it can be
tested alone.  `Socket` is the ROUTER with everything set that libzmq must be told.

Events: ("up", peer), ("down", peer, why), ("message", peer, header, body, blob, message).
Peers have numbers from 1 within this scheduler; 0 is the scheduler itself.
"""
import os
import re
import socket as system_socket
import sys
import time

import zmq

from . import codec
from .codec import ROLE, STATUS, ProtocolError

MS = 1_000_000
GREETED_NS = 2000 * MS  # READY must follow INIT within this
MISSED_MAX = 4          # heartbeats missed before a peer is down
SEND_WAIT_NS = 200 * MS  # how long a full queue may hold us up
NAK_BURST, NAK_INTERVAL_NS = 50, 20 * MS
PEER_COUNT_MAX = 62
ROUTING_ID_SIZE_MAX = 96
PROBE_WAITS_NS = (0, 2 * MS, 6 * MS, 20 * MS, 60 * MS)

_NAME = re.compile(r"[a-z0-9-]{1,31}\Z")
_HELLO, _INIT, _READY, _REFUSE, _HEARTBEAT, _BYE, _NAK = (
    codec.Hello.KIND, codec.Init.KIND, codec.Ready.KIND, codec.Refuse.KIND, codec.Heartbeat.KIND,
    codec.Bye.KIND, codec.Nak.KIND)
_HANDSHAKE = (_HELLO, _INIT, _READY, _REFUSE)
_TELEMETRY = (_HEARTBEAT, _BYE, _NAK, codec.Load.KIND)
_SUPERVISOR_ONLY = (codec.Stop.KIND, codec.Down.KIND)


class PeerLost(Exception):
    """The routing id leads nowhere any more."""


class QueueFull(Exception):
    """The peer takes nothing now."""


class Remote:
    """The other end of a link."""

    __slots__ = ("number", "routing_id", "role", "name", "epoch", "attempt", "packs", "is_up",
                 "sequence_in", "sequence_out", "unread", "heard_ns", "heartbeat_next_ns", "failed")

    def __init__(self, number, routing_id, hello, attempt, now_ns):
        self.number, self.routing_id, self.attempt = number, routing_id, attempt
        self.role, self.name, self.epoch = hello.role, hello.name, hello.epoch
        self.packs = hello.packs  # it reads messages that are packed into one frame
        self.is_up = False       # READY came
        self.sequence_in = self.sequence_out = 0
        self.unread = 0          # messages whose header, and so whose number, was unreadable
        self.heard_ns, self.heartbeat_next_ns = now_ns, 0
        self.failed = None       # why it is to be reported down


class Links:
    """`send(routing_id, parts, patient)` raises PeerLost or QueueFull."""

    def __init__(self, send, name, epoch, heartbeat_ns=250 * MS, progress=lambda: 0,
                 log=lambda text: None):
        self.send_frames, self.name, self.epoch = send, name, epoch
        self.heartbeat_ns, self.progress, self.log = heartbeat_ns, progress, log
        self.silence_ns = MISSED_MAX * heartbeat_ns
        self.by_routing_id, self.by_number = {}, {}
        self.epoch_min = {}      # name: lower ones are refused
        self.events = []
        self.nak_tokens, self.nak_filled_ns = NAK_BURST, 0
        self.serviced_ns = 0
        self.counts = dict.fromkeys(("in", "out", "refused", "duplicates", "gaps", "dropped"), 0)

    # ---- receiving --------------------------------------------------------------------------------

    def receive(self, now_ns, frames):
        """One message as it came: routing id, and header, body, blob or all three in one frame.
        Returns the events it caused."""
        self.counts["in"] += 1
        routing_id, parts = frames[0], codec.unpack_frame(frames[1:])
        remote = self.by_routing_id.get(routing_id)
        try:
            header = codec.decode_header(parts[0] if parts else b"")
        except ProtocolError as error:
            if remote is not None and remote.is_up:
                remote.unread += 1
            self._refuse(now_ns, remote, routing_id, (0, 0, 0, 0, 0, 0), error.status, str(error))
            return self.take_events()
        try:
            self._receive(now_ns, remote, routing_id, header, parts)
        except ProtocolError as error:
            self._refuse(now_ns, remote, routing_id, header, error.status, str(error))
        return self.take_events()

    def _receive(self, now_ns, remote, routing_id, header, parts):
        _, kind, epoch, sequence, _, _ = header
        if kind not in _HANDSHAKE:
            if remote is None or not remote.is_up:
                raise ProtocolError("this link is not open: shake hands again", STATUS.ERR_STALE)
            if epoch != remote.epoch and kind != _NAK:
                raise ProtocolError("the message is of another incarnation", STATUS.ERR_STALE)
            if sequence == 0 and kind != _NAK:
                raise ProtocolError("the message has no sequence number")
            remote.heard_ns = max(remote.heard_ns, now_ns)
            if sequence != 0 and not self._is_next(remote, sequence, kind):
                return
        body = parts[1] if len(parts) > 1 else b""
        blob = parts[2] if len(parts) > 2 else b""
        if len(parts) > 3:
            raise ProtocolError("too many parts", STATUS.ERR_TOO_LARGE)
        cls = codec.BY_KIND.get(kind)
        if cls is None or not cls.WIRE:
            raise ProtocolError("this kind of message is not known", STATUS.ERR_UNSUPPORTED)
        message = codec.decode(kind, body, blob)
        message.request, message.sequence = header[4], sequence
        if kind == _HELLO:
            self._on_hello(now_ns, remote, routing_id, epoch, message)
        elif kind == _READY:
            self._on_ready(now_ns, remote, epoch)
        elif kind in _HANDSHAKE or kind in _SUPERVISOR_ONLY:
            self.counts["refused"] += 1  # not for a binder; only a supervisor may say these
        elif kind == _BYE:
            self.fail(remote, f"said goodbye: {message.detail}")
        elif kind == _NAK and message.status == STATUS.ERR_STALE:
            self.fail(remote, "it does not know this link any more")
        elif kind != _HEARTBEAT:
            if kind == _NAK:
                self.log(f"{remote.name} refused {codec.kind_name(message.kind)} "
                         f"{message.sequence}: {message.detail}")
            self.events.append(("message", remote.number, header, body, blob, message))

    def _is_next(self, remote, sequence, kind):
        expected = remote.sequence_in + 1
        if expected < sequence <= expected + remote.unread:
            remote.unread -= sequence - expected  # they did come, but could not be read
            expected = sequence
        if sequence == expected:
            remote.sequence_in = sequence
            return True
        if sequence < expected:
            self.counts["duplicates"] += 1
            self.log(f"{codec.kind_name(kind)} {sequence} of {remote.name} came twice")
            return False
        self.counts["gaps"] += sequence - expected
        # What was lost may be the very message that both ends would wait for.
        self.fail(remote, f"{sequence - expected} messages were lost")
        return False

    def _refuse(self, now_ns, remote, routing_id, header, status, detail):
        """Counts what is not accepted and answers it with NAK, at a bounded rate."""
        _, kind, _, sequence, _, _ = header
        self.counts["refused"] += 1
        self.log(f"refused {codec.kind_name(kind)} from {remote.name if remote else 'a stranger'}: "
                 f"{detail}")
        if kind in (_NAK, _REFUSE):
            return  # an answer to an answer would never end
        earned = (now_ns - self.nak_filled_ns) // NAK_INTERVAL_NS
        if earned > 0:
            self.nak_tokens = min(NAK_BURST, self.nak_tokens + earned)
            self.nak_filled_ns = now_ns
        if self.nak_tokens == 0:
            return
        self.nak_tokens -= 1
        nak = codec.Nak(sequence=sequence, kind=kind, status=status, detail=codec.text(detail))
        if remote is not None and remote.is_up:
            self.send(remote.number, nak)
        else:
            self._send_raw(routing_id, nak)

    # ---- handshake --------------------------------------------------------------------------------

    def _on_hello(self, now_ns, remote, routing_id, header_epoch, hello):
        attempt = _attempt(routing_id, hello)
        if attempt == 0 or header_epoch != hello.epoch:
            self._say_no(routing_id, STATUS.ERR_INVALID,
                         "the routing id is not that of this name and epoch", "name.epoch.attempt",
                         "another one")
            return
        if hello.version_max < codec.VERSION_MIN or hello.version_min > codec.VERSION \
                or hello.version_min > hello.version_max:
            self._say_no(routing_id, STATUS.ERR_VERSION, "no common protocol version",
                         f"{codec.VERSION_MIN}..{codec.VERSION}",
                         f"{hello.version_min}..{hello.version_max}")
            return
        if hello.role not in (ROLE.GATEWAY, ROLE.EXECUTOR):
            self._say_no(routing_id, STATUS.ERR_REFUSED, "this link is for another role",
                         "gateway or executor", ROLE.name(hello.role).lower())
            return
        version = min(hello.version_max, codec.VERSION)
        if remote is not None:
            if not remote.is_up:  # it asked again before our answer came
                self._send_init(routing_id, version, remote.packs)
            return
        epoch_min = self.epoch_min.get(hello.name, 0)
        older = [r for r in self.by_number.values() if r.name == hello.name]
        newer = any((r.epoch, r.attempt) > (hello.epoch, attempt) for r in older)
        if hello.epoch < epoch_min or newer:
            self._say_no(routing_id, STATUS.ERR_STALE, "a newer incarnation of this actor is known",
                         f"at least {epoch_min}", str(hello.epoch))
            return
        for other in older:
            self.fail(other, f"replaced by epoch {hello.epoch}, attempt {attempt}")
        self._reap()
        number = next((n for n in range(1, PEER_COUNT_MAX + 1) if n not in self.by_number), 0)
        if number == 0:
            self._say_no(routing_id, STATUS.ERR_OVERLOADED, "too many peers", "a free place", "none")
            return
        self.epoch_min[hello.name] = hello.epoch
        while len(self.epoch_min) > 128:
            self.epoch_min.pop(next(iter(self.epoch_min)))
        remote = Remote(number, routing_id, hello, attempt, now_ns)
        self.by_number[number] = self.by_routing_id[routing_id] = remote
        self._send_init(routing_id, version, remote.packs)

    def _on_ready(self, now_ns, remote, epoch):
        if remote is None or remote.is_up or epoch != remote.epoch:
            self.counts["refused"] += 1
            return
        remote.is_up, remote.heard_ns = True, now_ns
        remote.heartbeat_next_ns = now_ns + self.heartbeat_ns
        self.log(f"link to {remote.name} ({ROLE.name(remote.role).lower()}, epoch {remote.epoch}) is up")
        self.events.append(("up", remote.number))

    def _send_init(self, routing_id, version, packs):
        self._send_raw(routing_id, codec.Init(
            version=version, role=ROLE.SCHEDULER, name=self.name, epoch=self.epoch,
            heartbeat_ns=self.heartbeat_ns, packs=packs))

    def _say_no(self, routing_id, status, detail, expected, got):
        self.counts["refused"] += 1
        self.log(f"refused a link: {detail}: expected {expected}, got {got}")
        self._send_raw(routing_id, codec.Refuse(status=status, detail=detail, expected=expected,
                                                got=got))

    # ---- sending ----------------------------------------------------------------------------------

    def _send_raw(self, routing_id, message):
        """Without a sequence number.  What is lost is asked for again by who wants the link."""
        body, blob = codec.encode(message)
        header = codec.encode_header(message.KIND, self.epoch, 0)
        try:
            self.send_frames(routing_id, codec.parts(header, body, blob), False)
            self.counts["out"] += 1
        except (PeerLost, QueueFull):
            self.counts["dropped"] += 1

    def send(self, number, message, cause=0, parts=None):
        """To a peer that is up; its failure is reported later.  `parts`: encoded already."""
        remote = self.by_number.get(number)
        if remote is None or not remote.is_up or remote.failed is not None:
            self.counts["dropped"] += 1
            return
        body, blob = codec.encode(message) if parts is None else parts
        header = codec.encode_header(message.KIND, self.epoch, remote.sequence_out + 1,
                                     message.request, cause)
        telemetry = message.KIND in _TELEMETRY
        try:
            frames = [codec.pack_frame(header, body, blob)] if remote.packs \
                else codec.parts(header, body, blob)
            self.send_frames(remote.routing_id, frames, not telemetry)
            remote.sequence_out += 1
            self.counts["out"] += 1
        except PeerLost:
            self.fail(remote, "its connection ended")
        except QueueFull:
            self.counts["dropped"] += 1
            if not telemetry:
                self.fail(remote, f"its queue was full for {SEND_WAIT_NS // MS} ms "
                                  f"({message.NAME})")

    # ---- time and ends ----------------------------------------------------------------------------

    def tick(self, now_ns, is_drained=True):
        """Heartbeats and silence, which counts only when nothing is left to receive.  Returns
        events."""
        self._forgive_silence(now_ns)
        for remote in list(self.by_number.values()):
            if not remote.is_up:
                if now_ns - remote.heard_ns >= GREETED_NS:
                    self._drop(remote)
            elif is_drained and now_ns - remote.heard_ns >= self.silence_ns:
                self.fail(remote, f"nothing heard for {(now_ns - remote.heard_ns) // MS} ms")
            elif now_ns >= remote.heartbeat_next_ns:
                self._beat(remote, now_ns)
        return self.take_events()

    def probe(self, now_ns):
        """A connection ended: sending finds out whose."""
        for remote in list(self.by_number.values()):
            if remote.is_up:
                self._beat(remote, now_ns)
        return self.take_events()

    def _beat(self, remote, now_ns):
        remote.heartbeat_next_ns = now_ns + self.heartbeat_ns
        self.send(remote.number, codec.Heartbeat(progress=self.progress()))

    def _forgive_silence(self, now_ns):
        """After we stood still ourselves, what the peers sent meanwhile is still on its way."""
        away_ns, self.serviced_ns = now_ns - self.serviced_ns, now_ns
        if away_ns >= 2 * self.heartbeat_ns:
            for remote in self.by_number.values():
                if remote.is_up:
                    remote.heard_ns = max(remote.heard_ns,
                                          now_ns + 2 * self.heartbeat_ns - self.silence_ns)

    def deadline_ns(self):
        """When tick() is wanted."""
        times = [remote.heartbeat_next_ns if remote.is_up else remote.heard_ns + GREETED_NS
                 for remote in self.by_number.values()]
        return min(times, default=codec.U64_MAX)

    def fail(self, remote, why):
        if remote.failed is None:
            remote.failed = why

    def _drop(self, remote):
        del self.by_number[remote.number]
        del self.by_routing_id[remote.routing_id]

    def _reap(self):
        for remote in [r for r in self.by_number.values() if r.failed is not None]:
            self._drop(remote)
            if remote.is_up:
                self.log(f"link to {remote.name} is down: {remote.failed}")
                self.events.append(("down", remote, remote.failed))

    def take_events(self):
        self._reap()
        events, self.events = self.events, []
        return events

    def goodbye(self, why):
        for remote in list(self.by_number.values()):
            if remote.is_up:
                self.send(remote.number, codec.Bye(detail=why))


def _attempt(routing_id, hello):
    """The attempt in "name.epoch.attempt"; 0 if the routing id is not that of this HELLO."""
    if not _NAME.match(hello.name) or len(routing_id) > ROUTING_ID_SIZE_MAX:
        return 0
    prefix = f"{hello.name}.{hello.epoch}.".encode()
    digits = routing_id[len(prefix):]
    if not routing_id.startswith(prefix) or not re.match(rb"[1-9][0-9]{0,18}\Z", digits):
        return 0
    return int(digits)


# ---- the socket -----------------------------------------------------------------------------------

def _is_local(endpoint):
    return endpoint.startswith("ipc://") or re.match(
        r"tcp://(127\.\d+\.\d+\.\d+|localhost|\[::1\]):", endpoint) is not None


def _answers(path):
    """Whether a living process listens there; libzmq would take its address away."""
    with system_socket.socket(system_socket.AF_UNIX, system_socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
            return True
        except OSError:
            return False


class Socket:
    """Binds the endpoint.  SystemExit with the remedy if that cannot be done."""

    def __init__(self, endpoint, allow_remote=False):
        if not allow_remote and not _is_local(endpoint):
            sys.exit(f"endpoint '{endpoint}' can be reached from other machines and is not encrypted: "
                     f"use ipc://PATH or tcp://127.0.0.1:PORT, or allow it with --allow-remote")
        if endpoint.startswith("ipc://") and os.path.exists(endpoint[6:]) and _answers(endpoint[6:]):
            sys.exit(f"endpoint '{endpoint}' is in use by another process: stop it or choose another")
        self.context = zmq.Context()
        self.router = router = self.context.socket(zmq.ROUTER)
        for option, value in ((zmq.ROUTER_MANDATORY, 1), (zmq.LINGER, 0), (zmq.SNDHWM, 1024),
                              (zmq.RCVHWM, 1024), (zmq.HANDSHAKE_IVL, 2000), (zmq.BACKLOG, 64),
                              (zmq.MAXMSGSIZE, sum(codec.LIMITS[name] for name in ("blob_size_max", "body_size_max")) + 256)):
            router.setsockopt(option, value)
        if endpoint.startswith("tcp://"):
            for option, value in ((zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 1),
                                  (zmq.TCP_KEEPALIVE_INTVL, 1), (zmq.TCP_KEEPALIVE_CNT, 3)):
                router.setsockopt(option, value)
        self.monitor = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            router.bind(endpoint)
        except zmq.ZMQError as error:
            sys.exit(f"cannot bind '{endpoint}': {error}; choose another endpoint")
        self.endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def send(self, routing_id, parts, patient):
        frames = [routing_id, *parts]
        deadline_ns = None
        while True:
            try:
                self.router.send_multipart(frames, zmq.DONTWAIT)
                return
            except zmq.Again:
                now_ns = time.monotonic_ns()
                deadline_ns = deadline_ns or now_ns + SEND_WAIT_NS
                if not patient or now_ns >= deadline_ns:
                    raise QueueFull from None
                # A loop that only retries would never learn that the peer died: EVENTS looks.
                self.router.poll(5, zmq.POLLOUT)
                self.router.getsockopt(zmq.EVENTS)
            except zmq.ZMQError:
                raise PeerLost from None

    def receive(self):
        """The frames of the next message, or None."""
        try:
            return self.router.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def wait(self, timeout_ns):
        self.router.poll(max(0, -(-timeout_ns // MS)), zmq.POLLIN)

    def connection_ended(self):
        """Whether a connection ended since the last call."""
        ended = False
        while self.monitor.poll(0):
            self.monitor.recv_multipart(zmq.DONTWAIT)
            ended = True
        return ended

    def close(self, linger_ms=500):
        # A peer may look at its connections before its messages: the last words come first.
        time.sleep(0.02)
        self.router.disable_monitor()
        self.monitor.close(0)
        self.router.close(linger_ms)
        self.context.term()
