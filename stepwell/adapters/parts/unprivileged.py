"""Run a program that refuses to be root.

PostgreSQL will not start with user id 0. A user namespace that maps another id onto root satisfies it without a system
user and without changing who owns the files. Where namespaces are forbidden, the program runs as the system user
``postgres`` or ``nobody``, to whom its directory is given.
"""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from stepwell.exceptions import StepwellError

__all__ = ["prefix_for", "prepare"]

_NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
_FALLBACK_USERS = ("postgres", "nobody")


def prefix_for(directory: Path) -> list[str]:
    """The words to put before a command, so that it runs unprivileged and owns ``directory``.

    Empty for an ordinary user. For root, the owner of the directory decides, so that every start chooses alike.

    Raises:
        StepwellError: neither way works on this machine.
    """
    if os.geteuid() != 0:
        return []
    owner = directory.stat().st_uid
    if owner != 0:
        return _as_user(owner)
    if _works(_NAMESPACE):
        return list(_NAMESPACE)
    raise StepwellError(
        f"PostgreSQL refuses to run as root, and user namespaces are not allowed here, so {directory} (owned by root) "
        "cannot be served. Run Stepwell as an ordinary user, allow user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1), or give a server by STEPWELL_DATABASE=postgresql://..."
    )


def prepare(directory: Path) -> None:
    """Make ``directory`` (0700) and, for root without user namespaces, give it to an unprivileged system user.

    Raises:
        StepwellError: no way to run unprivileged, or that user cannot reach the directory.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.geteuid() != 0 or directory.stat().st_uid != 0 or _works(_NAMESPACE) or any(directory.iterdir()):
        return
    for name in _FALLBACK_USERS:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        prefix = _as_user(user.pw_uid)
        os.chown(directory, user.pw_uid, user.pw_gid)
        if _works([*prefix, "test", "-w", str(directory), "-a", "-x", str(directory)], complete=True):
            return
        os.chown(directory, 0, 0)
    raise StepwellError(
        f"PostgreSQL refuses to run as root. User namespaces are not allowed here, and none of the users "
        f"{', '.join(_FALLBACK_USERS)} can reach {directory}. Choose a directory under /var/lib or /tmp, "
        "run Stepwell as an ordinary user, or give a server by STEPWELL_DATABASE=postgresql://..."
    )


def _as_user(uid: int) -> list[str]:
    gid = pwd.getpwuid(uid).pw_gid
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]


def _works(prefix: tuple[str, ...] | list[str], complete: bool = False) -> bool:
    if shutil.which(prefix[0]) is None:
        return False
    command = list(prefix) if complete else [*prefix, "true"]
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
