/* Reads the traces that the engine's profiler writes. Invariant: a file is taken as a whole or refused: what
 * is torn, foreign or out of range is an error that names the file and the place. */
#include "cli/profile_data.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "formats/json.h"

typedef struct event {
    const char *category, *name, *detail;
    double begin, duration, flops, bytes;
} event;

static trd_status find_row(cli_profile *p, cli_profile_rows *rows, const event *e, cli_profile_row **found)
{
    for (int i = 0; i < rows->count; i++) {
        *found = &rows->rows[i];
        if (strcmp((*found)->name, e->name) == 0 && strcmp((*found)->detail, e->detail) == 0) return TRD_OK;
    }
    if (rows->count == rows->capacity) {
        int capacity = rows->capacity ? 2 * rows->capacity : 64;
        cli_profile_row *larger = trd__realloc(rows->rows, (size_t)capacity, sizeof *larger);
        if (!larger) return TRD_NO_MEMORY;
        rows->rows = larger;
        rows->capacity = capacity;
    }
    *found = &rows->rows[rows->count];
    **found = (cli_profile_row){.name = trd__arena_strdup(p->arena, e->name),
                                .detail = trd__arena_strdup(p->arena, e->detail)};
    if (!(*found)->name || !(*found)->detail) return TRD_NO_MEMORY;
    rows->count++;
    return TRD_OK;
}

/* A number of 0 or more, of which sums stay finite. */
static trd_status get_amount(trd__json object, const char *key, double *amount)
{
    const double most = 1e30;
    TRD_TRY(trd__json_get_f64(object, key, amount));
    if (*amount >= 0 && *amount <= most) return TRD_OK;
    return trd__json_fail(trd__json_find(object, key), TRD_CORRUPT, "expected 0 to %g, found %g", most,
                          *amount);
}

static trd_status read_event(trd__json json, event *e)
{
    trd__json arguments;
    double read = 0, written = 0;
    bool program = strcmp(e->category, "program") == 0;
    TRD_TRY(trd__json_get_string(json, "name", &e->name));
    TRD_TRY(get_amount(json, "ts", &e->begin));
    TRD_TRY(get_amount(json, "dur", &e->duration));
    TRD_TRY(trd__json_get_object(json, "args", &arguments));
    TRD_TRY(trd__json_get_string(arguments, program ? "fingerprint" : "kernel", &e->detail));
    TRD_TRY(trd__json_opt_f64(arguments, "flops", &e->flops));
    TRD_TRY(trd__json_opt_f64(arguments, "bytes_read", &read));
    TRD_TRY(trd__json_opt_f64(arguments, "bytes_written", &written));
    e->bytes = read + written;
    return TRD_OK;
}

static trd_status add_events(cli_profile *p, trd__json events)
{
    double first = -1, last = 0;
    for (trd__json v = trd__json_first(events); trd__json_exists(v); v = trd__json_next(v)) {
        cli_profile_row *row;
        event e = {.category = ""};
        TRD_TRY(trd__json_as_object(v));
        TRD_TRY(trd__json_opt_string(v, "cat", &e.category));
        bool program = strcmp(e.category, "program") == 0;
        if (!program && strcmp(e.category, "op") != 0) continue;
        TRD_TRY(read_event(v, &e));
        TRD_TRY(find_row(p, program ? &p->programs : &p->ops, &e, &row));
        row->calls++;
        row->total_us += e.duration;
        row->flops += e.flops;
        row->bytes += e.bytes;
        if (!program) continue;
        p->busy_us += e.duration;
        if (first < 0 || e.begin < first) first = e.begin;
        if (e.begin + e.duration > last) last = e.begin + e.duration;
    }
    p->extent_us += first < 0 ? 0 : last - first;
    return TRD_OK;
}

static trd_status add_document(cli_profile *p, trd__json root, const char *path)
{
    trd__json about = trd__json_find(root, "otherData"), events;
    const char *program = "";
    int64_t micro_steps, dropped;
    TRD_TRY(trd__json_as_object(root));
    if (trd__json_exists(about)) TRD_TRY(trd__json_opt_string(about, "program", &program));
    if (strcmp(program, "treadle") != 0)
        return trd__fail(TRD_CORRUPT, "%s: expected a trace that treadle's profiler wrote, found other JSON",
                         path);
    TRD_TRY(trd__json_get_i64(about, "micro_steps", &micro_steps));
    TRD_TRY(trd__json_get_i64(about, "workers", &p->workers));
    TRD_TRY(trd__json_get_i64(about, "dropped_spans", &dropped));
    TRD_TRY(trd__json_get_array(root, "traceEvents", &events));
    p->micro_steps += micro_steps;
    p->dropped_spans += dropped;
    p->windows++;
    return add_events(p, events);
}

static trd_status add_file(cli_profile *p, const char *path)
{
    trd__json_doc *document;
    TRD_TRY(trd__json_parse_file(path, &document));
    trd_status status = add_document(p, trd__json_root(document), path);
    trd__json_free(document);
    return status;
}

static bool is_trace(const char *name)
{
    size_t length = strlen(name);
    return strncmp(name, "trace-", 6) == 0 && length > 11 && strcmp(name + length - 5, ".json") == 0;
}

/* Every trace of folder, in any order; none is no failure. */
static trd_status add_folder(cli_profile *p, const char *folder)
{
    DIR *listing = opendir(folder);
    if (!listing && errno == ENOENT) return TRD_OK;
    if (!listing) return trd__fail(TRD_IO, "opening %s: %s", folder, strerror(errno));
    trd_status status = TRD_OK;
    for (struct dirent *entry; status == TRD_OK && (entry = readdir(listing));) {
        if (!is_trace(entry->d_name)) continue;
        char *path = trd__path_join(folder, entry->d_name);
        status = path ? add_file(p, path) : TRD_NO_MEMORY;
        trd__free(path);
    }
    closedir(listing);
    return status;
}

static int by_time(const void *left, const void *right)
{
    const cli_profile_row *a = left, *b = right;
    if (a->total_us < b->total_us || a->total_us > b->total_us) return a->total_us < b->total_us ? 1 : -1;
    int order = strcmp(a->name, b->name);
    return order ? order : strcmp(a->detail, b->detail);
}

static void sort(cli_profile_rows *rows)
{
    if (rows->count) qsort(rows->rows, (size_t)rows->count, sizeof *rows->rows, by_time);
}

static trd_status read_all(const char *path, cli_profile *p)
{
    if (!trd__is_directory(path)) return add_file(p, path);
    char *inside = trd__path_join(path, "profile");
    if (!inside) return TRD_NO_MEMORY;
    trd_status status = add_folder(p, trd__is_directory(inside) ? inside : path);
    trd__free(inside);
    if (status == TRD_OK && p->windows == 0)
        return trd__fail(
            TRD_NOT_FOUND,
            "%s: expected traces in its folder profile, found none; train with profiler: trace in "
            "the config, for more micro-steps than skip_first_n_steps_for_profiler",
            path);
    return status;
}

trd_status cli_profile_read(const char *path, cli_profile *profile)
{
    *profile = (cli_profile){.arena = trd__arena_create()};
    trd_status status = profile->arena ? read_all(path, profile) : TRD_NO_MEMORY;
    if (status != TRD_OK) {
        cli_profile_free(profile);
        return status;
    }
    sort(&profile->programs);
    sort(&profile->ops);
    return TRD_OK;
}

void cli_profile_free(cli_profile *profile)
{
    trd__free(profile->ops.rows);
    trd__free(profile->programs.rows);
    trd__arena_free(profile->arena);
    *profile = (cli_profile){0};
}
