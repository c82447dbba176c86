"""Standard output that may fail: what was measured is worth more than its display. After the first failure nothing
more is displayed, and the program goes on.
"""
import os, sys


def claim_streams():
    """A stream that was closed is /dev/null: the next file that is opened would be written to in its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


class Output:
    def __init__(self):
        claim_streams()
        self.failed = False
        if sys.stdout is not None:
            sys.stdout.reconfigure(errors="backslashreplace")

    def say(self, text):
        try:
            if sys.stdout is None:
                raise OSError("it is closed")
            print(text, flush=True)
        except OSError as e:
            self.fail(e)

    def fail(self, e):
        if self.failed:
            return
        self.failed = True
        complain(f"writing standard output: {e}; nothing more is displayed, the measuring goes on")
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)  # for what is still in the buffer, and for other programs
        os.close(nothing)


def complain(text):
    """One line on standard error, which may be what has failed."""
    try:
        os.write(2, f"bench/compare: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        pass


output = Output()
say = output.say
