"""The tables of bench/compare: what a result says, as Markdown."""
import statistics


def number(x):
    return f"{x:.0f}" if x >= 1000 else f"{x:.3g}"


def speed(workload, value, cycle):
    """A time per unit of work in ms, in words."""
    if workload["rate"]:
        return f"{number(1e3 / value)} {workload['unit']}/s"
    text = f"{number(value)} ms"
    return text if cycle == 1 else f"{text} ({number(value / cycle)} a micro-batch)"


def gigabytes(values):
    return f"{max(values) / 1e9:.2f} GB" if values and max(values) else "-"


def percent(value):
    return "-" if value is None else f"{100 * value:.1f}%"


def row(workload, r):
    cells = [r["peer"]]
    if "error" in r:
        return [*cells, "-", "-", r["at_least"] or "-", *["-"] * 5, r["error"].split("\n")[0]]
    if r["peer"] == "machine":
        spread = f"{min(r['ratios']):.3f} to {max(r['ratios']):.3f}"
        return [*cells, f"{r['ratio']:.3f}", spread, r["at_least"] or "-", r["text"], "-",
                gigabytes([r["treadle_peak_bytes"]]), "-", "-", verdict(r)]
    ours, theirs = ([s[side]["value"] for s in r["samples"]] for side in ("treadle", "peer"))
    memory = [gigabytes([s[side].get("peak_bytes", 0) for s in r["samples"]]) for side in ("treadle", "peer")]
    busy = "-" if r["busy"]["peer"] is None else f"{percent(r['busy']['treadle'])}, {percent(r['busy']['peer'])}"
    cycle = r["cycle"]
    return [*cells, f"{r['ratio']:.2f}", f"{min(r['ratios']):.2f} to {max(r['ratios']):.2f} ({len(ours)})",
            r["at_least"] or "-", speed(workload, statistics.median(ours), cycle["treadle"]),
            speed(workload, statistics.median(theirs), cycle["peer"]), ", ".join(memory), busy,
            compared(r), verdict(r)]


def compared(r):
    if r["loss_difference"] is not None:
        return f"{r['loss_difference']:.1e}"
    return "results equal" if "check" in r["samples"][0]["treadle"] else "not compared"


def verdict(r):
    if r["at_least"] is None:
        return ""
    return "reached" if r["ratio"] >= r["at_least"] else "short"


HEAD = ["against", "peer / Treadle", "least to most (pairs)", "wanted", "Treadle", "peer",
        "peak memory: Treadle, peer", "device busy: Treadle, peer", "losses differ by", ""]


def markdown(report):
    lines = []
    for w in report["workloads"]:
        lines += [f"## {w['name']}: {w['title']}", "", "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
        lines += ["| " + " | ".join(str(cell) for cell in row(w, r)) + " |" for r in w["results"]]
        lines += [""]
        if w["memory_gb"]:
            peaks = [s["treadle"].get("peak_bytes", 0) for r in w["results"] for s in r.get("samples", [])]
            peaks += [r["treadle_peak_bytes"] for r in w["results"] if "treadle_peak_bytes" in r]
            held = "held" if max(peaks, default=0) <= 1e9 * w["memory_gb"] else "exceeded"
            lines += [f"Treadle's peak memory: {gigabytes(peaks)}, wanted at most {w['memory_gb']} GB: {held}.", ""]
        lines += [f"Treadle ran `{w['treadle']}`.", ""]
    m = report["machine"]
    lines += [f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['kernel']}; {report['date']}.",
              f"{report['treadle']}."]
    versions = {r["peer"]: r["versions"] for w in report["workloads"] for r in w["results"] if r.get("versions")}
    lines += [f"{peer}: " + ", ".join(f"{k} {v}" for k, v in v.items()) + "." for peer, v in versions.items()]
    return "\n".join(lines) + "\n"
