"""The parent's side of the protocol in driver.py: a process that runs one loop for each line it is told.

While it is not asked it stands still, so that of all processes only one ever runs. Its peak memory is that of the
loops, not of loading and compiling: the mark is set back after its first answer.
"""
import json, os, signal, subprocess, tempfile, time

LAST_WORDS = 3000  # characters of a dead process's standard error that are shown


class Failed(Exception):
    """A peer, or Treadle, that could not be run or did other work."""


class Process:
    def __init__(self, name, command, environment):
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")
        begin = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, env=os.environ | environment, start_new_session=True)
        try:
            self.ready = self.answer()
        except BaseException:
            self.close()
            raise
        self.start_ms = 1e3 * (time.monotonic() - begin)
        self.start_peak = self.peak_bytes()
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")
        self.signal(signal.SIGSTOP)

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def answer(self):
        line = self.process.stdout.readline()
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            self.process.stdin.close()
            if not line:
                self.process.wait()
            self.errors.seek(0)
            raise Failed(f"{self.name} ended with {self.process.poll()} and said {line.strip()!r}:\n"
                         f"{self.errors.read()[-LAST_WORDS:]}") from None

    def status(self, key):
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(key + ":"))

    def peak_bytes(self):
        return self.status("VmHWM") * 1024

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def loop(self, line=""):
        """The figures of one loop: the driver's own, processor time and peak memory."""
        self.signal(signal.SIGCONT)
        before = self.cpu_s()
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        figures = self.answer()
        figures = {"cpu_s": self.cpu_s() - before, "peak_bytes": self.peak_bytes()} | figures
        self.signal(signal.SIGSTOP)
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
