"""Greedy generation by `treadle generate`, by the times it tells; each loop is a process of its own,
of which the peak of memory has loading in it."""
import json, resource, subprocess
import driver, generation


def start(spec):
    ids = ";".join(",".join(map(str, text)) for text in generation.prompts(spec))
    command = [spec["treadle"], "generate", spec["weights"], "--ids", ids, "--max-tokens", str(spec["with"]["tokens"]),
               "--dtype", spec["config"]["weight_dtype"], "--json"]

    def loop(_):
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        told = json.loads(text.strip().split("\n")[-1])
        rows = [result["ids"] for result in told.get("results", [told])]
        read = spec["with"]["rows"] * spec["with"]["prompt"]
        answer = generation.figures(spec, 1e3 * sum(map(len, rows)) / told["tokens_per_second"], rows,
                                    1e3 * read / told["prompt_tokens_per_second"])
        return answer | {"peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}

    return loop, loop("")


driver.serve(start)
