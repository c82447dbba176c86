/* treadle inspect: what is inside any weights file, Hugging Face folder or checkpoint. */
#include <inttypes.h>
#include <string.h>

#include <treadle/treadle.h>

#include "cli/cli.h"

/* A value on one line: runs of white space become one space, other control characters (a file may hold any) a
 * question mark, and what is long is cut between characters. */
static void print_value(const char *value)
{
    enum { SHOWN = 300 };
    int shown = 0;
    for (; *value && (shown < SHOWN || (*value & 0xC0) == 0x80); shown++, value++) {
        if (strchr(" \t\r\n", *value)) {
            value += strspn(value, " \t\r\n") - 1;
            putchar(' ');
        } else {
            putchar((unsigned char)*value < 0x20 || *value == 0x7F ? '?' : *value);
        }
    }
    puts(*value ? "..." : "");
}

static void print_text(const trd_contents *c)
{
    uint64_t total = 0;
    const char *key, *value;
    printf("%s: %s\n", trd_contents_path(c), trd_contents_kind(c));
    for (size_t i = 0; i < trd_contents_metadata_count(c); i++) {
        trd_contents_metadata_at(c, i, &key, &value);
        printf("  %s: ", key);
        print_value(value);
    }
    for (size_t i = 0; i < trd_contents_tensor_count(c); i++) {
        trd_contents_tensor t = trd_contents_tensor_at(c, i);
        char shape[128] = "";
        int used = 0;
        for (int d = 0; d < t.shape.rank; d++)
            used += snprintf(shape + used, sizeof shape - (size_t)used, d ? ", %" PRId64 : "%" PRId64,
                             t.shape.dim[d]);
        printf("%-60s %-5s (%s) %s\n", t.name, t.type, shape, cli_bytes(t.bytes));
        total += t.bytes;
    }
    printf("%zu tensors, %s\n", trd_contents_tensor_count(c), cli_bytes(total));
}

static trd_status print_json(const trd_contents *c)
{
    trd__json_writer w = {0};
    const char *key, *value;
    trd__json_open_object(&w);
    trd__json_put_string(&w, "path", trd_contents_path(c));
    trd__json_put_string(&w, "kind", trd_contents_kind(c));
    trd__json_write_key(&w, "metadata");
    trd__json_open_object(&w);
    for (size_t i = 0; i < trd_contents_metadata_count(c); i++) {
        trd_contents_metadata_at(c, i, &key, &value);
        trd__json_put_string(&w, key, value);
    }
    trd__json_close(&w);
    trd__json_write_key(&w, "tensors");
    trd__json_open_array(&w);
    for (size_t i = 0; i < trd_contents_tensor_count(c); i++) {
        trd_contents_tensor t = trd_contents_tensor_at(c, i);
        trd__json_open_object(&w);
        trd__json_put_string(&w, "name", t.name);
        trd__json_put_string(&w, "type", t.type);
        trd__json_write_key(&w, "shape");
        trd__json_open_array(&w);
        for (int d = 0; d < t.shape.rank; d++) trd__json_write_i64(&w, t.shape.dim[d]);
        trd__json_close(&w);
        trd__json_put_i64(&w, "bytes", (int64_t)t.bytes);
        trd__json_close(&w);
    }
    trd__json_close(&w);
    trd__json_close(&w);
    return cli_print_json(&w);
}

static int run(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{.name = "--json", .kind = CLI_FLAG, .target = &json}, {0}};
    int words, code = cli_parse(&cli_command_inspect, options, argc, argv, &words);
    if (code) return code;
    if (words != 1) return cli_usage_error(&cli_command_inspect, "needs one path, found %d", words);
    trd_contents *contents;
    trd_status status = trd_contents_open(argv[0], &contents);
    if (status) return cli_fail();
    if (json)
        status = print_json(contents);
    else
        print_text(contents);
    trd_contents_close(contents);
    return status ? cli_fail() : CLI_DONE;
}

const cli_command cli_command_inspect = {
    .name = "inspect",
    .summary = "what is inside a weights file, a Hugging Face folder or a checkpoint",
    .usage = "PATH [--json]",
    .help =
        "Lists metadata and every tensor: name, type, shape, size. PATH is a .safetensors or .gguf file, a\n"
        "Hugging Face folder, one checkpoint, or a run or folder of checkpoints (the newest counts).\n\n"
        "  --json   one JSON object",
    .run = run};
