"""wrong_link.py FAULT ENDPOINT: the first-come-first-served scheduler of examples/python on a link
that breaks one rule.  For tests of `onepath conform scheduler`, never for anything else.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.environ["ONEPATH_SOURCE"], "examples", "python"))
import fcfs  # noqa: E402
from onepath_scheduler import codec, link, runner  # noqa: E402
from onepath_scheduler.codec import ROLE  # noqa: E402


class WrongRole(link.Links):
    """INIT names another role."""

    def _send_init(self, routing_id, version, packs):
        self._send_raw(routing_id, codec.Init(version=version, role=ROLE.EXECUTOR, name=self.name,
                                              epoch=self.epoch, heartbeat_ns=self.heartbeat_ns, packs=packs))


class AnyVersion(link.Links):
    """Every HELLO is welcome, whatever it speaks."""

    def _on_hello(self, now_ns, remote, routing_id, header_epoch, hello):
        hello.version_min, hello.version_max = codec.VERSION_MIN, codec.VERSION
        super()._on_hello(now_ns, remote, routing_id, header_epoch, hello)


class Silent(link.Links):
    """What comes before READY is dropped without an answer."""

    def _refuse(self, now_ns, remote, routing_id, header, status, detail):
        if remote is not None and remote.is_up:
            super()._refuse(now_ns, remote, routing_id, header, status, detail)


class NoEpochs(link.Links):
    """An older incarnation takes the place of a newer one."""

    def _on_hello(self, now_ns, remote, routing_id, header_epoch, hello):
        self.epoch_min.clear()
        if remote is None:
            for other in [r for r in self.by_number.values() if r.name == hello.name]:
                self.fail(other, "replaced")
            self._reap()
        super()._on_hello(now_ns, remote, routing_id, header_epoch, hello)


class Grudge(link.Links):
    """Who said BYE is never spoken to again."""
    left = set()

    def fail(self, remote, why):
        if "goodbye" in why:
            self.left.add(remote.name)
        super().fail(remote, why)

    def _on_hello(self, now_ns, remote, routing_id, header_epoch, hello):
        if hello.name not in self.left:
            super()._on_hello(now_ns, remote, routing_id, header_epoch, hello)


class NoBye(link.Links):
    """It ends without a word."""

    def goodbye(self, why):
        pass


class NoBeats(link.Links):
    """No heartbeats."""

    def _beat(self, remote, now_ns):
        remote.heartbeat_next_ns = now_ns + self.heartbeat_ns


class Patient(link.Links):
    """Silence is golden."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.silence_ns = 3600 * 1000 * link.MS


class Skips(link.Links):
    """One sequence number in four is left out."""

    def send(self, number, message, cause=0, parts=None):
        remote = self.by_number.get(number)
        if remote is not None and remote.sequence_out % 4 == 2:
            remote.sequence_out += 1
        super().send(number, message, cause, parts)


class TakesTwice(link.Links):
    """A number that came before is as good as a new one."""

    def _is_next(self, remote, sequence, kind):
        remote.sequence_in = min(remote.sequence_in, sequence - 1)
        return super()._is_next(remote, sequence, kind)


class SkipsGaps(link.Links):
    """What is missing is not missed."""

    def _is_next(self, remote, sequence, kind):
        remote.sequence_in = max(remote.sequence_in, sequence - 1)
        return super()._is_next(remote, sequence, kind)


class NoNak(link.Links):
    """What it cannot read on an open link is dropped without an answer."""

    def _refuse(self, now_ns, remote, routing_id, header, status, detail):
        if remote is None or not remote.is_up:
            super()._refuse(now_ns, remote, routing_id, header, status, detail)


class WrongNak(link.Links):
    """NAK names another message."""

    def _refuse(self, now_ns, remote, routing_id, header, status, detail):
        header = header[:3] + (header[3] + 1,) + header[4:]
        super()._refuse(now_ns, remote, routing_id, header, status, detail)


class Fragile(link.Links):
    """One message that cannot be read, and the link is over."""

    def _refuse(self, now_ns, remote, routing_id, header, status, detail):
        super()._refuse(now_ns, remote, routing_id, header, status, detail)
        if remote is not None and remote.is_up and header[1] == codec.Finish.KIND:
            self.fail(remote, "it sends garbage")


class Unreadable(link.Links):
    """Some heartbeats do not decode."""

    def _beat(self, remote, now_ns):
        remote.heartbeat_next_ns = now_ns + self.heartbeat_ns
        self.send(remote.number, codec.Heartbeat(progress=1), parts=(b"\xc1", b""))


class Confused(link.Links):
    """Executors are told what gateways want to know."""

    def _on_ready(self, now_ns, remote, epoch):
        super()._on_ready(now_ns, remote, epoch)
        if remote is not None and remote.is_up and remote.role == ROLE.EXECUTOR:
            self.send(remote.number, codec.Load(running=1))


FAULTS = {
    "role": WrongRole, "version": AnyVersion, "silent": Silent, "no-epochs": NoEpochs,
    "grudge": Grudge, "no-bye": NoBye, "no-beats": NoBeats, "patient": Patient, "skips": Skips,
    "takes-twice": TakesTwice, "skips-gaps": SkipsGaps, "no-nak": NoNak, "wrong-nak": WrongNak,
    "fragile": Fragile, "unreadable": Unreadable, "confused": Confused,
}


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in FAULTS:
        sys.exit(f"usage: wrong_link.py {'|'.join(FAULTS)} ENDPOINT")
    link.Links = FAULTS[sys.argv[1]]
    parser = runner.parser(__doc__)
    parser.set_defaults(endpoint=sys.argv[2], quiet=True, name="wrong-link", max_batch=4096,
                        queue_len=64, whole_prompts=False)
    sys.argv = sys.argv[:1]
    runner.main(parser, fcfs.make)


if __name__ == "__main__":
    main()
