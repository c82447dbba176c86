"""What the drivers of tokenizing share. A workload's `with` has the tokenizer's folder, and the `files` (patterns) whose
text is cut at ends of lines into documents of at most `document_bytes`. Every document is encoded by itself, on one
thread; the ids must be equal, which is told by a hash of them and of where each document ends.
"""
import array, glob, hashlib, os, time
import driver


def documents(spec):
    w, texts = spec["with"], []
    paths = {path for pattern in w["files"] for path in glob.glob(os.path.join(spec["root"], pattern), recursive=True)}
    for path in sorted(paths):
        text = b""
        with open(path, "rb") as file:
            for line in file:
                if text and len(text) + len(line) > w["document_bytes"]:
                    texts.append(text)
                    text = b""
                text += line
        texts.append(text)
    return texts


def serve(build):
    """build(spec, documents) gives (encode, ids, versions): encode() encodes all documents; ids() gives the ids that it
    made, all of them in one array('i'), and how many there are up to the end of each document."""

    def start(spec):
        texts = documents(spec)
        encode, ids, versions = build(spec, texts)
        size = sum(map(len, texts))

        def loop(_):
            begin = time.monotonic()
            encode()
            figures = {"loop_ms": 1e3 * (time.monotonic() - begin), "work": size / 1e6}
            all_ids, ends = ids()
            digest = hashlib.sha256(all_ids.tobytes() + array.array("q", ends).tobytes()).hexdigest()
            return figures | {"check": [size, len(all_ids), digest]}

        return loop, loop("") | {"versions": versions}

    driver.serve(start)
