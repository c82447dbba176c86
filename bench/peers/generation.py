"""What the drivers of greedy generation share. A workload's `with` has `rows` prompts of `prompt` random tokens each,
and `tokens` new ones of each.

What is timed is decoding: the prompts but for their last tokens are in the cache, then each step reads one token a row
and takes the largest logit. In float32 the tokens are what must be equal.
"""
import time
import driver


def prompts(spec):
    rows, length = spec["with"]["rows"], spec["with"]["prompt"]
    tokens = driver.random_tokens(rows * length, spec["model"]["vocab_size"])
    return [tokens[r * length:(r + 1) * length] for r in range(rows)]


def figures(spec, ms, rows, prompt_ms):
    """Of new tokens a row. A row ends with the model's end of text."""
    end = spec["model"].get("eos_token_id")
    ended = [row[:row.index(end) + 1] if end in row else row for row in rows]
    answer = {"loop_ms": ms, "work": sum(len(row) for row in rows), "prompt_ms": prompt_ms}
    return answer | ({"check": ended} if spec["config"]["weight_dtype"] == "float32" else {})


def serve(build):
    """build(spec) gives (read, step, versions): read(prompts) forgets what was and reads all but the last tokens,
    step(tokens) reads one token a row and gives the next ones."""

    def start(spec):
        read, step, versions = build(spec)
        texts = prompts(spec)

        def loop(_):
            begin = time.monotonic()
            read([text[:-1] for text in texts])
            filled = time.monotonic()
            tokens, rows = [text[-1] for text in texts], [[] for _ in texts]
            for _ in range(spec["with"]["tokens"]):
                tokens = step(tokens)
                for row, token in zip(rows, tokens):
                    row.append(token)
            return figures(spec, 1e3 * (time.monotonic() - filled), rows, 1e3 * (filled - begin))

        return loop, loop("") | {"versions": versions}

    driver.serve(start)
