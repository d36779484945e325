"""What every command has in common: completion, manual pages, the environment, and its small words."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "process"))
from system import binary, check, main  # noqa: E402


def onepath(*arguments, code=0, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ONEPATH_")}
    done = subprocess.run([binary(), *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env={**clean, **(env or {})}, stdin=subprocess.DEVNULL)
    check(code is None or done.returncode == code,
          f"onepath {arguments} ended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
    return done


def names_of(help_text):
    return re.findall(r"^  ([a-z]+) ", help_text, re.M)


def every_command():
    """{"log show": ["--format", ...]} as the helps have it."""
    found = {}
    for name in names_of(onepath("--help").stdout):
        if name in ("onepath", "version"):
            continue
        below = [f"log {sub}" for sub in names_of(onepath("log", "--help").stdout) if sub != "onepath"] \
            if name == "log" else [name]
        for command in below:
            text = onepath(*command.split(), "--help").stdout
            found[command] = re.findall(r"^  (--[a-z0-9-]+)", text.partition("\noptions:\n")[2], re.M)
    check(len(found) > 20 and "--max-num-seqs" in found["serve"], f"{found}")
    return found


def bash_words(script, *words):
    lines = f"source {script}\nCOMP_WORDS=({' '.join(shlex.quote(w) for w in words)})\n" \
            f"COMP_CWORD={len(words) - 1}\n_onepath\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    done = subprocess.run(["bash", "--norc", "-c", lines], capture_output=True, text=True, check=False)
    check(done.returncode == 0 and done.stderr == "", f"bash says {done.stderr}")
    return done.stdout.split()


def bash_completes_every_command_and_option():
    commands = every_command()
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "onepath.bash")
        with open(script, "w", encoding="utf-8") as file:
            file.write(onepath("completion", "bash").stdout)
        first = bash_words(script, "onepath", "")
        check(set(first) == {c.split()[0] for c in commands} | {"help", "version"}, f"{first}")
        second = bash_words(script, "onepath", "log", "")
        check(set(second) == {c.split()[1] for c in commands if " " in c}, f"{second}")
        for command, options in commands.items():
            got = bash_words(script, "onepath", *command.split(), "--")
            check(set(got) == set(options) | {"--help"}, f"{command}: {got} for {options}")
        check(bash_words(script, "onepath", "scheduler", "") == ["attach", "builtin", "show"], "verbs")
        check(bash_words(script, "onepath", "se") == ["serve"], "a beginning is completed")
        path = os.path.join(folder, "model.gguf")
        open(path, "w", encoding="utf-8").close()
        check(bash_words(script, "onepath", "serve", folder + "/mod") == [path], "files are completed")
        check(bash_words(script, "onepath", "scheduler", "--run-dir", folder + "/mod") == [path],
              "the value of an option is a file, not a verb")


def zsh_and_fish_name_every_command_and_option():
    commands = every_command()
    zsh, fish = onepath("completion", "zsh").stdout, onepath("completion", "fish").stdout
    for command, options in commands.items():
        arm = zsh.partition(f"    '{command}')\n")[2].partition(";;")[0]
        condition = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        for option in options:
            check(f"'{option}[" in arm or f"'*{option}[" in arm, f"zsh has no {option} of {command}")
            check(f"-n '{condition}' -l {option[2:]} " in fish, f"fish has no {option} of {command}")
    for shell, script in (("zsh", zsh), ("fish", fish)):
        if shutil.which(shell) is None:
            print(f"     (no {shell} here to read its script)")
            continue
        with tempfile.NamedTemporaryFile("w", suffix="." + shell) as file:
            file.write(script)
            file.flush()
            done = subprocess.run([shell, "-n", file.name], capture_output=True, text=True, check=False)
            check(done.returncode == 0 and done.stderr == "", f"{shell}: {done.stderr}")
            if shell == "fish":
                for typed, wanted in (("onepath log show --", set(commands["log show"])),
                                      ("onepath log ", {c.split()[1] for c in commands if " " in c}),
                                      ("onepath ", {c.split()[0] for c in commands})):
                    done = subprocess.run(["fish", "--no-config", "-c", f"source {file.name}; complete -C '{typed}'"],
                                          capture_output=True, text=True, check=False)
                    got = {line.split("\t")[0] for line in done.stdout.splitlines()}
                    check(wanted <= got, f"fish completes '{typed}' to {sorted(got)} {done.stderr}")
    onepath("completion", "tcsh", code=78)


def manual_pages_are_whole():
    commands = every_command()
    with tempfile.TemporaryDirectory() as folder:
        onepath("man", "--all", folder)
        pages = {name[:-2] for name in os.listdir(folder)}
        check(pages == {"onepath"} | {"onepath-" + c.replace(" ", "-") for c in commands}, f"{pages}")
        for command, options in commands.items():
            path = os.path.join(folder, "onepath-" + command.replace(" ", "-") + ".1")
            with open(path, encoding="utf-8") as file:
                text = file.read()
            check(text == onepath("man", *command.split()).stdout, f"the page of {command} is one page")
            for option in options:
                check(".B " + option.replace("-", "\\-") in text, f"no {option} in the page of {command}")
        if shutil.which("groff") is None:
            print("     (no groff here to read the pages)")
            return
        for page in sorted(pages):
            done = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-P-c", os.path.join(folder, page + ".1")],
                                  capture_output=True, text=True, check=False)
            check(done.returncode == 0 and done.stderr == "", f"{page}: {done.stderr}")
        done = subprocess.run(["groff", "-man", "-Tascii", "-P-c", "-P-b", "-P-u", os.path.join(folder, "onepath-log-show.1")],
                              capture_output=True, text=True, check=False)
        check("jq .body" in done.stdout and "--format FORM" in done.stdout, done.stdout[:2000])
    onepath("man", "nonsense", code=78)


def an_install_has_them():
    build = os.environ.get("ONEPATH_BUILD")
    check(build, "ONEPATH_BUILD must name the build folder")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["cmake", "--install", build, "--prefix", folder, "--component", "program"],
                              capture_output=True, text=True, check=False)
        check(done.returncode == 0, done.stdout + done.stderr)
        for path in ("bin/onepath", "share/bash-completion/completions/onepath", "share/zsh/site-functions/_onepath",
                     "share/fish/vendor_completions.d/onepath.fish", "share/man/man1/onepath.1",
                     "share/man/man1/onepath-serve.1"):
            check(os.path.getsize(os.path.join(folder, path)) > 100, path)


def the_environment_is_scoped():
    """A variable of one command must not steer another."""
    plain = onepath("protocol").stdout
    check(onepath("protocol", env={"ONEPATH_JSON": "1"}).stdout == plain, "ONEPATH_JSON is nobody's")
    check(onepath("protocol", env={"ONEPATH_PROTOCOL_JSON": "1"}).stdout.startswith("{"), "this one is heard")
    check("ONEPATH_SIM_SEED" in onepath("sim", "--help").stdout, "the help names it")
    check("ONEPATH_LOG_SHOW_FORMAT" in onepath("log", "show", "--help").stdout, "the help names it")
    check("ONEPATH_HOST" in onepath("serve", "--help").stdout, "a node's options have the short names")
    seven = onepath("sim", "--seed", "7", "--steps", "60").stdout.partition("digest")[2].split()[0]
    check(onepath("sim", "--steps", "60", env={"ONEPATH_SIM_SEED": "7"}).stdout.partition("digest")[2].split()[0]
          == seven, "the seed from the environment")
    check(onepath("sim", "--steps", "60", env={"ONEPATH_SEED": "7"}).stdout.partition("digest")[2].split()[0]
          != seven, "the seed of a test is not the simulator's")
    for command in ("serve", "demo"):
        done = onepath(command, "x", code=78, env={"ONEPATH_PORT": "99999"})
        check("ONEPATH_PORT" in done.stderr, done.stderr)
    for device in ("cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:1024", "cuda:99999999999999999999", "gpu"):
        done = onepath("serve", "x", "--device", device, code=78)
        check(f"--device is '{device}'" in done.stderr, done.stderr)
    check("ONEPATH_RUN_DIR" in onepath("scheduler", "--help").stdout, "the folder is the node's")


def small_words_are_right():
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        onepath("sim", "--seed", "7", "--steps", "500", "--log", log)
        done = onepath("log", "show", log, "--request", "999999")
        check(done.stdout == "" and "nothing here names request 999999" in done.stderr, done.stderr)
        done = onepath("log", "show", log, "--type", "PLAN", "--from", "100000000")
        check(done.stdout == "" and "no record passes the filters" in done.stderr, done.stderr)
        check(onepath("log", "show", log, "--limit", "1").stderr == "", "not when something is shown")
        done = onepath("log", "replay", log, "--actor", "scheduler", "--until", "0", code=78)
        check("--until" in done.stderr and "from 1" in done.stderr, done.stderr)
        program = "echo \"it's $HOME\" >&2; exit 3"
        text = onepath("log", "replay", log, "--actor", "scheduler", "--exec", program, code=2).stdout
        again = shlex.split(next(line for line in text.splitlines() if "onepath log replay" in line))
        check(again[again.index("--exec") + 1] == program, f"{again}")
        check(re.search(r"\b1 gap with", onepath("log", "verify", log, code=None).stdout), "one gap is no gaps")
        for text in (onepath("log", "verify", log, code=None).stdout, onepath("log", "ls", log).stdout,
                     onepath("log", "stats", log).stdout):
            check(not re.search(r"\b1 (gaps|records|snapshots|digests|inputs|messages|segments)\b", text), text)


if __name__ == "__main__":
    main([bash_completes_every_command_and_option, zsh_and_fish_name_every_command_and_option,
          manual_pages_are_whole, an_install_has_them, the_environment_is_scoped, small_words_are_right])
