/* treadle checkpoint: which checkpoints a run has, whether they are intact, and putting their folder right.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/store.h"
#include "cli/cli.h"

/* What one subcommand sees while it goes over a folder. */
typedef struct visit {
    char *folder; /* of the checkpoints */
    trd__store *store;
    trd__json_writer *json; /* NULL: text */
    const char *name;       /* of the checkpoint that is looked at */
    int problems, damaged;
    bool quiet; /* problems are counted only */
    bool dry;   /* repair changes nothing */
} visit;

static void put_damage(void *user, const char *file, const char *tensor, const char *message)
{
    visit *v = user;
    v->problems++;
    if (v->json) {
        trd__json_open_object(v->json);
        trd__json_put_string(v->json, "file", file);
        if (*tensor) trd__json_put_string(v->json, "tensor", tensor);
        trd__json_put_string(v->json, "problem", message);
        trd__json_close(v->json);
    } else if (!v->quiet) { /* a message begins with what is damaged, which may be the file itself */
        bool named = strncmp(message, file, strlen(file)) == 0;
        printf("%s: %s%s%s\n", v->name, named ? "" : file, named ? "" : ": ", message);
    }
}

static const char *age(int64_t saved_at, char *text, size_t bytes)
{
    int64_t seconds = (int64_t)time(NULL) - saved_at;
    if (!saved_at)
        snprintf(text, bytes, "unknown");
    else if (seconds < 120)
        snprintf(text, bytes, "%" PRId64 " s", seconds < 0 ? 0 : seconds);
    else if (seconds < 7200)
        snprintf(text, bytes, "%" PRId64 " min", seconds / 60);
    else if (seconds < 172800)
        snprintf(text, bytes, "%" PRId64 " h", seconds / 3600);
    else
        snprintf(text, bytes, "%" PRId64 " days", seconds / 86400);
    return text;
}

static void open_json(visit *v, trd__store_name name, const trd__stored_size *size)
{
    trd__json_open_object(v->json);
    trd__json_put_string(v->json, "name", v->name);
    trd__json_put_i64(v->json, "step", name.step);
    trd__json_put_i64(v->json, "micro_batches", name.micro);
    trd__json_put_i64(v->json, "bytes", (int64_t)size->bytes);
    trd__json_put_i64(v->json, "saved_at", size->saved_at);
    trd__json_write_key(v->json, "problems");
    trd__json_open_array(v->json);
}

static void close_json(visit *v, const char *state)
{
    trd__json_close(v->json);
    trd__json_put_string(v->json, "state", state);
    trd__json_close(v->json);
}

static void print_row(const visit *v, trd__store_name name, const trd__stored_size *size, const char *state)
{
    char kind[48] = "end of step", old[32];
    if (name.micro) snprintf(kind, sizeof kind, "inside, after %" PRId64, name.micro);
    printf("%-16s %-18s %10s %10s  %s\n", v->name, kind, cli_bytes(size->bytes),
           age(size->saved_at, old, sizeof old), state);
}

static void print_heads(void)
{
    printf("%-16s %-18s %10s %10s  %s\n", "checkpoint", "kind", "size", "age", "state");
}

/* Verifies one checkpoint; *state says how it is. What a running engine removed meanwhile is no damage. */
static trd_status verify_one(visit *v, const char *path, const char **state)
{
    trd_status status = trd__stored_verify(path, put_damage, v);
    if (status == TRD_NO_MEMORY) return status;
    bool unreadable = status != TRD_OK && status != TRD_CORRUPT;
    if (!trd__name_exists(path)) {
        v->problems = 0;
        *state = "removed meanwhile";
        return TRD_OK;
    }
    if (unreadable) put_damage(v, "manifest.json", "", trd_error_message());
    *state = unreadable ? "unreadable" : v->problems ? "damaged" : "intact";
    return TRD_OK;
}

static trd_status visit_one(visit *v, trd__store_name name)
{
    char text[TRD__STORE_NAME_TEXT];
    const char *state;
    trd__stored_size size;
    v->name = trd__store_name_text(name, text);
    v->problems = 0;
    char *path = trd__path_join(v->folder, v->name);
    trd_status status = path ? trd__stored_measure(path, &size) : TRD_NO_MEMORY;
    if (!status && v->json) open_json(v, name, &size);
    if (!status) status = verify_one(v, path, &state);
    trd__free(path);
    if (status) return status;
    v->damaged += v->problems > 0;
    if (v->json)
        close_json(v, state);
    else if (v->quiet)
        print_row(v, name, &size, state);
    else if (!v->problems)
        printf("%s: %s\n", v->name, state);
    return TRD_OK;
}

/* All checkpoints of the folder, or one (only.step >= 0). */
static trd_status visit_all(visit *v, trd__store_name only, bool table)
{
    trd__store_name *names;
    size_t count;
    v->quiet = table;
    if (only.step >= 0) {
        if (!v->json && table) print_heads();
        return visit_one(v, only);
    }
    TRD_TRY(trd__store_list(v->store, &names, &count));
    trd_status status = TRD_OK;
    if (count == 0 && !table)
        status = trd__fail(TRD_NOT_FOUND, "verifying checkpoints: %s holds none", v->folder);
    if (!v->json && table && count == 0) printf("%s holds no checkpoints\n", v->folder);
    if (!v->json && table && count) print_heads();
    for (size_t i = 0; !status && i < count; i++) status = visit_one(v, names[i]);
    trd__free(names);
    if (!status && !v->json && table && v->damaged)
        printf("`treadle checkpoint verify` says what is damaged, `repair` moves it aside\n");
    return status;
}

static void put_action(void *user, const char *action, const char *path, const char *to)
{
    visit *v = user;
    v->problems++;
    v->damaged += to != NULL;
    if (v->json) {
        trd__json_open_object(v->json);
        trd__json_put_string(v->json, "action", action);
        trd__json_put_string(v->json, "path", path);
        if (to) trd__json_put_string(v->json, "to", to);
        trd__json_close(v->json);
    } else {
        printf("%s%s %s%s%s\n", v->dry ? "would have " : "", action, path, to ? " to " : "", to ? to : "");
    }
}

/* After this repair training would begin afresh, which nobody should find out from its losses. */
static trd_status say_if_none_is_left(const visit *v)
{
    trd__store_name *names;
    size_t count;
    TRD_TRY(trd__store_list(v->store, &names, &count));
    trd__free(names);
    if (count == (v->dry ? (size_t)v->damaged : 0))
        printf("no intact checkpoint is left: training will begin afresh here\n");
    return TRD_OK;
}

/* The lock keeps a running engine's folder, and a save in progress, from being taken for leftovers. */
static trd_status repair(visit *v, bool dry)
{
    int lock = -1;
    v->dry = dry;
    char *file = trd__path_join(v->folder, "lock");
    trd_status status = file ? TRD_OK : TRD_NO_MEMORY;
    bool held = !status && (!dry || trd__file_exists(file)); /* a dry run makes no file */
    trd__free(file);
    if (held) status = trd__store_lock(v->folder, &lock);
    if (!status) status = trd__store_repair(v->store, dry, put_action, v);
    if (lock >= 0) close(lock);
    if (!status && !v->json && v->damaged) status = say_if_none_is_left(v);
    if (!status && !v->json && !v->problems) printf("nothing to repair in %s\n", v->folder);
    return status;
}

/* PATH is a run, a folder of checkpoints, or (not for repair) one checkpoint. */
static trd_status open_folder(visit *v, const char *path, trd__store_name *only)
{
    char *copy = trd__strdup(path);
    if (!copy) return TRD_NO_MEMORY;
    for (size_t end = strlen(copy); end > 1 && copy[end - 1] == '/';) copy[--end] = '\0';
    char *slash = strrchr(copy, '/'), *inside = trd__path_join(copy, "checkpoints");
    *only = (trd__store_name){-1, 0};
    trd_status status = inside ? TRD_OK : TRD_NO_MEMORY;
    if (!status && !trd__is_directory(copy))
        status = trd__fail(TRD_NOT_FOUND, "opening %s: expected a run or a folder of checkpoints, found %s",
                           path, trd__file_exists(copy) ? "a file" : "nothing");
    if (!status && trd__store_parse_name(slash ? slash + 1 : copy, only)) {
        v->folder =
            !slash ? trd__strdup(".") : trd__format("%.*s", slash == copy ? 1 : (int)(slash - copy), copy);
    } else if (!status) {
        v->folder = trd__strdup(trd__is_directory(inside) ? inside : copy);
    }
    trd__free(inside);
    trd__free(copy);
    if (!status && !v->folder) status = TRD_NO_MEMORY;
    return status ? status : trd__store_view(v->folder, &cli_log, &v->store);
}

typedef enum action { VERIFY, LIST, REPAIR, ACTIONS } action;
static const char *const action_names[ACTIONS] = {"verify", "list", "repair"};

static trd_status act(visit *v, action what, bool dry, trd__store_name only)
{
    if (what == REPAIR) return repair(v, dry);
    return visit_all(v, only, what == LIST);
}

static trd_status act_in_json(visit *v, action what, bool dry, trd__store_name only)
{
    trd__json_writer w = {0};
    v->json = &w;
    trd__json_open_object(&w);
    trd__json_put_string(&w, "folder", v->folder);
    if (what == REPAIR) trd__json_put_bool(&w, "dry_run", dry);
    trd__json_write_key(&w, what == REPAIR ? "actions" : "checkpoints");
    trd__json_open_array(&w);
    trd_status status = act(v, what, dry, only);
    trd__json_close(&w);
    if (what != REPAIR) trd__json_put_i64(&w, "damaged", v->damaged);
    trd__json_close(&w);
    if (status == TRD_OK) return cli_print_json(&w);
    trd__json_writer_free(&w);
    return status;
}

static int run(int argc, char **argv)
{
    bool json = false, dry = false;
    const cli_option options[] = {{.name = "--json", .kind = CLI_FLAG, .target = &json},
                                  {.name = "--dry-run", .kind = CLI_FLAG, .target = &dry},
                                  {0}};
    const cli_command *command = &cli_command_checkpoint;
    int words, what = 0, code = cli_parse(command, options, argc, argv, &words);
    if (code) return code;
    while (words && what < ACTIONS && strcmp(argv[0], action_names[what]) != 0) what++;
    if (!words || what == ACTIONS)
        return cli_usage_error(command, "expected list, verify or repair, found %s",
                               words ? argv[0] : "nothing");
    if (words != 2) return cli_usage_error(command, "needs one path, found %d", words - 1);
    if (dry && what != REPAIR) return cli_usage_error(command, "--dry-run is of repair only");
    visit v = {0};
    trd__store_name only;
    trd_status status = open_folder(&v, argv[1], &only);
    if (!status && what == REPAIR && only.step >= 0)
        status = trd__fail(TRD_INVALID_ARGUMENT, "repairing %s: expected a run or a folder of checkpoints",
                           argv[1]);
    if (!status) status = (json ? act_in_json : act)(&v, (action)what, dry, only);
    trd__store_close(v.store);
    trd__free(v.folder);
    if (status) return cli_fail();
    return what == VERIFY && v.damaged ? CLI_FAILED : CLI_DONE;
}

const cli_command cli_command_checkpoint = {
    .name = "checkpoint",
    .summary = "list, verify and repair the checkpoints of a run",
    .usage = "list|verify|repair PATH [--json] [--dry-run]",
    .help =
        "PATH is a run's folder or a folder of checkpoints; list and verify also take one checkpoint.\n\n"
        "  list     every checkpoint: step, whether it is inside a step (after how many micro-batches), "
        "size, "
        "age,\n           and whether it is intact\n"
        "  verify   every checksum; names each damaged file and tensor; exit code 1 when there is damage\n"
        "  repair   removes what interrupted saves left, and renames damaged checkpoints to damaged-step-N, "
        "so\n"
        "           that nobody meets them; intact ones stay as they are. Not while an engine has the "
        "folder\n\n"
        "  --dry-run   repair only says what it would do\n"
        "  --json      one JSON object",
    .run = run};
