/* The list of mistaken files. A safetensors file may begin with any bytes (its header's length), so readers
 * ask only about a file that they have already refused. */
#include "formats/sniff.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *prefix;
    size_t bytes;
    const char *message;
} mistakes[] = {
#define PREFIX(text) text, sizeof text - 1
    {PREFIX("version https://git-lfs"),
     "is a Git LFS pointer, not the file itself; run `git lfs pull` or download the file again"},
    {PREFIX("<!doctype"), "is an HTML page, not the file itself; use the address that downloads the file"},
    {PREFIX("<html"), "is an HTML page, not the file itself; use the address that downloads the file"},
    {PREFIX("<?xml"), "is an XML answer of a server, not the file itself; download it again"},
    {PREFIX("PK\x03\x04"),
     "is a ZIP archive (a PyTorch pickle, perhaps), which is never loaded because it can run "
     "code; convert it to safetensors"},
    {PREFIX("\x80\x02"), "is a Python pickle, which is never loaded because it can run code; convert it to "
                         "safetensors"},
    {PREFIX("\x80\x03"), "is a Python pickle, which is never loaded because it can run code; convert it to "
                         "safetensors"},
    {PREFIX("\x80\x04"), "is a Python pickle, which is never loaded because it can run code; convert it to "
                         "safetensors"},
    {PREFIX("\x1f\x8b"), "is compressed with gzip; decompress it first"},
    {PREFIX("\x28\xb5\x2f\xfd"), "is compressed with zstd; decompress it first"},
    {PREFIX("\x89HDF\r\n"), "is an HDF5 file (Keras weights, perhaps), which is not supported; convert it to "
                            "safetensors"},
    {PREFIX("\x93NUMPY"), "is a NumPy array, which is not supported; convert it to safetensors"},
#undef PREFIX
};

const char *trd__sniff_mistake(const void *data, size_t bytes)
{
    const char *text = data;
    size_t skipped = 0; /* servers like to begin a page with blank lines */
    while (skipped < bytes && skipped < 64 && text[skipped] != '\0' && strchr(" \t\r\n", text[skipped]))
        skipped++;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        bool page = mistakes[i].prefix[0] == '<';
        size_t start = page ? skipped : 0;
        if (bytes - start < mistakes[i].bytes) continue;
        if (page ? strncasecmp(text + start, mistakes[i].prefix, mistakes[i].bytes) == 0
                 : memcmp(text, mistakes[i].prefix, mistakes[i].bytes) == 0)
            return mistakes[i].message;
    }
    return NULL;
}
