"""The errors that a user can meet; each names the value, the limit and the way out."""


class UserError(ValueError):
    """A mistake that one sentence can mend: the command line prints it and exits with code 2."""


class DeviceError(UserError):
    """A device, compiler or driver that is asked for and not there."""


class KernelError(RuntimeError):
    """A kernel that does not compile, is launched wrongly, or fails while it runs."""


class CompileError(KernelError):
    """The compiler's own message about a .cu file, with the reader's file and line."""


class LaunchError(KernelError):
    """What CUDA refuses at a launch, in CUDA's words, or a kernel that ran into an error."""
