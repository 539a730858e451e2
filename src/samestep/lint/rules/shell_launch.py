"""SST6: programs started from the shell."""

from __future__ import annotations

import re
from collections.abc import Iterator

from samestep.lint.device_lists import VISIBLE, indices
from samestep.lint.findings import Edit, Finding, ReplaceText
from samestep.lint.registry import Rule, prose, source
from samestep.lint.shell.script import Assignment, ShellScript, program
from samestep.lint.shell.words import Command, Word

OLD_LAUNCHER = Rule(
    code="SST605",
    name="deprecated-launcher",
    severity="warning",
    language="shell",
    summary="`python -m torch.distributed.launch` is deprecated in favour of torchrun.",
    why=prose("""
        It passes the rank as an argument, spelt `--local_rank` before torch 2.0 and `--local-rank` since, which breaks
        scripts at an update. torchrun gives it in LOCAL_RANK, and restarts and reports failures."""),
    wrong="python -m torch.distributed.launch --nproc_per_node=2 --use_env train.py\n",
    right="torchrun --nproc_per_node=2 train.py\n",
    mend='Use torchrun, and read `os.environ["LOCAL_RANK"]` in the script. With `--use_env` nothing else changes.',
    fixed="torchrun --nproc_per_node=2 train.py\n",
)


@OLD_LAUNCHER.shell
def _old_launcher(script: ShellScript) -> Iterator[Finding]:
    for command in script.commands:
        words = command.words
        for index, word in enumerate(words):
            is_module = word.text == "torch.distributed.launch" and index > 1 and words[index - 1].text == "-m"
            python = words[index - 2] if is_module else None
            if python is None or not re.fullmatch(r"python[\d.]*", python.text.rpartition("/")[2]):
                continue
            fix: tuple[Edit, ...] = ()
            env = [each for each in words[index:] if each.text in ("--use_env", "--use-env")]
            if len(env) == 1 and python.raw == "python":
                before = words[words.index(env[0]) - 1]
                gap = ReplaceText(script.span(before.end, env[0].end), "")
                fix = (ReplaceText(script.span(python.start, word.end), "torchrun"), gap)
                if before is word:
                    fix = (ReplaceText(script.span(python.start, env[0].end), "torchrun"),)
            span = script.span(python.start, word.end)
            yield OLD_LAUNCHER.here(script.path, span, "torch.distributed.launch is deprecated; use torchrun", *fix)


TOO_MANY = Rule(
    code="SST606",
    name="more-processes-than-devices",
    severity="error",
    language="shell",
    summary="More processes are started on a machine than CUDA_VISIBLE_DEVICES leaves devices.",
    why=prose("""
        With CUDA_VISIBLE_DEVICES=0,1 and four processes, ranks 2 and 3 end with `invalid device ordinal`, and the
        other two wait for them until a time-out."""),
    wrong="CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=4 train.py\n",
    right="CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py\n",
    mend="Start as many processes as there are devices: `--nproc_per_node=gpu`, or `samestep run`, which counts them.",
)
_PER_NODE = ("--nproc_per_node", "--nproc-per-node", "--num_processes", "--num-processes", "--num_gpus")


@TOO_MANY.shell
def _too_many(script: ShellScript) -> Iterator[Finding]:
    lasting: Assignment | None = None
    for command in script.commands:
        own = [each for each in script.assigned(command) if each.name == "CUDA_VISIBLE_DEVICES"]
        if own and own[-1].alone:
            lasting = own[-1]
            continue
        setting = own[-1] if own else lasting
        launched = _launcher(command)
        if setting is None or launched is None or not setting.constant:
            continue
        devices = indices(setting.value)
        for word, count in _option(command, _PER_NODE):
            if devices is not None and count.isdigit() and int(count) > len(devices) and not _several_nodes(command):
                one = "1 device" if len(devices) == 1 else f"{len(devices)} devices"
                message = f"{count} processes, but CUDA_VISIBLE_DEVICES={setting.value} leaves {one}"
                yield TOO_MANY.here(script.path, script.word_span(word), message)


def _launcher(command: Command) -> str | None:
    words = [word.text.rpartition("/")[2] for word in command.words]
    for index, word in enumerate(words):
        if word in ("torchrun", "deepspeed") or word in ("torch.distributed.launch", "torch.distributed.run"):
            return word
        if word == "accelerate" and words[index + 1 : index + 2] == ["launch"]:
            return word
    return None


def _several_nodes(command: Command) -> bool:
    """Whether `accelerate launch` counts the processes of several machines, or runs on the CPU."""
    texts = [word.text for word in command.words]
    return any(text.startswith(("--num_machines", "--num-machines", "--cpu", "--use_cpu")) for text in texts)


def _option(command: Command, names: tuple[str, ...]) -> Iterator[tuple[Word, str]]:
    for index, word in enumerate(command.words):
        name, equals, value = word.text.partition("=")
        if name in names and equals:
            yield word, value
        elif name in names and index + 1 < len(command.words):
            yield word, command.words[index + 1].text


SHARED_PORT = Rule(
    code="SST607",
    name="runs-share-a-port",
    severity="error",
    language="shell",
    summary="Several torchrun commands are started at once, all on the default port.",
    why=prose("""
        Without `--standalone` or `--master_port` each torchrun listens on port 29500. The second run in the background
        ends with `address already in use`, or joins the first one's rendezvous (pytorch#126510)."""),
    wrong=source("""
        CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py --seed 1 &
        CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc_per_node=2 train.py --seed 2 &
        wait
        """),
    right=source("""
        CUDA_VISIBLE_DEVICES=0,1 torchrun --standalone --nproc_per_node=2 train.py --seed 1 &
        CUDA_VISIBLE_DEVICES=2,3 torchrun --standalone --nproc_per_node=2 train.py --seed 2 &
        wait
        """),
    mend="Add `--standalone`, which takes a free port. `samestep run` needs no port.",
    fixed=source("""
        CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py --seed 1 &
        CUDA_VISIBLE_DEVICES=2,3 torchrun --standalone --nproc_per_node=2 train.py --seed 2 &
        wait
        """),
)
_PORT_OPTIONS = (
    *("--standalone", "--master_port", "--master-port", "--rdzv_endpoint", "--rdzv-endpoint", "--rdzv_backend"),
    *("--rdzv-backend", "--nnodes", "--main_process_port"),
)


@SHARED_PORT.shell
def _shared_port(script: ShellScript) -> Iterator[Finding]:
    running: list[Command] = []
    for command in script.commands:
        if command.words[0].text == "wait":
            running = []
        words = program(command)
        torchrun = [word for word in words[:1] if word.text.rpartition("/")[2] == "torchrun"]
        if any(word.text in ("srun", "ssh") for word in command.words):  # elsewhere, perhaps
            continue
        if not torchrun or any(word.text.partition("=")[0] in _PORT_OPTIONS for word in words):
            continue
        if any(
            each.name in ("MASTER_PORT", "PET_MASTER_PORT") or each.name.startswith("PET_")
            for each in script.assignments
        ):
            continue
        if any(mark in word.raw for word in words for mark in ("$@", "$*", "${")):
            continue
        if running:
            first = script.text.place(running[0].words[0].start)[0]
            edit = ReplaceText(script.span(torchrun[0].end, torchrun[0].end), " --standalone")
            message = f"both this run and the one in line {first} listen on port 29500"
            yield SHARED_PORT.here(script.path, script.word_span(torchrun[0]), message, edit)
        if command.ends_with == "&":
            running.append(command)


NOT_PASSED_ON = Rule(
    code="SST609",
    name="variable-not-passed-on",
    severity="error",
    language="shell",
    summary="A variable is set for sudo, docker or ssh, which do not pass it on.",
    why=prose("""
        `CUDA_VISIBLE_DEVICES=1 sudo python train.py` gives the variable to sudo, which starts the program with a clean
        environment; a container and a remote shell have their own. The program sees every GPU."""),
    wrong="CUDA_VISIBLE_DEVICES=1 sudo python train.py\n",
    right=source("""
        sudo CUDA_VISIBLE_DEVICES=1 python train.py
        docker run --gpus '"device=1"' image python train.py
        docker run -e CUDA_VISIBLE_DEVICES=1 image python train.py
        ssh host CUDA_VISIBLE_DEVICES=1 python train.py
        """),
    mend="Put it where the program starts: `sudo CUDA_VISIBLE_DEVICES=1 …`, `docker run -e …`, `ssh host CUDA_…=1 …`.",
)


@NOT_PASSED_ON.shell
def _not_passed_on(script: ShellScript) -> Iterator[Finding]:
    for each in script.assignments:
        words = program(each.command)
        if each.name not in VISIBLE or each.alone or not words:
            continue
        texts = [word.text for word in words]
        carrier = texts[0].rpartition("/")[2]
        in_front = each.word.start < words[0].start
        passes = any(each.name in text for text in texts) or any(
            text.startswith(("-E", "--preserve-env")) for text in texts
        )
        is_carrier = carrier in ("sudo", "ssh") or (carrier == "docker" and texts[1:2] in (["run"], ["exec"]))
        if in_front and is_carrier and not passes:
            message = f"{carrier} does not pass {each.name} on: the program does not see it"
            yield NOT_PASSED_ON.here(script.path, script.word_span(each.word), message)


RULES = [OLD_LAUNCHER, TOO_MANY, SHARED_PORT, NOT_PASSED_ON]
