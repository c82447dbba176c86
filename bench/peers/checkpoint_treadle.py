"""Treadle's side of checkpoints: `treadle bench checkpoint` answers a line with a save and a restore, checksums
included."""
import json, os, subprocess
import checkpoint, driver


def start(spec):
    command = [spec["treadle"], "bench", "checkpoint", *spec["words"], "--lines",
               "base_output_directory=" + os.path.dirname(spec["weights"])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer():
        told = json.loads(process.stdout.readline())
        return checkpoint.figures(spec, told["save_ms"], told["load_ms"], told["parameter_bytes"], told["parameter_sum"])

    def loop(_):
        process.stdin.write("\n")
        process.stdin.flush()
        return answer()

    return loop, answer()


driver.serve(start)
