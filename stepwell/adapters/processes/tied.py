"""A shell command that ends with whoever asked for it: ``python -I -S tied.py FD COMMAND``, leading a process group.

FD is the reading end of a pipe whose other end the caller holds and nobody else: when the caller dies, however it
dies, the pipe ends, and so does the group: the command with all it started, this process too. The exit code is the
command's, 128 and the signal's number where a signal ended it.

Runs before anything of Stepwell can be imported: standard library alone.
"""

import os
import signal
import subprocess
import sys
import threading


def _end_with(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Run the command to its end."""
    pipe, command = int(sys.argv[1]), sys.argv[2]
    if os.getpgrp() != os.getpid():
        return 125  # the group is not ours to kill
    os.set_inheritable(pipe, False)
    # The command is asked to end, and we report how it did. A handler, since an ignored signal would be ignored by the
    # command as well.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    code = subprocess.Popen(["/bin/sh", "-c", command]).wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
