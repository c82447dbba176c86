/* JSON: whatever parses is written back to a text that parses to the same. */
#include <string.h>

#include "formats/json.h"
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    trd__json_doc *doc, *again;
    trd__json_writer first = {0}, second = {0};
    if (trd__json_parse((const char *)data, bytes, "fuzz", &doc)) return 0;
    trd__json_write_value(&first, trd__json_root(doc));
    if (trd__json_finish(&first) == TRD_OK) { /* else nested deeper than the writer goes */
        fuzz_require(trd__json_parse(first.text, first.bytes, "again", &again) == TRD_OK,
                     "written JSON parses");
        trd__json_write_value(&second, trd__json_root(again));
        fuzz_require(trd__json_finish(&second) == TRD_OK && strcmp(first.text, second.text) == 0,
                     "writing is a fixed point");
        trd__json_free(again);
    }
    trd__json_writer_free(&second);
    trd__json_writer_free(&first);
    trd__json_free(doc);
    return 0;
}
