/* treadle parity: runs a reference case and says how far every figure is from the expected one. A figure's
 * error is given in units of its tolerance, so 1 is the limit. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "cli/cli.h"
#include "cli/parity_case.h"

/* X(field, label) */
#define CHECKS(X)                                                                                            \
    X(losses, "losses")                                                                                      \
    X(logprobs, "log-probabilities")                                                                         \
    X(gradient_norm, "gradient norm")                                                                        \
    X(grad_l2, "gradients by parameter")                                                                     \
    X(param_l2, "final parameters, norm")                                                                    \
    X(param_sum, "final parameters, sum")                                                                    \
    X(delta_l2, "movement of parameters")

enum {
#define CHECK_ENUM(field, label) CHECK_##field,
    CHECKS(CHECK_ENUM)
#undef CHECK_ENUM
        CHECK_COUNT
};
static const struct {
    const char *name, *label;
} checks[] = {
#define CHECK_ROW(field, label) {#field, label},
    CHECKS(CHECK_ROW)
#undef CHECK_ROW
};

/* Relative unless said; 0 means that the figure is not judged. */
typedef struct tolerances {
    const char *source; /* start of expected.json's source; "" for PyTorch float64 cases */
    trd_dtype dtype;
    double loss, logprob_absolute, norm, norm_of_global, param_l2, param_sum, delta, delta_root;
    int norm_steps; /* steps whose gradient norm is held to norm; later ones to late_norm */
    double late_norm;
} tolerances;

static const tolerances known[] = {
    {"recorded from Tunix", TRD_F32, 1e-6, 1e-4, 1e-5, 1e-6, 2e-6, 1e-4, 1e-3, 1e-7, INT_MAX, 0},
    {"recorded from MaxText", TRD_F32, 1e-6, 1e-4, 1e-5, 1e-6, 1e-5, 1e-4, 2e-3, 1e-7, 2, 1e-4},
    {"", TRD_F32, 2e-5, 1e-4, 1e-4, 1e-6, 1e-4, 1e-4, 2e-3, 1e-7, INT_MAX, 0},
    {"", TRD_BF16, 1e-2, 0, 3e-2, 1e-6, 0, 0, 0, 0, 1, 0},
};

/* Worst error of each kind, in units of its tolerance. */
typedef struct outcome {
    double worst[CHECK_COUNT];
    bool checked[CHECK_COUNT]; /* some figure of the kind was judged */
} outcome;

typedef struct session {
    const char *folder;
    const parity_case *c;
    const tolerances *limits;
    trd_dtype dtype;
    const char *backend, *plugin_path, *cache; /* NULL: chosen; nowhere */
    trd_mesh_options mesh;
    bool scan;
    int threads;
} session;

static void note(outcome *o, int check, double error, double tolerance)
{
    if (tolerance == 0) return;
    double units = fabs(error) / tolerance;
    if (!(units <= o->worst[check])) o->worst[check] = units; /* a NaN is kept */
    o->checked[check] = true;
}

static trd_batch batch_of(const parity_case *c, const parity_batch *b)
{
    return (trd_batch){.rows = c->rows,
                       .length = c->length,
                       .token_ids = b->tokens,
                       .segment_ids = b->segments,
                       .loss_weights = b->weights};
}

static trd_status open_engine(const session *s, const parity_run *run, trd_engine **engine)
{
    trd_engine_options o = trd_engine_defaults();
    o.load_parameters_path = s->folder;
    o.dtype = o.weight_dtype = s->dtype;
    o.rows = s->c->rows;
    o.length = s->c->length;
    o.backend = s->backend;
    o.plugin_path = s->plugin_path;
    o.compile_cache_directory = s->cache;
    o.scan_layers = s->scan;
    o.mesh = s->mesh;
    o.matmul_precision = TRD_MATMUL_HIGHEST;
    o.num_threads = s->threads;
    o.steps = run->step_count;
    o.gradient_accumulation_steps = (int)run->accumulation;
    o.gradient_clipping_threshold = run->clipping;
    o.checkpoint_directory = NULL;
    o.optimizer = (trd_optimizer_options){.type = run->optimizer,
                                          .b1 = run->b1,
                                          .b2 = run->b2,
                                          .eps = run->eps,
                                          .weight_decay = run->weight_decay,
                                          .mu_dtype = TRD_F32};
    o.schedule = (trd_schedule_options){.type = TRD_SCHEDULE_CONSTANT,
                                        .learning_rate = run->learning_rate,
                                        .schedule_steps = run->step_count};
    o.log = cli_log;
    return trd_engine_create(&o, engine);
}

/* Log-probabilities of every token, and the loss they make, on the parameters at hand. */
static trd_status check_logprobs(const session *s, trd_engine *engine, const parity_batch *b, float *buffer,
                                 outcome *o)
{
    size_t count = (size_t)(s->c->rows * s->c->length);
    double sum = 0;
    trd_batch batch = batch_of(s->c, b);
    TRD_TRY(trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, &batch, buffer,
                                count * sizeof *buffer));
    for (size_t i = 0; i < count; i++) {
        note(o, CHECK_logprobs, (double)buffer[i] - b->logprobs[i], s->limits->logprob_absolute);
        sum -= (double)b->weights[i] * (double)buffer[i];
    }
    note(o, CHECK_losses, sum - b->loss_sum, s->limits->loss * fmax(fabs(b->loss_sum), 1e-6));
    return TRD_OK;
}

static double metric(const trd_step_metrics *m, const char *name)
{
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->metrics[i].name, name) == 0) return m->metrics[i].value;
    return NAN;
}

/* The micro-batch's loss and denominator as an evaluation gives them. */
static trd_status check_evaluation(const session *s, trd_engine *engine, const parity_batch *b, outcome *o)
{
    trd_batch batch = batch_of(s->c, b);
    trd_step_metrics m;
    TRD_TRY(trd_engine_eval_begin(engine));
    TRD_TRY(trd_engine_eval_step(engine, &batch));
    TRD_TRY(trd_engine_eval_end(engine));
    TRD_TRY(trd_engine_get_eval_metrics(engine, &m));
    double weights = metric(&m, "total_weights"), sum = metric(&m, "loss") * weights;
    note(o, CHECK_losses, sum - b->loss_sum, s->limits->loss * fmax(fabs(b->loss_sum), 1e-6));
    note(o, CHECK_losses, weights - b->denominator, s->limits->loss * fmax(b->denominator, 1e-6));
    return TRD_OK;
}

/* A whole tensor of a view as doubles; *count elements, freed by the caller. */
static trd_status read_tensor(trd_view view, int i, double **values, size_t *count)
{
    trd_array array = trd_view_describe(view, i);
    *count = (size_t)trd__shape_count(&array.shape);
    void *raw = trd__alloc(*count, trd_dtype_bytes(array.dtype));
    *values = trd__alloc(*count, sizeof **values);
    trd_status status = raw && *values ? trd_view_read(view, i, raw) : TRD_NO_MEMORY;
    for (size_t k = 0; !status && k < *count; k++) (*values)[k] = trd__load(array.dtype, raw, k);
    trd__free(raw);
    if (status) trd__free(*values);
    return status;
}

static double l2(const double *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += values[i] * values[i];
    return sqrt(sum);
}

static trd_status check_gradients(const session *s, trd_engine *engine, const parity_step *step, outcome *o)
{
    trd_view view = trd_engine_gradients(engine);
    double scale = trd_compute_scale(step->denominator, 0, 0);
    for (trd__json e = trd__json_first(step->grad_l2); trd__json_exists(e); e = trd__json_next(e)) {
        double expected, *values;
        size_t count;
        int i = trd_view_find(view, trd__json_key(e));
        if (i < 0) return trd__json_fail(e, TRD_NOT_FOUND, "the model has no such parameter");
        TRD_TRY(trd__json_as_f64(e, &expected));
        TRD_TRY(read_tensor(view, i, &values, &count));
        double found = scale * l2(values, count);
        trd__free(values);
        note(o, CHECK_grad_l2, found - expected,
             s->limits->norm * expected + s->limits->norm_of_global * step->raw_grad_norm);
    }
    return TRD_OK;
}

static trd_status run_step(const session *s, trd_engine *engine, const parity_run *run, int number,
                           outcome *o)
{
    const parity_step *step = &run->steps[number];
    for (int64_t i = 0; i < run->accumulation; i++) {
        trd_batch batch = batch_of(s->c, &s->c->batches[number * run->accumulation + i]);
        TRD_TRY(trd_engine_fwd_bwd(engine, &batch));
    }
    if (number == 0) TRD_TRY(check_gradients(s, engine, step, o));
    TRD_TRY(trd_engine_update(engine));
    trd_step_metrics m;
    TRD_TRY(trd_engine_get_metrics(engine, false, &m));
    double loss = metric(&m, "loss"), weights = metric(&m, "total_weights"),
           norm = metric(&m, "gradient_norm");
    note(o, CHECK_losses, loss - step->loss, s->limits->loss * fmax(fabs(step->loss), 1e-6));
    note(o, CHECK_losses, weights - step->denominator, s->limits->loss * fmax(step->denominator, 1e-6));
    double limit = number < s->limits->norm_steps ? s->limits->norm : s->limits->late_norm;
    note(o, CHECK_gradient_norm, norm - step->raw_grad_norm, limit * fmax(step->raw_grad_norm, 1e-6));
    return TRD_OK;
}

static double number_at(trd__json object, const char *key)
{
    double value = NAN;
    trd__json_opt_f64(object, key, &value);
    return value;
}

static void check_parameter(const session *s, const parity_run *run, const char *name, const double *before,
                            const double *after, size_t count, outcome *o)
{
    double sum = 0, moved = 0, root = sqrt((double)count);
    for (size_t i = 0; i < count; i++) {
        sum += after[i];
        moved += (after[i] - before[i]) * (after[i] - before[i]);
    }
    double norm = number_at(run->param_l2, name), delta = number_at(run->delta_l2, name);
    note(o, CHECK_param_l2, l2(after, count) - norm, s->limits->param_l2 * norm);
    note(o, CHECK_param_sum, sum - number_at(run->param_sum, name), s->limits->param_sum * norm * root);
    double gradient = number_at(run->steps[0].grad_l2, name);
    if (gradient < 1e-4 * run->steps[0].raw_grad_norm)
        return; /* Adam turns its rounding noise into movement */
    note(o, CHECK_delta_l2, sqrt(moved) - delta, s->limits->delta * delta + s->limits->delta_root * root);
}

static trd_status check_parameters(const session *s, const parity_run *run, trd_engine *engine,
                                   double **before, outcome *o)
{
    trd_view view = trd_engine_params(engine);
    for (int i = 0; i < trd_view_count(view); i++) {
        double *after;
        size_t count;
        TRD_TRY(read_tensor(view, i, &after, &count));
        check_parameter(s, run, trd_view_describe(view, i).name, before[i], after, count, o);
        trd__free(after);
    }
    return TRD_OK;
}

static trd_status run_steps(const session *s, const parity_run *run, trd_engine *engine, outcome *o)
{
    trd_view view = trd_engine_params(engine);
    int count = trd_view_count(view);
    double **before = trd__calloc((size_t)count, sizeof *before);
    trd_status status = before ? TRD_OK : TRD_NO_MEMORY;
    size_t elements;
    for (int i = 0; !status && i < count; i++) status = read_tensor(view, i, &before[i], &elements);
    for (int i = 0; !status && i < run->step_count; i++) status = run_step(s, engine, run, i, o);
    if (!status) status = check_parameters(s, run, engine, before, o);
    for (int i = 0; before && i < count; i++) trd__free(before[i]);
    trd__free(before);
    return status;
}

static trd_status run_one(const session *s, const parity_run *run, outcome *o)
{
    trd_engine *engine = NULL;
    float *buffer = trd__alloc((size_t)(s->c->rows * s->c->length), sizeof *buffer);
    trd_status status = buffer ? open_engine(s, run, &engine) : TRD_NO_MEMORY;
    for (int i = 0; !status && i < s->c->batch_count; i++) {
        status = check_logprobs(s, engine, &s->c->batches[i], buffer, o);
        if (!status) status = check_evaluation(s, engine, &s->c->batches[i], o);
    }
    if (!status) status = run_steps(s, run, engine, o);
    trd_status closed = trd_engine_close(engine);
    trd__free(buffer);
    return status ? status : closed;
}

static bool passed(const outcome *o)
{
    for (int i = 0; i < CHECK_COUNT; i++)
        if (!(o->worst[i] <= 1)) return false;
    return true;
}

static void print_text(const parity_run *run, const outcome *o)
{
    printf("%-10s %s\n", run->name, passed(o) ? "passed" : "FAILED");
    for (int i = 0; i < CHECK_COUNT; i++) {
        if (o->checked[i])
            printf("    %-24s %.3f of the tolerance%s\n", checks[i].label, o->worst[i],
                   o->worst[i] <= 1 ? "" : "  <--");
        else
            printf("    %-24s not checked\n", checks[i].label);
    }
}

static trd_status print_json(const session *s, const outcome *outcomes, bool all)
{
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    trd__json_put_string(&w, "case", s->folder);
    trd__json_put_string(&w, "dtype", trd_dtype_name(s->dtype));
    trd__json_put_string(&w, "unit", "share of the tolerance");
    trd__json_write_key(&w, "runs");
    trd__json_open_object(&w);
    for (int r = 0; r < s->c->run_count; r++) {
        trd__json_write_key(&w, s->c->runs[r].name);
        trd__json_open_object(&w);
        for (int i = 0; i < CHECK_COUNT; i++)
            if (outcomes[r].checked[i]) trd__json_put_f64(&w, checks[i].name, outcomes[r].worst[i]);
        trd__json_put_bool(&w, "passed", passed(&outcomes[r]));
        trd__json_close(&w);
    }
    trd__json_close(&w);
    trd__json_put_bool(&w, "passed", all);
    trd__json_close(&w);
    return cli_print_json(&w);
}

static const tolerances *choose_limits(const parity_case *c, trd_dtype dtype)
{
    const char *source = c->source ? c->source : "";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].dtype == dtype && strncmp(source, known[i].source, strlen(known[i].source)) == 0)
            return &known[i];
    return NULL;
}

static int run_case(session *s, bool json)
{
    outcome *outcomes = trd__calloc((size_t)s->c->run_count + 1, sizeof *outcomes);
    bool all = s->c->run_count > 0;
    trd_status status = outcomes ? TRD_OK : TRD_NO_MEMORY;
    for (int r = 0; !status && r < s->c->run_count; r++) {
        status = run_one(s, &s->c->runs[r], &outcomes[r]);
        if (status) break;
        all = all && passed(&outcomes[r]);
        if (!json) print_text(&s->c->runs[r], &outcomes[r]);
    }
    if (!status && json) status = print_json(s, outcomes, all);
    trd__free(outcomes);
    if (status) return cli_fail();
    return all ? CLI_DONE : CLI_FAILED;
}

/* "data=2,fsdp=2". A case has few rows: what does not divide is done by several devices. */
static bool parse_mesh(const char *text, trd_mesh_options *mesh)
{
    const struct {
        const char *name;
        int *size;
    } axes[] = {{"data", &mesh->ici.data}, {"fsdp", &mesh->ici.fsdp}, {"tensor", &mesh->ici.tensor}};
    mesh->indivisible_batch = TRD_INDIVISIBLE_REPLICATE;
    for (const char *at = text; at;) {
        size_t i = 0, length = strcspn(at, "=");
        while (i < sizeof axes / sizeof *axes &&
               (strlen(axes[i].name) != length || strncmp(axes[i].name, at, length) != 0))
            i++;
        if (i == sizeof axes / sizeof *axes || !at[length]) return false;
        char *end;
        long size = strtol(at + length + 1, &end, 10);
        if (end == at + length + 1 || size < 1 || size > 1024 || (*end && *end != ',')) return false;
        *axes[i].size = (int)size;
        at = *end ? end + 1 : NULL;
    }
    return true;
}

static int run(int argc, char **argv)
{
    bool json = false, scan = false, explicit_mode = false;
    const char *dtype = "float32", *backend = NULL, *plugin_path = NULL, *cache = NULL, *mesh = NULL;
    int64_t threads = 0;
    const cli_option options[] = {
        {.name = "--json", .kind = CLI_FLAG, .target = &json},
        {.name = "--dtype", .kind = CLI_TEXT, .target = &dtype},
        {.name = "--backend", .kind = CLI_TEXT, .target = &backend},
        {.name = "--plugin", .kind = CLI_TEXT, .target = &plugin_path},
        {.name = "--cache", .kind = CLI_TEXT, .target = &cache},
        {.name = "--scan", .kind = CLI_FLAG, .target = &scan},
        {.name = "--mesh", .kind = CLI_TEXT, .target = &mesh},
        {.name = "--explicit", .kind = CLI_FLAG, .target = &explicit_mode},
        {.name = "--threads", .kind = CLI_INT, .target = &threads, .min = 1, .max = 1024},
        {0}};
    int words, code = cli_parse(&cli_command_parity, options, argc, argv, &words);
    if (code) return code;
    if (words != 1) return cli_usage_error(&cli_command_parity, "needs one folder, found %d", words);
    parity_case c;
    session s = {.folder = argv[0],
                 .c = &c,
                 .backend = backend,
                 .plugin_path = plugin_path,
                 .cache = cache,
                 .scan = scan,
                 .threads = (int)threads};
    if (trd_dtype_parse(dtype, &s.dtype) || (s.dtype != TRD_F32 && s.dtype != TRD_BF16))
        return cli_usage_error(&cli_command_parity, "--dtype: expected float32 or bfloat16, found \"%s\"",
                               dtype);
    if (mesh && !parse_mesh(mesh, &s.mesh))
        return cli_usage_error(&cli_command_parity,
                               "--mesh: expected sizes of data, fsdp and tensor such as data=2,fsdp=2, found "
                               "\"%s\"",
                               mesh);
    if (explicit_mode) s.mesh.shard_mode = TRD_SHARD_EXPLICIT;
    if (parity_case_open(argv[0], &c)) {
        code = cli_fail();
    } else {
        s.limits = choose_limits(&c, s.dtype);
        code = run_case(&s, json);
    }
    parity_case_close(&c);
    return code;
}

const cli_command cli_command_parity = {
    .name = "parity",
    .summary = "run a reference case and compare every figure",
    .usage = "FOLDER [--dtype float32|bfloat16] [--backend cpu|pjrt] [--plugin FILE] [--cache FOLDER] "
             "[--scan] [--mesh SIZES] [--explicit] [--threads N] [--json]",
    .help = "FOLDER holds a Hugging Face checkpoint with batches.json and expected.json (docs/parity.md). "
            "Every run in it is\n"
            "repeated; printed is the largest error of each kind in units of its tolerance. Exits 1 beyond a "
            "tolerance.\n\n"
            "  --dtype NAME   number format of weights and compute; bfloat16 has looser tolerances\n"
            "  --backend NAME what runs the programs\n"
            "  --plugin FILE  the PJRT plugin; default: the environment's PJRT_PLUGIN_LIBRARY_PATH\n"
            "  --cache FOLDER keeps compiled programs there\n"
            "  --scan         with scan_layers\n"
            "  --mesh SIZES   over a mesh of devices, for example data=2,fsdp=2\n"
            "  --explicit     with shard_mode: explicit\n"
            "  --threads N    worker threads\n"
            "  --json         one JSON object",
    .run = run};
