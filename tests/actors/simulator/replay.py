"""What the simulator records is a log like any other: whole, and every incarnation of every actor
replays from it to the same messages, whatever struck the node.  Then the command itself: its exit
codes, and that a repeated seed prints the same."""
import glob
import os
import subprocess
import sys
import tempfile

BIN = os.environ["ONEPATH_BIN"] + "/onepath"
SEEDS = range(1, 9)


def run(*words, code=0):
    done = subprocess.run([BIN, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout + done.stderr


def every_incarnation_replays():
    count = 0
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            faults = "all,-disk" if seed != 8 else "none"
            run("sim", "--seed", str(seed), "--faults", faults, "--log", folder)
            run("log", "verify", folder)
            for path in sorted(glob.glob(folder + "/*.alog")):
                text = run("log", "replay", path)
                assert "nothing differs" in text, text
                count += 1
    assert count > 3 * len(SEEDS), count
    print(f"{count} incarnations of {len(SEEDS)} seeds replayed")


def the_command_repeats_and_refuses():
    first = run("sim", "--seed", "3", "--trace")
    assert first == run("sim", "--seed", "3", "--trace")
    assert first.count("\n") > 2000
    assert first != run("sim", "--seed", "4", "--trace")
    assert "messages/s" in run("sim", "--seeds", "5", "--bench")
    assert "no such fault" in run("sim", "--faults", "fire", code=78)
    assert "one seed" in run("sim", "--seeds", "2", "--log", "/tmp", code=78)
    run("sim", "--log", "/nowhere/at/all", code=75)
    run("sim", "--seed", "seven", code=78)


for case in (every_incarnation_replays, the_command_repeats_and_refuses):
    case()
    print("ok", case.__name__)
sys.exit(0)
