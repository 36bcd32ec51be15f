"""The process of a command line: its command, its errors and its exit status."""

from __future__ import annotations

import atexit
import gc
import os

for _library in ("OMP", "OPENBLAS", "MKL"):  # before numpy is imported, which reads them once
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would read the metadata of all installed packages

import argparse  # noqa: E402
import sys  # noqa: E402
from importlib import import_module  # noqa: E402

from algorithm.adapters.standard_streams import open_closed_streams  # noqa: E402
from algorithm.cli.commands import Command  # noqa: E402
from algorithm.cli.output import Output  # noqa: E402
from algorithm.cli.parser import make_start_page, parse_arguments  # noqa: E402
from algorithm.training.signals import raise_on_stop_signals  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit status: 0, or one of `STATUSES`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    output = Output("--json" in arguments)
    if not arguments:
        print(make_start_page())
        return 0
    with raise_on_stop_signals():
        return _run(arguments, output)


def _run(arguments: list[str], output: Output) -> int:
    try:
        _run_command(*parse_arguments(arguments), output)
        status = 0
    except SystemExit:  # of --help
        raise
    except BaseException as error:  # every error has an exit status and a message of one line
        from algorithm.runs.faults import describe_end

        status, message = describe_end(error, output.save_note)
        output.fail(message, error, "--debug" in arguments)
    output.finish(status)
    return status


def _run_command(command: Command, options: argparse.Namespace, output: Output) -> None:
    """Check the options of a command, import its heavy module, if any, and execute it."""
    try:
        command.check(options, output)
        if command.heavy_module:
            output.log_plain(f"loading PyTorch for {options.env} ...")
            import_module(command.heavy_module)
            if not gc.isenabled():  # all objects of the imported modules are excluded from now on
                gc.freeze()
                gc.enable()
        command.run(options, output)
    except SystemExit as error:  # in an nn.py, for example; it must not decide the exit status
        raise RuntimeError(f"sys.exit({error.code!r}) was called") from error


def _exit_process(statuses: list[int]) -> None:
    """End the process with the status of `main`, if it is known, without the teardown of the interpreter."""
    if statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(statuses[0])


def run_process() -> None:
    """Run the command line of this process and end the process with its exit status."""
    open_closed_streams()
    gc.disable()  # during the import of torch it would search its many objects again and again
    final_status: list[int] = []
    atexit.register(_exit_process, final_status)  # before anything else registers, so that it is called last
    final_status.append(main())
    sys.exit(final_status[0])
