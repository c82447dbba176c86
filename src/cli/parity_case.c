/* Reading a reference case. Every array is checked for the common shape (B, T). */
#include "cli/parity_case.h"

#include "base/alloc.h"
#include "base/file.h"

static trd_status read_grid(trd__json grid, parity_case *c, double **out)
{
    TRD_TRY(trd__json_as_array(grid));
    int rows = (int)trd__json_count(grid), length = (int)trd__json_count(trd__json_first(grid));
    if (c->rows == 0) {
        c->rows = rows;
        c->length = length;
    }
    if (rows != c->rows || length != c->length || rows < 1 || length < 1)
        return trd__json_fail(grid, TRD_SHAPE, "expected [%d][%d] numbers, found [%d][%d]", c->rows,
                              c->length, rows, length);
    double *values = trd__arena_alloc(c->arena, (size_t)(rows * length), sizeof *values);
    if (!values) return TRD_NO_MEMORY;
    size_t i = 0;
    for (trd__json row = trd__json_first(grid); trd__json_exists(row); row = trd__json_next(row)) {
        if ((int)trd__json_count(row) != length)
            return trd__json_fail(row, TRD_SHAPE, "expected %d numbers in every row", length);
        for (trd__json v = trd__json_first(row); trd__json_exists(v); v = trd__json_next(v))
            TRD_TRY(trd__json_as_f64(v, &values[i++]));
    }
    *out = values;
    return TRD_OK;
}

static trd_status read_batch(trd__json input, trd__json expected, parity_case *c, parity_batch *batch)
{
    double *tokens, *segments, *weights;
    TRD_TRY(read_grid(trd__json_find(input, "tokens"), c, &tokens));
    TRD_TRY(read_grid(trd__json_find(input, "segment_ids"), c, &segments));
    TRD_TRY(read_grid(trd__json_find(input, "loss_weights"), c, &weights));
    TRD_TRY(read_grid(trd__json_find(expected, "token_logps"), c, &batch->logprobs));
    TRD_TRY(trd__json_get_f64(expected, "loss_sum", &batch->loss_sum));
    TRD_TRY(trd__json_get_f64(expected, "denominator", &batch->denominator));
    size_t count = (size_t)(c->rows * c->length);
    batch->tokens = trd__arena_alloc(c->arena, count, sizeof *batch->tokens);
    batch->segments = trd__arena_alloc(c->arena, count, sizeof *batch->segments);
    batch->weights = trd__arena_alloc(c->arena, count, sizeof *batch->weights);
    if (!batch->tokens || !batch->segments || !batch->weights) return TRD_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        batch->tokens[i] = (int32_t)tokens[i];
        batch->segments[i] = (int32_t)segments[i];
        batch->weights[i] = (float)weights[i];
    }
    return TRD_OK;
}

static trd_status read_batches(parity_case *c, trd__json expected)
{
    trd__json input = trd__json_root(c->batches_doc), micro;
    TRD_TRY(trd__json_as_array(input));
    TRD_TRY(trd__json_get_array(expected, "micro_batches", &micro));
    c->batch_count = (int)trd__json_count(input);
    if (c->batch_count < 1 || (int)trd__json_count(micro) != c->batch_count)
        return trd__json_fail(micro, TRD_SHAPE, "expected %d micro-batches as in batches.json",
                              c->batch_count);
    c->batches = trd__arena_alloc(c->arena, (size_t)c->batch_count, sizeof *c->batches);
    if (!c->batches) return TRD_NO_MEMORY;
    trd__json b = trd__json_first(input), m = trd__json_first(micro);
    for (int i = 0; i < c->batch_count; i++, b = trd__json_next(b), m = trd__json_next(m))
        TRD_TRY(read_batch(b, m, c, &c->batches[i]));
    return TRD_OK;
}

static trd_status read_steps(parity_case *c, trd__json run, parity_run *out)
{
    trd__json steps;
    TRD_TRY(trd__json_get_array(run, "steps", &steps));
    out->step_count = (int)trd__json_count(steps);
    out->steps = trd__arena_alloc(c->arena, (size_t)out->step_count + 1, sizeof *out->steps);
    if (!out->steps) return TRD_NO_MEMORY;
    parity_step *s = out->steps;
    for (trd__json step = trd__json_first(steps); trd__json_exists(step); step = trd__json_next(step), s++) {
        TRD_TRY(trd__json_get_f64(step, "loss_sum", &s->loss_sum));
        TRD_TRY(trd__json_get_f64(step, "denominator", &s->denominator));
        TRD_TRY(trd__json_get_f64(step, "loss", &s->loss));
        TRD_TRY(trd__json_get_f64(step, "raw_grad_norm", &s->raw_grad_norm));
        s->grad_l2 = trd__json_find(step, "grad_l2");
    }
    if (out->accumulation < 1 || out->step_count * out->accumulation > c->batch_count)
        return trd__json_fail(run, TRD_SHAPE, "%d steps of %lld micro-batches do not fit %d micro-batches",
                              out->step_count, (long long)out->accumulation, c->batch_count);
    return TRD_OK;
}

static trd_status read_run(parity_case *c, trd__json run, parity_run *out)
{
    *out = (parity_run){.name = trd__json_key(run), .b1 = 0.9, .b2 = 0.95, .eps = 1e-8};
    TRD_TRY(trd__json_get_string(run, "optimizer", &out->optimizer));
    TRD_TRY(trd__json_get_f64(run, "learning_rate", &out->learning_rate));
    TRD_TRY(trd__json_get_f64(run, "gradient_clipping_threshold", &out->clipping));
    TRD_TRY(trd__json_get_i64(run, "gradient_accumulation_steps", &out->accumulation));
    TRD_TRY(trd__json_opt_f64(run, "adam_b1", &out->b1));
    TRD_TRY(trd__json_opt_f64(run, "adam_b2", &out->b2));
    TRD_TRY(trd__json_opt_f64(run, "adam_eps", &out->eps));
    TRD_TRY(trd__json_opt_f64(run, "adam_weight_decay", &out->weight_decay));
    TRD_TRY(trd__json_get_object(run, "final_param_l2", &out->param_l2));
    TRD_TRY(trd__json_get_object(run, "final_param_sum", &out->param_sum));
    TRD_TRY(trd__json_get_object(run, "final_delta_l2", &out->delta_l2));
    return read_steps(c, run, out);
}

static trd_status read_case(parity_case *c)
{
    trd__json expected = trd__json_root(c->expected_doc), runs;
    TRD_TRY(trd__json_opt_string(expected, "source", &c->source));
    TRD_TRY(read_batches(c, expected));
    TRD_TRY(trd__json_get_object(expected, "runs", &runs));
    c->runs = trd__arena_alloc(c->arena, trd__json_count(runs) + 1, sizeof *c->runs);
    if (!c->runs) return TRD_NO_MEMORY;
    for (trd__json run = trd__json_first(runs); trd__json_exists(run); run = trd__json_next(run))
        TRD_TRY(read_run(c, run, &c->runs[c->run_count++]));
    return TRD_OK;
}

static trd_status parse(const char *folder, const char *name, trd__json_doc **doc)
{
    char *path = trd__path_join(folder, name);
    trd_status status = path ? trd__json_parse_file(path, doc) : TRD_NO_MEMORY;
    trd__free(path);
    return status;
}

trd_status parity_case_open(const char *folder, parity_case *c)
{
    *c = (parity_case){.arena = trd__arena_create()};
    if (!c->arena) return TRD_NO_MEMORY;
    TRD_TRY(parse(folder, "batches.json", &c->batches_doc));
    TRD_TRY(parse(folder, "expected.json", &c->expected_doc));
    return read_case(c);
}

void parity_case_close(parity_case *c)
{
    trd__json_free(c->expected_doc);
    trd__json_free(c->batches_doc);
    trd__arena_free(c->arena);
}
