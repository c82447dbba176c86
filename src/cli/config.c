/* treadle config: the resolved values of a config, or the table of all keys for docs/config.md. */
#include <string.h>

#include <treadle/treadle.h>

#include "cli/cli.h"

static void print_keys(void)
{
    trd_config_key key;
    const char *section = "";
    printf("# Config keys\n\nMade by `treadle config --keys`. A config is a YAML file of `key: value` lines; "
           "any key can be\n"
           "overridden on the command line as `key=value`. Resume says what a changed value means when a run "
           "goes on\n"
           "from a checkpoint: free (fine), portable (a warning: the last bits may differ) or fixed (an "
           "error).\n");
    for (int i = 0; trd_config_describe(i, &key); i++) {
        if (strcmp(section, key.section) != 0)
            printf("\n## %s\n\n| key | default | values | resume | meaning |\n|---|---|---|---|---|\n",
                   key.section);
        section = key.section;
        printf(*key.preset ? "| `%s` | `%s` | " : "| `%s` | empty%s | ", key.name, key.preset);
        if (*key.choices) {
            for (const char *c = key.choices; *c; c++) printf(*c == '|' ? ", " : "%c", *c);
            if (key.choices[strlen(key.choices) - 1] == '|') printf("empty");
        } else if (key.max != key.min) {
            printf("%s, %.16g to %.16g", key.type, key.min, key.max);
        } else {
            printf("%s", key.type);
        }
        printf(" | %s | %s |\n", key.resume, key.help);
    }
}

static int run(int argc, char **argv)
{
    bool keys = false;
    const cli_option options[] = {{.name = "--keys", .kind = CLI_FLAG, .target = &keys}, {0}};
    int words, code = cli_parse(&cli_command_config, options, argc, argv, &words);
    if (code) return code;
    if (keys) {
        print_keys();
        return CLI_DONE;
    }
    if (!words) return cli_usage_error(&cli_command_config, "needs a config file");
    trd_config *config;
    char *yaml = NULL;
    if (trd_config_load(argv[0], (const char *const *)argv + 1, words - 1, &config)) return cli_fail();
    trd_status status = trd_config_to_yaml(config, &yaml);
    if (!status) fputs(yaml, stdout);
    trd_text_free(yaml);
    trd_config_free(config);
    return status ? cli_fail() : CLI_DONE;
}

const cli_command cli_command_config = {
    .name = "config",
    .summary = "print a config with every key resolved, or the table of keys",
    .usage = "CONFIG.yml [key=value ...] | --keys",
    .help = "Prints every key with the value that `treadle train CONFIG.yml key=value ...` would use.\n\n"
            "  --keys   print the documentation of all keys as Markdown",
    .run = run};
