"""Makes this interpreter look like macOS. Python loads it before anything else.

Names and files that only Linux has are missing. The standard library also sees `sys.platform == "darwin"`.
"""

import os
import select
import signal
import socket
import sys
import types

GONE = ("/proc", "/dev/shm", "/sys", "/run")
CALLS = ("prctl", "inotify_init1", "inotify_add_watch", "memfd_create", "statfs", "fstatfs")
NAMES = {
    os: (
        *("sched_getaffinity", "sched_setaffinity", "memfd_create", "pidfd_open", "eventfd"),
        *("pipe2", "fdatasync", "posix_fallocate", "posix_fadvise", "copy_file_range", "splice"),
        *("O_PATH", "O_TMPFILE", "getresuid", "setresuid", "setresgid", "getxattr", "setxattr"),
        *("unshare", "setns", "waitid", "preadv2"),
    ),
    socket: (
        *("SO_PEERCRED", "SO_PASSCRED", "SCM_CREDENTIALS", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
        *("MSG_NOSIGNAL", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "TCP_QUICKACK", "TCP_CORK"),
        *("AF_NETLINK", "AF_VSOCK", "AF_PACKET", "SO_BINDTODEVICE", "SO_REUSEPORT_LB"),
    ),
    select: ("epoll", *(name for name in dir(select) if name.startswith("EPOLL"))),
    signal: ("sigwaitinfo", "sigtimedwait", "pidfd_send_signal", "SIGSTKFLT", "SIGPWR"),
}


def is_gone(path: object) -> bool:
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        return False
    text = os.fsdecode(text)
    return any(text == gone or text.startswith(f"{gone}/") for gone in GONE)


def check(path: object) -> None:
    if is_gone(path):
        raise FileNotFoundError(2, "No such file or directory", os.fspath(path))  # type: ignore


def watch(event: str, args: tuple) -> None:
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove") and args:
        check(args[0])
    if event == "socket.connect" and isinstance(args[1], bytes) and args[1][:1] == b"\0":
        raise OSError("there are no abstract sockets here")


def wrap(module: object, name: str) -> None:
    inner = getattr(module, name)

    def outer(path: object, *args: object, **kwargs: object) -> object:
        check(path)
        return inner(path, *args, **kwargs)

    setattr(module, name, outer)


for module, names in NAMES.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("stat", "lstat", "readlink", "statvfs"):
    wrap(os, name)
access = os.access
os.access = lambda path, *args, **more: not is_gone(path) and access(path, *args, **more)
# the build configuration module is named after the platform
built = (
    f"_sysconfigdata_{sys.abiflags}_{sys.platform}_{getattr(sys.implementation, '_multiarch', '')}"
)
os.environ["_PYTHON_SYSCONFIGDATA_NAME"] = built
sys.platform = "darwin"
os.uname = lambda: os.uname_result(("Darwin", "laptop", "23.0.0", "", "arm64"))
# the macOS standard library calls these
proxies = types.ModuleType("_scproxy")
proxies._get_proxy_settings = proxies._get_proxies = dict  # type: ignore[attr-defined]
sys.modules["_scproxy"] = proxies
sys.addaudithook(watch)


def hide_calls() -> None:
    import ctypes

    found = ctypes.CDLL.__getattr__

    def get(self: object, name: str) -> object:
        if name in CALLS:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return found(self, name)

    ctypes.CDLL.__getattr__ = get  # type: ignore[method-assign]


hide_calls()
