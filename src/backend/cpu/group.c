/* Running a fused group. Float32 operands are read where they lie and float32 results written where they go;
 * everything else passes through a register's storage, but for sums of squares, which may stream. A result
 * may take over an operand's buffer: such an operand is read for the last time before its tile is written, or
 * the write waits for the tile's end. */
#include "backend/cpu/group.h"

/* Elements from those that are computed to those that are asked for, and elements at once where they pass
 * through no register. */
enum { AHEAD = 2 * TRD__TILE, STREAMED = 16 * TRD__TILE };

typedef struct frame {
    const trd__group *group;
    const trd__cpu_call *call;
    float *reg[TRD__GROUP_REGISTERS];
    bool direct[TRD__KERNEL_RESULTS]; /* by store */
    double *partials;
} frame;

static float *storage(const frame *f, int reg)
{
    return (float *)f->call->worker_scratch + (size_t)reg * TRD__TILE;
}

static int padded(int n)
{
    return (n + TRD__TILE_STEP - 1) & ~(TRD__TILE_STEP - 1);
}

/* Elements [at, at + n) of a broadcast operand: runs along the last axis. */
static void load_strided(const trd__tiles *tiles, const trd__group_load *load, float *out, const void *data,
                         int64_t at, int n)
{
    int last = load->rank - 1;
    while (n > 0) {
        int64_t rest = at / load->dim[last], inner = at % load->dim[last], from = inner * load->stride[last];
        for (int i = last - 1; i >= 0; i--) {
            from += rest % load->dim[i] * load->stride[i];
            rest /= load->dim[i];
        }
        int run = load->dim[last] - inner < n ? (int)(load->dim[last] - inner) : n;
        if (load->stride[last] == 1) {
            tiles->load(out, load->dtype, data, from, run);
        } else if (load->stride[last] == 0) {
            float value = (float)trd__load(load->dtype, data, (size_t)from);
            for (int i = 0; i < run; i++) out[i] = value;
        } else {
            for (int i = 0; i < run; i++)
                out[i] = (float)trd__load(load->dtype, data, (size_t)(from + i * load->stride[last]));
        }
        out += run;
        at += run;
        n -= run;
    }
}

static void load_tile(frame *f, const trd__group_load *load, int64_t at, int n)
{
    if (load->kind == TRD__LOAD_SCALAR || load->kind == TRD__LOAD_CONSTANT) return;
    const void *data = f->call->inputs[load->input];
    if (load->kind == TRD__LOAD_FULL && load->dtype == TRD_F32 && n == padded(n)) {
        f->reg[load->reg] = (float *)(uintptr_t)data + at;
        return;
    }
    float *out = f->reg[load->reg] = storage(f, load->reg);
    if (load->kind == TRD__LOAD_FULL)
        f->group->tiles->load(out, load->dtype, data, at, n);
    else
        load_strided(f->group->tiles, load, out, data, at, n);
    for (int i = n; i < padded(n); i++) out[i] = 0;
}

static void reduce_tile(const frame *f, const trd__group_op *op, int n)
{
    double *partials = f->partials + (size_t)op->reduction * TRD__PARTIALS;
    const float *in = f->reg[op->in[0]];
    if (f->group->reductions[op->reduction].squares)
        f->group->tiles->sum_squares(partials, in, n);
    else
        f->group->tiles->sum(partials, in, n);
}

static void run_op(frame *f, const trd__group_op *op, int64_t at, int n)
{
    const trd__group *g = f->group;
    if (op->streamed && n % TRD__PARTIALS == 0) {
        const trd__group_load *load = &g->loads[op->first_load];
        double *partials = f->partials + (size_t)op->reduction * TRD__PARTIALS;
        g->tiles->stream_squares(partials, load->dtype, f->call->inputs[load->input], at, n);
        return;
    }
    for (int i = 0; i < op->load_count; i++) load_tile(f, &g->loads[op->first_load + i], at, n);
    if (op->reduction >= 0) {
        reduce_tile(f, op, n);
        return;
    }
    const float *in[3] = {f->reg[op->in[0]], f->reg[op->in[1]], f->reg[op->in[2]]};
    float *out = storage(f, op->out);
    if (op->store >= 0 && f->direct[op->store] && n == padded(n))
        out = (float *)f->call->outputs[g->stores[op->store].output] + at;
    bool kept = op->keep < 0 || f->reg[op->keep][0] != 0.0f;
    if (!kept)
        memmove(out, f->reg[op->other], (size_t)padded(n) * sizeof *out);
    else if (op->run)
        op->run(out, in, padded(n));
    else
        memcpy(out, in[0], (size_t)padded(n) * sizeof *out);
    if (op->round != TRD_F32 && kept) g->tiles->round(out, op->round, padded(n));
    f->reg[op->out] = out;
}

/* Asks for the operands' elements [at, at + n) ahead of their tile: ops go over a tile one after the other,
 * so left alone the processor would wait for memory at each tile's first op and leave it idle at the rest. */
static void prefetch(const frame *f, int64_t at, int64_t n)
{
    const trd__group *g = f->group;
    for (int i = 0; i < g->load_count; i++) {
        const trd__group_load *load = &g->loads[i];
        if (load->kind != TRD__LOAD_FULL || g->ops[load->last_op].streamed) continue;
        size_t bytes = trd_dtype_bytes(load->dtype);
        trd__prefetch((const char *)f->call->inputs[load->input] + (size_t)at * bytes, (size_t)n * bytes);
    }
}

static void run_tile(frame *f, int64_t at, int n)
{
    const trd__group *g = f->group;
    for (int k = 0; k < g->op_count; k++) run_op(f, &g->ops[k], at, n);
    for (int s = 0; s < g->store_count; s++) {
        const trd__group_store *store = &g->stores[s];
        if (f->direct[s] && n == padded(n)) continue;
        g->tiles->store(f->reg[store->reg], store->dtype, f->call->outputs[store->output], at, n);
    }
}

/* A store may be written by its op unless an operand in the same buffer is read by a later op. */
static bool can_write_directly(const frame *f, int s)
{
    const trd__group_store *store = &f->group->stores[s];
    if (store->dtype != TRD_F32 || store->op < 0 || f->group->ops[store->op].store != s) return false;
    for (int i = 0; i < f->group->load_count; i++) {
        const trd__group_load *load = &f->group->loads[i];
        bool same = load->input >= 0 && f->call->inputs[load->input] == f->call->outputs[store->output];
        if (same && load->last_op > store->op) return false;
    }
    return true;
}

static void begin(frame *f)
{
    const trd__group *g = f->group;
    for (int i = 0; i < g->load_count; i++) {
        const trd__group_load *load = &g->loads[i];
        float value = load->value;
        if (load->kind == TRD__LOAD_SCALAR)
            value = (float)trd__load(load->dtype, f->call->inputs[load->input], 0);
        else if (load->kind != TRD__LOAD_CONSTANT)
            continue;
        f->reg[load->reg] = storage(f, load->reg);
        int64_t longest = padded(g->count < TRD__TILE ? (int)g->count : TRD__TILE);
        g->tiles->fill(f->reg[load->reg], value, (int)longest);
    }
    for (int s = 0; s < g->store_count; s++) f->direct[s] = can_write_directly(f, s);
    if (g->reduction_count)
        memset(f->partials, 0, (size_t)g->reduction_count * TRD__PARTIALS * sizeof(double));
}

/* Phase 1 of a group with reductions: worker 0 adds the partial sums in a fixed order. */
static void finish(const trd__group *g, const trd__cpu_call *call)
{
    size_t pitch = (size_t)g->reduction_count * TRD__PARTIALS;
    for (int r = 0; r < g->reduction_count; r++) {
        double sum = 0;
        for (int w = 0; w < call->workers; w++) {
            const double *partials =
                (const double *)call->shared_scratch + (size_t)w * pitch + r * TRD__PARTIALS;
            for (int i = 0; i < TRD__PARTIALS; i++) sum += partials[i];
        }
        trd__store(g->reductions[r].dtype, call->outputs[g->reductions[r].output], 0, sum);
    }
}

static void run(const trd__cpu_call *call, int phase)
{
    const trd__group *g = call->state;
    if (phase == 1) {
        if (call->worker == 0) finish(g, call);
        return;
    }
    frame f;
    f.group = g;
    f.call = call;
    f.partials = g->reduction_count ? (double *)call->shared_scratch +
                                          (size_t)call->worker * (size_t)g->reduction_count * TRD__PARTIALS
                                    : NULL;
    for (int i = 0; i < g->register_count; i++) f.reg[i] = storage(&f, i);
    begin(&f);
    int64_t first, last;
    trd__partition(call->worker, call->workers, g->count, TRD__TILE, &first, &last);
    int most = g->op_count == 1 && g->ops[0].streamed ? STREAMED : TRD__TILE;
    for (int64_t at = first, n; at < last; at += n) {
        n = last - at >= most ? most : last - at < TRD__TILE ? last - at : TRD__TILE;
        int64_t ahead = at + AHEAD;
        if (ahead < last) prefetch(&f, ahead, last - ahead < n ? last - ahead : n);
        run_tile(&f, at, (int)n);
    }
}

int trd__group_workers(const trd__group *g)
{
    enum { PARALLEL_WORK = 1 << 16 };
    return g->count * (g->op_count + g->load_count) < PARALLEL_WORK ? 1 : 0;
}

const trd__cpu_kernel trd__kernel_group = {.name = "fused", .run = run};
