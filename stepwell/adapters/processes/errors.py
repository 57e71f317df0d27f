"""What can go wrong with a simulator's or a policy's process, told apart so that the fault lands where it belongs.

Error, and the failure type it means::

    HostError
    └── ProcessFailedError
        ├── StartFailedError      it could not be started, or not load its task       start_failed
        ├── ProcessExitedError    it ended by itself (exit status, or its own crash)  sim_exited, agent_exited
        ├── ProcessKilledError    a signal from outside ended it                      sim_killed, agent_killed
        ├── ProcessHungError      it lives, but did not answer in time                sim_timeout, agent_timeout
        ├── ProcessRaisedError    its code raised; the process may still live         *_exception, sim_diverged
        ├── ProcessProtocolError  it sent something that is no answer                 sim_exited, agent_exited
        └── InvalidActionError    the policy sent NaN, infinity or a wrong shape      invalid_action
"""

from typing import Literal

from stepwell.exceptions import HostError

Component = Literal["sim", "agent"]

NAMES: dict[Component, str] = {"sim": "simulator", "agent": "policy"}


class ProcessFailedError(HostError):
    """A simulator or policy process failed.

    Attributes:
        component: ``sim`` or ``agent``; who broke.
        failure_type: a key of `stepwell.events.taxonomy.FAILURE_TYPES`.
        exit_code: exit status, negative for a signal; None where the process did not end.
        output: the last lines that the process printed.
        remote_traceback: the traceback inside the process, where its code raised.
    """

    kind = "exited"

    def __init__(
        self,
        message: str,
        *,
        component: Component,
        failure_type: str | None = None,
        exit_code: int | None = None,
        output: str = "",
        remote_traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.component: Component = component
        self.failure_type = failure_type or f"{component}_{self.kind}"
        self.exit_code = exit_code
        self.output = output
        self.remote_traceback = remote_traceback


class StartFailedError(ProcessFailedError):
    """The process could not be started, or what it is for could not be loaded there."""

    def __init__(
        self,
        message: str,
        *,
        component: Component,
        exit_code: int | None = None,
        output: str = "",
        remote_traceback: str | None = None,
    ) -> None:
        super().__init__(
            message, component=component, failure_type="start_failed", exit_code=exit_code, output=output,
            remote_traceback=remote_traceback,
        )  # fmt: skip


class ProcessExitedError(ProcessFailedError):
    """The process ended by itself."""

    kind = "exited"


class ProcessKilledError(ProcessFailedError):
    """The process was killed from outside."""

    kind = "killed"


class ProcessHungError(ProcessFailedError):
    """The process lives but did not answer in time."""

    kind = "timeout"


class ProcessRaisedError(ProcessFailedError):
    """The code in the process raised an exception."""

    kind = "exception"


class ProcessProtocolError(ProcessFailedError):
    """The process sent something that is no answer."""

    kind = "exited"


class InvalidActionError(ProcessFailedError):
    """The policy sent an action that no simulator should be given."""

    def __init__(self, message: str) -> None:
        super().__init__(message, component="agent", failure_type="invalid_action")
