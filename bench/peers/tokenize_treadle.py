"""Treadle's side of tokenizing: the shared library beside the program, one call of trd_tokenizer_encode a document."""
import array, ctypes, os
import tokenizing


class Ids(ctypes.Structure):
    """trd_ids of include/treadle/tokenizer.h."""
    _fields_ = [("ids", ctypes.POINTER(ctypes.c_int32)), ("loss_mask", ctypes.c_void_p), ("count", ctypes.c_size_t),
                ("capacity", ctypes.c_size_t)]


def build(spec, texts):
    library = ctypes.CDLL(os.path.join(os.path.dirname(spec["treadle"]), "libtreadle.so"))
    library.trd_error_message.restype = ctypes.c_char_p
    library.trd_tokenizer_encode.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(Ids)]
    handle, ids, ends = ctypes.c_void_p(), Ids(), []

    def check(status):
        if status:
            raise RuntimeError(library.trd_error_message().decode())

    check(library.trd_tokenizer_open(os.path.join(spec["root"], spec["with"]["tokenizer"]).encode(), ctypes.byref(handle)))

    def encode():
        ids.count = 0
        ends.clear()
        for text in texts:
            check(library.trd_tokenizer_encode(handle, text, len(text), ids))
            ends.append(ids.count)

    return encode, lambda: (array.array("i", ids.ids[:ids.count]), ends), {}


tokenizing.serve(build)
