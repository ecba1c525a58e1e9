"""Short scripts that each exit in a different way.

`test_exits.py` runs each under both python and windlass.
"""

from __future__ import annotations

import textwrap

# name -> source. The output must not depend on time or place.
SNIPPETS = {
    name: textwrap.dedent(source).lstrip("\n")
    for name, source in {
        "exit_none": "import sys; sys.exit()",
        "exit_true": "import sys; sys.exit(True)",
        "exit_three": "import sys; sys.exit(3)",
        "exit_text": "import sys; sys.exit('no data in ./data')",
        "exit_object": "import sys; sys.exit([1, 2])",
        "exit_beyond_a_byte": "import sys; sys.exit(256)",
        "exit_below_zero": "import sys; sys.exit(-1)",
        "exit_by_the_builtin": "quit(4)",
        "exit_of_a_subclass": """
            class Done(SystemExit):
                pass
            raise Done(6)
        """,
        "exit_at_once": "import os; os._exit(5)",
        "exit_at_once_well": "import os; print('done', flush=True); os._exit(0)",
        "exit_in_a_thread": """
            import sys, threading
            thread = threading.Thread(target=sys.exit, args=(3,))
            thread.start()
            thread.join()
            print("after")
        """,
        "exit_while_handling": """
            import sys
            try:
                1 / 0
            except ZeroDivisionError:
                sys.exit(8)
        """,
        "raise": """
            def inner(x):
                return 1 / x

            def outer():
                inner(0)

            outer()
        """,
        "raise_from": """
            try:
                {}["key"]
            except KeyError as error:
                raise RuntimeError("while reading\\nthe config") from error
        """,
        "raise_group": """
            raise ExceptionGroup("two", [ValueError(1), TypeError("2")])
        """,
        "raise_with_a_note": """
            error = ValueError("bad")
            error.add_note("try again")
            raise error
        """,
        "raise_too_deep": """
            def again(n):
                return again(n + 1)

            again(0)
        """,
        "raise_in_a_module": "import broken",
        "raise_what_cannot_be_told": """
            class Odd(Exception):
                def __str__(self):
                    raise RuntimeError("no text")
            raise Odd()
        """,
        "raise_what_cannot_travel": """
            import threading

            class Held(Exception):
                def __init__(self, lock, *, need):
                    super().__init__("held")
                    self.lock, self.need = lock, need
            raise Held(threading.Lock(), need=1)
        """,
        "syntax_error": "print('never')\ndef f(:\n    pass\n",
        "tabs_and_spaces": "if True:\n        a = 1\n\tb = 2\n",
        "keyboard_interrupt": "raise KeyboardInterrupt",
        "abort": "import os; os.abort()",
        "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "excepthook": """
            import sys

            def hook(kind, value, tb):
                print("hook:", kind.__name__, value, tb.tb_frame.f_code.co_name, tb.tb_next)
            sys.excepthook = hook
            raise ValueError("boom")
        """,
        "excepthook_that_fails": """
            import sys

            def hook(kind, value, tb):
                raise TypeError("in the hook")
            sys.excepthook = hook
            raise ValueError("boom")
        """,
        "excepthook_that_exits": """
            import os, sys
            sys.excepthook = lambda *_: (print("hooked", flush=True), os._exit(9))
            raise ValueError("boom")
        """,
        "last_value": """
            import atexit, sys

            @atexit.register
            def tell():
                print(repr(sys.last_value), sys.last_type.__name__, sys.last_traceback.tb_lineno)
            raise ValueError("boom")
        """,
        "no_excepthook_for_an_exit": """
            import sys
            sys.excepthook = lambda *_: print("hooked")
            sys.exit(3)
        """,
        "thread_that_raises": """
            import threading

            def work():
                raise ValueError("in a thread")
            thread = threading.Thread(target=work, name="worker")
            thread.start()
            thread.join()
            print("after")
        """,
        "hooks_of_threads_and_unraisables": """
            import sys, threading
            threading.excepthook = lambda args: print("thread hook:", args.exc_value)
            sys.unraisablehook = lambda args: print("unraisable hook:", args.exc_value)

            def work():
                raise ValueError("in a thread")

            class Bad:
                def __del__(self):
                    raise ValueError("in del")
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            Bad()
        """,
        "del_that_raises_at_the_end": """
            class Bad:
                def __del__(self):
                    raise ValueError("at the end")
            bad = Bad()
        """,
        "atexit_that_raises": """
            import atexit

            @atexit.register
            def fail():
                raise ValueError("at exit")
        """,
        "atexit_that_exits": """
            import atexit, os
            atexit.register(os._exit, 7)
        """,
        "atexit_of_a_failed_script": """
            import atexit
            atexit.register(print, "bye")
            raise ValueError("boom")
        """,
        "warnings": """
            import warnings

            def old():
                warnings.warn("old is old", DeprecationWarning, stacklevel=2)
            old()
            warnings.warn("mind the gap")
            open("nothing.txt", "w").write("left to the collector")
        """,
        "assertion": "assert 1 == 2, 'not equal'",
        "stdout_closed": "import sys; print('x'); sys.stdout.close()",
        "stdout_broken": "import os; print('never seen', end=''); os.close(1)",
        "fork_whose_child_exits": """
            import os, sys
            pid = os.fork()
            if pid == 0:
                sys.exit(3)
            print("child:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        "fork_whose_child_falls_through": """
            import os
            pid = os.fork()
            if pid:
                print("child:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        "fork_whose_child_raises": """
            import os
            pid = os.fork()
            if pid == 0:
                raise ValueError("in the child")
            print("child:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        "exec": """
            import os, sys
            print("before", flush=True)
            os.execv(sys.executable, [sys.executable, "-c", "print('another program'); raise SystemExit(0)"])
        """,
        "exec_itself": """
            import os, sys
            print(sys.argv[1:], flush=True)
            if len(sys.argv) < 2:
                os.execv(sys.executable, [*sys.orig_argv, "again"])
        """,
        "changed_folder": """
            import os
            os.mkdir("elsewhere")
            os.chdir("elsewhere")
            raise ValueError("not at home")
        """,
        "removed_folder": """
            import os, shutil
            os.mkdir("gone")
            os.chdir("gone")
            os.rmdir("../gone")
            print("still here")
        """,
        "environment_cleared": """
            import os
            os.environ.clear()
            print(dict(os.environ))
        """,
        "signal_handler_that_raises": """
            import os, signal

            def handle(number, frame):
                raise TimeoutError(f"signal {number}")
            signal.signal(signal.SIGUSR1, handle)
            os.kill(os.getpid(), signal.SIGUSR1)
            print("never")
        """,
        "interrupt_handled": """
            import os, signal
            try:
                os.kill(os.getpid(), signal.SIGINT)
                signal.pause()
            except KeyboardInterrupt:
                print("saved")
        """,
        "broken_pipe": """
            import os
            reader, writer = os.pipe()
            os.close(reader)
            try:
                os.write(writer, b"x")
            except BrokenPipeError as error:
                print(error)
        """,
        "asyncio_that_fails": """
            import asyncio

            async def main():
                asyncio.get_running_loop().call_soon(lambda: None)
                raise ValueError("in a coroutine")
            asyncio.run(main())
        """,
    }.items()
}
