/* treadle version */
#include <treadle/treadle.h>

#include "cli/cli.h"

static int run(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{.name = "--json", .kind = CLI_FLAG, .target = &json}, {0}};
    int words, code = cli_parse(&cli_command_version, options, argc, argv, &words);
    if (code) return code;
    if (words) return cli_usage_error(&cli_command_version, "takes no argument, found \"%s\"", argv[0]);
    if (!json) {
        printf("treadle %s (API %d)\n", trd_version(), TRD_API_VERSION);
        return CLI_DONE;
    }
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    trd__json_put_string(&w, "version", trd_version());
    trd__json_put_i64(&w, "api", TRD_API_VERSION);
    trd__json_close(&w);
    return cli_print_json(&w) ? cli_fail() : CLI_DONE;
}

const cli_command cli_command_version = {
    .name = "version",
    .summary = "print the version",
    .usage = "[--json]",
    .help = "Prints the version of the program and of the library's interface.",
    .run = run};
