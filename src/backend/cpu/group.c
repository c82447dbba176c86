/* Running a fused group. Float32 operands are read where they lie and float32 results written where they go;
 * everything else passes through a register's storage, but for sums of squares, which may stream. A result
 * may take over an operand's buffer: such an operand is read for the last time before its tile is written, or
 * the write waits for the tile's end. What is the same for all tiles of a call is decided once, as a list of
 * steps. */
#include "backend/cpu/group.h"

/* Elements of a tile where there are many elements and ops: all operands are then read at an even pace, so
 * memory is busy while the ops compute. Few elements lie in a cache, few ops do not keep memory waiting, and
 * longer tiles save steps. */
enum { SHORT_TILE = 128, MANY = 1 << 15, MANY_OPS = 5 };
/* Elements from those that are computed to those that are asked for, and elements at once where they pass
 * through no register. */
enum { AHEAD = 2 * TRD__TILE, STREAMED = 16 * TRD__TILE };

/* Where a register lies: in its storage, or in memory, where an operand or a result lies. */
typedef struct place {
    float *first;
    int64_t moves; /* the bits of a tile's place that count: all in memory, none in storage */
} place;

typedef enum action { LOAD, RUN, COPY, ROUND, SUM, SQUARES, STREAM, STORE } action;

typedef struct step {
    action action;
    trd_dtype dtype; /* of LOAD, ROUND, STREAM and STORE */
    trd__tile_function run;
    place out, in[TRD__TILE_OPERANDS];
    const trd__group_load *strided; /* what a LOAD broadcasts; NULL: element by element */
    void *data;                     /* of LOAD, STREAM and STORE */
    double *partials;
} step;

/* An operand in memory, elements of so many bytes. */
typedef struct stream {
    const char *first;
    int64_t width;
} stream;

typedef struct frame {
    const trd__group *group;
    const trd__cpu_call *call;
    place reg[TRD__GROUP_REGISTERS];
    bool direct[TRD__KERNEL_RESULTS]; /* by store */
    double *partials;
    step *steps;
    int step_count;
    int multiple; /* tiles of a multiple of so many elements have these steps; 0: none are made yet */
    stream streams[TRD__KERNEL_INPUTS];
    int stream_count;
} frame;

size_t trd__group_scratch(const trd__group *g)
{
    size_t steps = (size_t)(g->load_count + 2 * g->op_count + g->store_count);
    return (size_t)g->register_count * TRD__TILE * sizeof(float) + steps * sizeof(step);
}

static float *storage(const frame *f, int reg)
{
    return (float *)f->call->worker_scratch + (size_t)reg * TRD__TILE;
}

static int padded(int n)
{
    return (n + TRD__TILE_STEP - 1) & ~(TRD__TILE_STEP - 1);
}

static float *at_tile(const place *p, int64_t at)
{
    return p->first + (at & p->moves);
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

static void load_tile(const trd__tiles *tiles, const step *s, int64_t at, int n)
{
    float *out = s->out.first;
    if (s->strided)
        load_strided(tiles, s->strided, out, s->data, at, n);
    else
        tiles->load(out, s->dtype, s->data, at, n);
    for (int i = n; i < padded(n); i++) out[i] = 0;
}

static void run_op(const step *s, int64_t at, int n)
{
    const float *in[TRD__TILE_OPERANDS];
    for (int i = 0; i < TRD__TILE_OPERANDS; i++) in[i] = at_tile(&s->in[i], at);
    s->run(at_tile(&s->out, at), in, n);
}

static void run_tile(const frame *f, int64_t at, int n)
{
    const trd__tiles *tiles = f->group->tiles;
    int most = padded(n);
    for (const step *s = f->steps; s < f->steps + f->step_count; s++) switch (s->action) {
        case LOAD:
            load_tile(tiles, s, at, n);
            break;
        case RUN:
            run_op(s, at, most);
            break;
        case COPY:
            memmove(at_tile(&s->out, at), at_tile(&s->in[0], at), (size_t)most * sizeof(float));
            break;
        case ROUND:
            tiles->round(at_tile(&s->out, at), s->dtype, most);
            break;
        case SUM:
            tiles->sum(s->partials, at_tile(&s->in[0], at), n);
            break;
        case SQUARES:
            tiles->sum_squares(s->partials, at_tile(&s->in[0], at), n);
            break;
        case STREAM:
            tiles->stream_squares(s->partials, s->dtype, s->data, at, n);
            break;
        case STORE:
            tiles->store(at_tile(&s->in[0], at), s->dtype, s->data, at, n);
            break;
        }
}

/* -- The steps of a call -- */

static void add_step(frame *f, step s)
{
    f->steps[f->step_count++] = s;
}

static void add_load(frame *f, const trd__group_load *load, bool whole)
{
    if (load->kind == TRD__LOAD_SCALAR || load->kind == TRD__LOAD_CONSTANT) return;
    void *data = (void *)(uintptr_t)f->call->inputs[load->input];
    if (load->kind == TRD__LOAD_FULL && load->dtype == TRD_F32 && whole) {
        f->reg[load->reg] = (place){data, -1};
        return;
    }
    f->reg[load->reg] = (place){storage(f, load->reg), 0};
    add_step(f, (step){.action = LOAD,
                       .dtype = load->dtype,
                       .out = f->reg[load->reg],
                       .strided = load->kind == TRD__LOAD_STRIDED ? load : NULL,
                       .data = data});
}

static void add_reduction(frame *f, const trd__group_op *op)
{
    double *partials = f->partials + (size_t)op->reduction * TRD__PARTIALS;
    bool squares = f->group->reductions[op->reduction].squares;
    add_step(f, (step){.action = squares ? SQUARES : SUM, .in = {f->reg[op->in[0]]}, .partials = partials});
}

static void add_stream(frame *f, const trd__group_op *op)
{
    const trd__group_load *load = &f->group->loads[op->first_load];
    add_step(f, (step){.action = STREAM,
                       .dtype = load->dtype,
                       .data = (void *)(uintptr_t)f->call->inputs[load->input],
                       .partials = f->partials + (size_t)op->reduction * TRD__PARTIALS});
}

static void add_op(frame *f, const trd__group_op *op, bool whole)
{
    place out = {storage(f, op->out), 0};
    if (op->store >= 0 && f->direct[op->store] && whole)
        out = (place){f->call->outputs[f->group->stores[op->store].output], -1};
    bool kept = op->keep < 0 || f->reg[op->keep].first[0] != 0.0f;
    step s = {.action = op->run && kept ? RUN : COPY, .run = op->run, .out = out};
    for (int i = 0; i < TRD__TILE_OPERANDS; i++) s.in[i] = f->reg[op->in[i]];
    if (!kept) s.in[0] = f->reg[op->other];
    add_step(f, s);
    if (op->round != TRD_F32 && kept) add_step(f, (step){.action = ROUND, .dtype = op->round, .out = out});
    f->reg[op->out] = out;
}

/* Steps for tiles of n elements and all that are multiples of what n is a multiple of. */
static void make_steps(frame *f, int n)
{
    const trd__group *g = f->group;
    bool whole = n % TRD__TILE_STEP == 0, streams = n % TRD__PARTIALS == 0;
    f->step_count = 0;
    f->multiple = streams ? TRD__PARTIALS : whole ? TRD__TILE_STEP : 1;
    for (int k = 0; k < g->op_count; k++) {
        const trd__group_op *op = &g->ops[k];
        if (op->streamed && streams) {
            add_stream(f, op);
            continue;
        }
        for (int i = 0; i < op->load_count; i++) add_load(f, &g->loads[op->first_load + i], whole);
        if (op->reduction >= 0)
            add_reduction(f, op);
        else
            add_op(f, op, whole);
    }
    for (int i = 0; i < g->store_count; i++) {
        const trd__group_store *store = &g->stores[i];
        if (f->direct[i] && whole) continue;
        add_step(f, (step){.action = STORE,
                           .dtype = store->dtype,
                           .in = {f->reg[store->reg]},
                           .data = f->call->outputs[store->output]});
    }
}

/* The operands that are read element by element, but for those that are asked for where they are added. */
static void find_streams(frame *f)
{
    const trd__group *g = f->group;
    f->stream_count = 0;
    for (int i = 0; i < g->load_count && f->stream_count < TRD__KERNEL_INPUTS; i++) {
        const trd__group_load *load = &g->loads[i];
        if (load->kind != TRD__LOAD_FULL || g->ops[load->last_op].streamed) continue;
        f->streams[f->stream_count++] =
            (stream){f->call->inputs[load->input], (int64_t)trd_dtype_bytes(load->dtype)};
    }
}

/* Asks for elements [at, at + n) ahead of their tile, all streams' in turn: ops go over a tile one after the
 * other, so left alone the processor would wait for memory at each tile's first ops. */
static void prefetch(const frame *f, int64_t at, int64_t n)
{
    for (int64_t line = 0; line < n * (int64_t)sizeof(float); line += TRD__CACHE_LINE)
        for (int i = 0; i < f->stream_count; i++)
            if (line < n * f->streams[i].width)
                __builtin_prefetch(f->streams[i].first + at * f->streams[i].width + line, 0, 2);
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
        f->reg[load->reg] = (place){storage(f, load->reg), 0};
        int64_t longest = padded(g->count < TRD__TILE ? (int)g->count : TRD__TILE);
        g->tiles->fill(f->reg[load->reg].first, value, (int)longest);
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
    for (int i = 0; i < g->register_count; i++) f.reg[i] = (place){storage(&f, i), 0};
    f.steps = (step *)(void *)storage(&f, g->register_count);
    begin(&f);
    find_streams(&f);
    int64_t first, last;
    trd__partition(call->worker, call->workers, g->count, TRD__TILE, &first, &last);
    int tile = last - first < MANY || g->op_count < MANY_OPS ? TRD__TILE : SHORT_TILE;
    int most = g->op_count == 1 && g->ops[0].streamed ? STREAMED : tile;
    f.multiple = 0;
    for (int64_t at = first, n; at < last; at += n) {
        n = last - at >= most ? most : last - at < tile ? last - at : tile;
        if (!f.multiple || n % f.multiple != 0) make_steps(&f, (int)n);
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
