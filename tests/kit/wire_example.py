"""The worked example of docs/scheduler-protocol.md, made by the codec: prints what the document
shows between its marks.  test_document.py compares."""
import os
import sys

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
sys.path.insert(0, os.path.join(SOURCE, "examples", "python"))

from onepath_scheduler import codec, testing  # noqa: E402
from onepath_scheduler.codec import ROLE  # noqa: E402

EXECUTOR, GATEWAY, OURS = 200, 300, 500  # epochs
WIDTH = 24


def hexadecimal(raw):
    text = raw.hex(" ")
    return [text[at:at + 3 * WIDTH].strip() for at in range(0, len(text), 3 * WIDTH)] or [""]


def part(name, raw):
    for number, line in enumerate(hexadecimal(raw)):
        yield f"  {name if number == 0 else '':<7}{line}"


def columns(message, blob):
    """The blob column by column; what lies between them is zero."""
    at = 0
    for name, _, _, code, size in message.FIELDS:
        count = len(getattr(message, name)) if code else 0
        if count:
            at += -at % codec.ALIGN
            raw = blob[at:at + count * size]
            for number, line in enumerate(hexadecimal(raw)):
                yield f"    {f'{at:>4} {name}' if number == 0 else '':<27}{line}"
            at += len(raw)


def message(direction, message, epoch, sequence, routing_id):
    body, blob = codec.encode(message)
    header = codec.encode_header(message.KIND, epoch, sequence, message.request)
    yield f"{direction} {message.NAME}"
    yield f"  {'id':<7}{routing_id.decode()}"
    yield from part("header", header)
    yield from part("body", body)
    if blob:
        yield f"  blob   {len(blob)} bytes; at"
        yield from columns(message, blob)
    yield ""


def example():
    router = b"executor.200.1"
    yield from message("->", codec.Hello(version_min=1, version_max=1, role=ROLE.EXECUTOR, name="executor",
                                         epoch=EXECUTOR), EXECUTOR, 0, router)
    yield from message("<-", codec.Init(version=1, role=ROLE.SCHEDULER, name="mine", epoch=OURS,
                                        heartbeat_ns=250_000_000), OURS, 0, router)
    yield from message("->", codec.Ready(epoch=EXECUTOR), EXECUTOR, 0, router)
    yield from message("->", codec.ExecutorInfo(
        model_name="m", fingerprint="", vocab_size=49152, model_len_max=512, slot_count=4, step_tokens_max=128,
        decode_width=1, overlap_depth_max=1, prefix_granularity=64, parent_count=33, group_kinds=[0],
        group_granularities=[64], group_windows=[0], group_packings=[1], page_hash_key=b""), EXECUTOR, 1, router)
    yield from message("<-", codec.Reset(detail="hello"), OURS, 1, router)
    tokens = [1, 4093, 314, 253]
    yield from message("<-", codec.Admit(request=7, slot=1, prompt_length=4, length_max=20, tokens=tokens,
                                         sampling=testing.sampling()), OURS, 2, router)
    yield from message("<-", codec.Plan(
        step=1, base_step=0, width=1, patch_slots=[1], patch_groups=b"\0", patch_columns=[0], patch_counts=[1],
        patch_blocks=[1], extend_slots=[1], extend_begins=[0], extend_lengths=[4], extend_samples=b"\1"),
        OURS, 3, router)
    yield from message("->", codec.StepResult(step=1, mode=codec.MODE.EXTEND, duration_ns=17_000_000, computed_tokens=4,
                                              token_counts=b"\1", row_flags=b"\0", tokens=[198], logprob_widths=b"\0"),
                       EXECUTOR, 2, router)
    yield from message("<-", codec.Tokens(step=1, requests=[7], token_indices=[0], token_counts=b"\1", tokens=[198]),
                       OURS, 2, b"gateway.300.1")


if __name__ == "__main__":
    print("\n".join(example()).strip())
