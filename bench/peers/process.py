"""The parent's side of the protocol in driver.py: a process that runs one loop for each line it is told.

While it is not asked it stands still, so that of all processes only one ever runs. Its peak memory is that of the
loops, not of loading and compiling: the mark is set back after its first answer.
"""
import ctypes, json, math, os, signal, subprocess, tempfile, threading, time

LAST_WORDS = 3000  # characters of a dead process's standard error that are shown
PATIENCE_S = 1800  # for an answer; the slowest peer compiles for some minutes
NUMBERS = ("loop_ms", "work", "peak_bytes", "busy_ms", "update_busy_ms")  # of an answer, beside its losses
PR_SET_PDEATHSIG = 1  # of prctl(2)

LIBC = ctypes.CDLL(None)


def die_with_parent():
    """A child that stands still would outlive a parent that is killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Failed(Exception):
    """A peer, or Treadle, that could not be run or did other work."""


def usable(figures):
    """Whether an answer is a map, and what is calculated with a number."""
    if not isinstance(figures, dict) or not isinstance(figures.get("versions", {}), dict):
        return False
    losses = figures.get("losses", [])
    numbers = [figures[key] for key in NUMBERS if key in figures]
    return (isinstance(losses, list) and all(type(x) in (int, float) for x in losses + numbers)
            and all(0 <= x < math.inf for x in numbers))


class Process:
    def __init__(self, name, command, environment):
        self.name = name
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        begin = time.monotonic()
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                            text=True, errors="replace", env=os.environ | environment,
                                            start_new_session=True, preexec_fn=die_with_parent)
        except OSError as e:
            self.errors.close()
            raise Failed(f"{name}: cannot be started: {e}") from None
        try:
            self.ready = self.answer()
            self.start_ms = 1e3 * (time.monotonic() - begin)
            self.start_peak = self.peak_bytes()
            with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
                file.write("5")
            self.signal(signal.SIGSTOP)
        except OSError:
            failure = self.death("an answer")
            self.close()
            raise failure from None
        except BaseException:
            self.close()
            raise

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def answer(self):
        """The next line; a process that is silent for too long is killed and has said nothing."""
        self.silent = False
        patience = threading.Timer(PATIENCE_S, self.lose_patience)
        patience.daemon = True
        patience.start()
        try:
            line = self.process.stdout.readline()
        finally:
            patience.cancel()
        try:
            figures = json.loads(line)
        except ValueError:
            figures = None
        if not usable(figures):
            raise self.death(repr(line.strip()))
        return figures

    def lose_patience(self):
        self.silent = True
        self.signal(signal.SIGKILL)

    def death(self, said):
        """What is known of a process that ended, or that does not keep to the protocol and is ended."""
        try:
            self.process.stdin.close()
            self.process.wait(1)
        except (OSError, subprocess.TimeoutExpired):
            pass
        code = self.process.poll()
        end = "goes on" if code is None else f"ended with {code}"
        if self.silent:
            end = f"was killed after {PATIENCE_S} s of silence"
        self.errors.seek(0)
        return Failed(f"{self.name} {end} and said {said}:\n"
                      f"{self.errors.read()[-LAST_WORDS:]}")

    def peak_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        raise ProcessLookupError(f"{self.name} has ended")  # and is not waited for

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def loop(self, line=""):
        """The figures of one loop: the driver's own, processor time and peak memory."""
        try:
            self.signal(signal.SIGCONT)
            before = self.cpu_s()
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            figures = self.answer()
            figures = {"cpu_s": self.cpu_s() - before, "peak_bytes": self.peak_bytes()} | figures
            self.signal(signal.SIGSTOP)
        except OSError:
            raise self.death("no figures") from None
        return figures

    def close(self):
        """Ends the process by the end of its input; one that does not end in a while is killed."""
        try:
            self.signal(signal.SIGCONT)
            self.process.stdin.close()
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            pass
        try:
            self.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()
