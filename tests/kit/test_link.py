"""The Python link without a socket: handshake, sequence numbers, heartbeats, silence, strangers."""
import os
import sys
import unittest

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
sys.path.insert(0, os.path.join(SOURCE, "examples", "python"))

from onepath_scheduler import codec, link  # noqa: E402
from onepath_scheduler.codec import ROLE, STATUS  # noqa: E402

MS = link.MS
START = 1_000_000 * MS


class Wire:
    """What the link sends, decoded; and the other ends, which may be gone or full."""

    def __init__(self):
        self.sent, self.gone, self.full = [], set(), set()
        self.part_counts = []  # frames of each message that was sent

    def send(self, routing_id, parts, _patient):
        if routing_id in self.gone:
            raise link.PeerLost
        if routing_id in self.full:
            raise link.QueueFull
        self.part_counts.append(len(parts))
        header, body, blob = (*codec.unpack_frame(parts), b"")[:3]
        _, kind, epoch, sequence, request, cause = codec.decode_header(header)
        message = codec.decode(kind, body, blob)
        self.sent.append((routing_id, message, sequence, epoch, request, cause))

    def take(self):
        sent, self.sent = self.sent, []
        return [(routing_id, message) for routing_id, message, *_ in sent]


class LinkCase(unittest.TestCase):
    def setUp(self):
        self.wire, self.lines = Wire(), []
        self.links = link.Links(self.wire.send, "scheduler", 500, log=self.lines.append)
        self.now = START
        self.links.tick(self.now)

    def receive(self, routing_id, message, sequence=0, epoch=9, header=None, extra=()):
        body, blob = codec.encode(message)
        header = header or codec.encode_header(message.KIND, epoch, sequence, message.request)
        return self.links.receive(self.now, [routing_id, header, body, blob, *extra] if blob or extra
                                  else [routing_id, header, body])

    def hello(self, routing_id=b"gateway.9.1", **changes):
        fields = {"version_min": 1, "version_max": 1, "role": ROLE.GATEWAY, "name": "gateway",
                  "epoch": 9, **changes}
        return self.receive(routing_id, codec.Hello(**fields), epoch=fields["epoch"])

    def open(self, routing_id=b"gateway.9.1", **changes):
        self.hello(routing_id, **changes)
        events = self.receive(routing_id, codec.Ready(epoch=changes.get("epoch", 9)),
                              epoch=changes.get("epoch", 9))
        self.wire.take()
        return events

    def answer(self):
        sent = self.wire.take()
        self.assertEqual(len(sent), 1, sent)
        return sent[0][1]


class Handshake(LinkCase):
    def test_hello_init_ready(self):
        self.assertEqual(self.hello(), [])
        init = self.answer()
        self.assertEqual((init.NAME, init.version, init.role, init.name, init.epoch, init.heartbeat_ns),
                         ("INIT", 1, ROLE.SCHEDULER, "scheduler", 500, 250 * MS))
        self.assertEqual(self.receive(b"gateway.9.1", codec.Ready(epoch=9)), [("up", 1)])

    def test_a_repeated_hello_is_answered_again_and_makes_no_second_peer(self):
        self.hello()
        self.hello()
        self.assertEqual([m.NAME for _, m in self.wire.take()], ["INIT", "INIT"])
        self.receive(b"gateway.9.1", codec.Ready(epoch=9))
        self.hello()  # late: the link is up
        self.assertEqual(self.wire.take(), [])
        self.assertEqual(len(self.links.by_number), 1)

    def test_who_is_refused(self):
        for routing_id, changes, status in (
                (b"gateway.9", {}, STATUS.ERR_INVALID), (b"gateway.8.1", {}, STATUS.ERR_INVALID),
                (b"gateway.9.0", {}, STATUS.ERR_INVALID), (b"gateway.9.x", {}, STATUS.ERR_INVALID),
                (b"gateway.9.-1", {}, STATUS.ERR_INVALID),
                (b"Gate Way.9.1", {"name": "Gate Way"}, STATUS.ERR_INVALID),
                (b"gateway.9.1", {"version_min": 2, "version_max": 3}, STATUS.ERR_VERSION),
                (b"gateway.9.1", {"version_min": 1, "version_max": 0}, STATUS.ERR_VERSION),
                (b"gateway.9.1", {"role": ROLE.SCHEDULER}, STATUS.ERR_REFUSED)):
            self.assertEqual(self.hello(routing_id, **changes), [])
            refuse = self.answer()
            self.assertEqual((refuse.NAME, refuse.status), ("REFUSE", status), routing_id)
            self.assertEqual(self.links.by_number, {})

    def test_a_newer_socket_and_a_newer_epoch_replace_the_older_one(self):
        self.open(b"gateway.9.1")
        events = self.hello(b"gateway.9.2")
        self.assertEqual([e[0] for e in events], ["down"])
        self.assertIn("replaced", events[0][2])
        self.receive(b"gateway.9.2", codec.Ready(epoch=9))
        events = self.hello(b"gateway.12.1", epoch=12)
        self.assertEqual([e[0] for e in events], ["down"])

    def test_an_older_one_is_refused_as_stale_even_after_the_newer_one_left(self):
        self.open(b"gateway.9.2")
        self.hello(b"gateway.9.1")
        self.assertEqual(self.answer().status, STATUS.ERR_STALE)
        self.receive(b"gateway.9.2", codec.Bye(detail="x"), 1)
        self.wire.take()
        self.hello(b"gateway.8.7", epoch=8)
        refuse = self.answer()
        self.assertEqual((refuse.status, refuse.expected, refuse.got),
                         (STATUS.ERR_STALE, "at least 9", "8"))

    def test_who_never_says_ready_is_forgotten(self):
        self.hello()
        self.now += 1999 * MS
        self.links.tick(self.now)
        self.assertEqual(len(self.links.by_number), 1)
        self.now += 2 * MS
        self.assertEqual(self.links.tick(self.now), [])
        self.assertEqual(len(self.links.by_number), 0)

    def test_places_are_bounded(self):
        for number in range(link.PEER_COUNT_MAX):
            self.open(f"g{number}.9.1".encode(), name=f"g{number}")
        self.hello(b"more.9.1", name="more")
        self.assertEqual(self.answer().status, STATUS.ERR_OVERLOADED)


class Messages(LinkCase):
    def setUp(self):
        super().setUp()
        self.open()

    def test_a_message_reaches_the_core_with_its_header(self):
        (event,) = self.receive(b"gateway.9.1", codec.Finish(request=77, token_index=3, reason=1), 1)
        self.assertEqual(event[:2], ("message", 1))
        self.assertEqual((event[5].request, event[5].sequence, event[5].token_index), (77, 1, 3))

    def test_before_ready_and_from_strangers_everything_is_stale(self):
        self.hello(b"other.9.1", name="other")
        self.wire.take()
        for routing_id in (b"other.9.1", b"nobody.1.1"):
            self.assertEqual(self.receive(routing_id, codec.Finish(request=1), 1), [])
            nak = self.answer()
            self.assertEqual((nak.NAME, nak.status, nak.sequence, nak.kind),
                             ("NAK", STATUS.ERR_STALE, 1, codec.Finish.KIND))

    def test_a_duplicate_is_dropped_and_the_link_goes_on(self):
        finish = codec.Finish(request=1)
        self.assertEqual(len(self.receive(b"gateway.9.1", finish, 1)), 1)
        self.assertEqual(self.receive(b"gateway.9.1", finish, 1), [])
        self.assertEqual(len(self.receive(b"gateway.9.1", finish, 2)), 1)
        self.assertEqual(self.links.counts["duplicates"], 1)

    def test_a_gap_ends_the_link(self):
        self.receive(b"gateway.9.1", codec.Finish(request=1), 1)
        (event,) = self.receive(b"gateway.9.1", codec.Finish(request=1), 4)
        self.assertEqual(event[0], "down")
        self.assertIn("2 messages were lost", event[2])

    def test_what_does_not_decode_is_answered_and_counts_in_the_sequence(self):
        header = codec.encode_header(codec.Submit.KIND, 9, 1, 55)
        self.assertEqual(self.links.receive(self.now, [b"gateway.9.1", header, b"\xc1"]), [])
        nak = self.answer()
        self.assertEqual((nak.sequence, nak.kind, nak.status),
                         (1, codec.Submit.KIND, STATUS.ERR_MALFORMED))
        self.assertEqual(len(self.receive(b"gateway.9.1", codec.Finish(request=1), 2)), 1)

    def test_an_unreadable_header_is_no_gap(self):
        self.assertEqual(self.links.receive(self.now, [b"gateway.9.1", b"\xc1", b""]), [])
        nak = self.answer()
        self.assertEqual((nak.sequence, nak.kind), (0, 0))
        self.assertEqual(len(self.receive(b"gateway.9.1", codec.Finish(request=1), 2)), 1)

    def test_unknown_kinds_other_epochs_and_too_many_parts(self):
        header = codec.encode_header(9999, 9, 1)
        self.links.receive(self.now, [b"gateway.9.1", header, b"\x90"])
        self.assertEqual(self.answer().status, STATUS.ERR_UNSUPPORTED)
        header = codec.encode_header(codec.Timer.KIND, 9, 2)  # not for the wire
        self.links.receive(self.now, [b"gateway.9.1", header, b"\x91\x00"])
        self.assertEqual(self.answer().status, STATUS.ERR_UNSUPPORTED)
        self.receive(b"gateway.9.1", codec.Finish(request=1), 3, epoch=8)
        self.assertEqual(self.answer().status, STATUS.ERR_STALE)
        self.receive(b"gateway.9.1", codec.Finish(request=1), 3, extra=(b"", b""))
        self.assertEqual(self.answer().status, STATUS.ERR_TOO_LARGE)
        self.receive(b"gateway.9.1", codec.Finish(request=1), 0)
        self.assertEqual(self.answer().status, STATUS.ERR_MALFORMED)
        self.links.receive(self.now, [b"gateway.9.1"])
        self.assertEqual(self.answer().status, STATUS.ERR_MALFORMED)

    def test_naks_have_a_rate_limit_and_are_never_answered(self):
        for _ in range(200):
            self.links.receive(self.now, [b"gateway.9.1", b"\xc1"])
        self.assertEqual(len(self.wire.take()), link.NAK_BURST)
        self.now += 100 * MS
        for _ in range(200):
            self.links.receive(self.now, [b"gateway.9.1", b"\xc1"])
        self.assertEqual(len(self.wire.take()), 5)
        self.now += 1000 * MS
        self.receive(b"nobody.1.1", codec.Nak(status=-200), 1)
        self.assertEqual(self.wire.take(), [])

    def test_a_nak_goes_to_the_core_unless_the_link_is_stale(self):
        (event,) = self.receive(b"gateway.9.1", codec.Nak(kind=codec.Plan.KIND, status=-200), 1)
        self.assertEqual(event[5].NAME, "NAK")
        (event,) = self.receive(b"gateway.9.1", codec.Nak(status=STATUS.ERR_STALE), 2)
        self.assertEqual(event[0], "down")

    def test_bye_ends_the_link(self):
        (event,) = self.receive(b"gateway.9.1", codec.Bye(detail="done"), 1)
        self.assertEqual((event[0], event[2]), ("down", "said goodbye: done"))

    def test_only_a_supervisor_may_say_stop(self):
        self.assertEqual(self.receive(b"gateway.9.1", codec.Stop(grace_ns=1), 1), [])


class Time(LinkCase):
    def setUp(self):
        super().setUp()
        self.open()

    def run_until(self, end_ns, step_ns=50 * MS):
        events = []
        while self.now < end_ns:
            self.now += step_ns
            events += self.links.tick(self.now)
        return events

    def test_heartbeats_go_out_with_sequence_numbers(self):
        self.links.progress = lambda: 42
        for number in range(1, 21):
            self.receive(b"gateway.9.1", codec.Heartbeat(), number)
            self.run_until(self.now + 250 * MS)
        beats = [(m.progress, s) for _, m, s, *_ in self.wire.sent if m.NAME == "HEARTBEAT"]
        self.assertGreaterEqual(len(beats), 19)
        self.assertEqual([s for _, s in beats], list(range(1, len(beats) + 1)))
        self.assertEqual(beats[0][0], 42)

    def test_four_missed_heartbeats_are_the_end(self):
        begin = self.now
        self.assertEqual(self.run_until(begin + 950 * MS), [])
        (event,) = self.run_until(begin + 1050 * MS)
        self.assertEqual(event[0], "down")
        self.assertIn("nothing heard", event[2])

    def test_while_messages_wait_heartbeats_go_out_and_nobody_is_silent(self):
        for _ in range(40):
            self.now += 50 * MS
            self.assertEqual(self.links.tick(self.now, is_drained=False), [])
        self.assertGreaterEqual(len(self.wire.take()), 7)

    def test_after_we_stood_still_ourselves_peers_get_time(self):
        self.now += 60_000 * MS
        self.assertEqual(self.links.tick(self.now), [])
        self.assertEqual(self.run_until(self.now + 400 * MS), [])
        self.assertEqual([e[0] for e in self.run_until(self.now + 700 * MS)], ["down"])

    def test_a_dead_connection_is_found_by_sending(self):
        self.wire.gone.add(b"gateway.9.1")
        (event,) = self.links.probe(self.now)
        self.assertEqual((event[0], event[2]), ("down", "its connection ended"))

    def test_a_full_queue_drops_telemetry_and_fails_the_peer_otherwise(self):
        self.wire.full.add(b"gateway.9.1")
        self.links.send(1, codec.Load())
        self.assertEqual(self.links.take_events(), [])
        self.links.send(1, codec.Finished(request=1))
        (event,) = self.links.take_events()
        self.assertIn("queue was full", event[2])
        self.links.send(1, codec.Load())  # to nobody: counted
        self.assertEqual(self.links.counts["dropped"], 3)


class Packed(LinkCase):
    """All parts in one frame, for ends that say so in HELLO."""

    def test_who_packs_is_sent_one_frame_and_who_does_not_several(self):
        self.open(packs=True)
        self.open(b"executor.9.1", role=ROLE.EXECUTOR, name="executor")
        self.wire.part_counts.clear()
        self.links.send(1, codec.Finished(request=1))
        self.links.send(2, codec.Plan(step=1, release_slots=[1, 2, 3]))
        self.assertEqual(self.wire.part_counts, [1, 3])
        self.assertEqual([m.NAME for _, m in self.wire.take()], ["FINISHED", "PLAN"])

    def test_init_says_what_hello_said(self):
        for packs in (False, True):
            self.hello(f"gateway.9.{packs + 1}".encode(), packs=packs)
            ((_, init),) = self.wire.take()
            self.assertEqual(init.packs, packs)

    def test_a_frame_is_read_and_a_wrong_one_refused(self):
        self.open(packs=True)
        body, blob = codec.encode(codec.Finish(request=3, token_index=2))
        frame = codec.pack_frame(codec.encode_header(codec.Finish.KIND, 9, 1, 3), body, blob)
        (event,) = self.links.receive(self.now, [b"gateway.9.1", frame])
        self.assertEqual((event[0], event[5].token_index), ("message", 2))
        self.assertEqual(self.links.receive(self.now, [b"gateway.9.1", frame + b"x"]), [])
        self.assertEqual(self.links.counts["refused"], 1)

    def test_frames_come_back_as_they_were(self):
        for sizes in ((9, 0, 0), (9, 40, 0), (9, 39, 64), (128, 500, 1)):
            parts = [bytes([at + 1]) * size for at, size in enumerate(sizes)]
            frame = codec.pack_frame(*parts)
            self.assertEqual(codec.unpack_frame([frame]), codec.parts(*parts))
            if sizes[2]:
                self.assertEqual((len(frame) - sizes[2]) % codec.ALIGN, 0)
            for wrong in (frame[:-1], frame + b"x", b"\x96" + frame[1:], frame[:1] + b"\2" + frame[2:]):
                self.assertEqual(codec.unpack_frame([wrong]), [wrong])


if __name__ == "__main__":
    unittest.main()
