/* The list of what an engine has compiled. Invariant: the order is that of families by age, each with its
 * programs in the order of their kinds and its forward graphs, then the updates by age, then what merges
 * gradients. */
#include "engine/internal.h"

typedef struct search {
    const trd_engine *engine;
    int left; /* programs to pass over */
    bool found;
    trd_program_info info;
} search;

static void visit(search *s, const trd__compiled *compiled, int length)
{
    if (s->found || !compiled->executable || s->left-- > 0) return;
    const trd__memory_report *memory = &compiled->memory;
    trd__usage usage = s->engine->backend->table->usage(compiled->executable);
    s->found = true;
    s->info = (trd_program_info){.name = trd__program_name(compiled->kind),
                                 .length = length,
                                 .fingerprint = memory->fingerprint,
                                 .flops = compiled->flops,
                                 .bytes_read = memory->bytes_read,
                                 .bytes_written = memory->bytes_written,
                                 .peak_bytes = memory->arena_bytes + memory->scratch_bytes,
                                 .temporary_bytes = memory->arena_bytes,
                                 .lower_bound_bytes = memory->lower_bound_bytes,
                                 .kernels = memory->kernel_count,
                                 .runs = usage.runs,
                                 .busy_ns = usage.busy_ns,
                                 .least_ns = usage.least_ns};
}

/* Lists are newest first: the oldest is told by recursion. */
static void visit_forwards(search *s, const trd__forward *forward, int length)
{
    if (!forward) return;
    visit_forwards(s, forward->next, length);
    visit(s, &forward->compiled, length);
}

static void visit_families(search *s, const trd__family *family)
{
    if (!family) return;
    visit_families(s, family->next);
    for (int kind = 0; kind < TRD__PROGRAM_COUNT; kind++) visit(s, &family->programs[kind], family->length);
    visit_forwards(s, family->forwards, family->length);
}

static void visit_updates(search *s, const trd__update *update)
{
    if (!update) return;
    visit_updates(s, update->next);
    visit(s, &update->compiled, 0);
}

static search find(const trd_engine *engine, int index)
{
    search s = {.engine = engine, .left = index};
    visit_families(&s, engine->families);
    visit_updates(&s, engine->updates);
    for (size_t i = 0; i < sizeof engine->merges / sizeof *engine->merges; i++)
        visit(&s, &engine->merges[i], 0);
    return s;
}

int trd_engine_program_count(const trd_engine *engine)
{
    const int beyond = 1 << 30;
    return beyond - find(engine, beyond).left;
}

trd_program_info trd_engine_program(const trd_engine *engine, int index)
{
    return find(engine, index < 0 ? 1 << 30 : index).info;
}

trd_status trd_plan_programs(const trd_engine_options *options, trd_program_info *programs, int capacity,
                             int *count)
{
    const trd_batch batch = {.rows = options->rows, .length = options->length};
    trd_engine *engine;
    trd__family *family;
    *count = 0;
    TRD_TRY(trd__engine_create_bare(options, &engine));
    trd_status status = trd__family_find(engine, &batch, &family);
    if (status == TRD_OK) status = trd__family_compile(engine, family);
    for (int i = 0; status == TRD_OK && i < trd_engine_program_count(engine) && i < capacity; i++)
        programs[(*count)++] = trd_engine_program(engine, i);
    trd__engine_destroy_bare(engine);
    return status;
}
