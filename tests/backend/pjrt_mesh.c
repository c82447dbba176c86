/* Sets on a mesh: what is written is read back however it is split, each device holds its part and no more,
 * and what the mesh's order of devices is when an axis lies between hosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/ops.h>

#include "backend/pjrt/runtime/devices.h"
#include "backend/pjrt/runtime/pjrt.h"
#include "base/alloc.h"
#include "base/shape.h"
#include "ops/rules.h"
#include "support/mesh.h"
#include "support/program.h"
#include "support/small_program.h"

static const trd__entry entries[] = {
    {.name = "scalar", .dtype = TRD_F32, .shape = {0}},
    {.name = "one", .dtype = TRD_F64, .shape = {1, {1}}},
    {.name = "odd", .dtype = TRD_F32, .shape = {1, {7}}},
    {.name = "empty", .dtype = TRD_F32, .shape = {2, {0, 4}}},
    {.name = "behind empty", .dtype = TRD_BF16, .shape = {2, {4, 0}}},
    {.name = "rows", .dtype = TRD_F32, .shape = {2, {8, 3}}},
    {.name = "columns", .dtype = TRD_I32, .shape = {2, {3, 8}}},
    {.name = "both", .dtype = TRD_BF16, .shape = {2, {6, 10}}},
    {.name = "bytes", .dtype = TRD_U8, .shape = {3, {5, 7, 12}}},
    {.name = "cube", .dtype = TRD_I64, .shape = {3, {4, 6, 8}}},
    {.name = "flags", .dtype = TRD_BOOL, .shape = {2, {2, 16}}},
    {.name = "four", .dtype = TRD_F16, .shape = {4, {1, 1, 2, 4}}},
};
enum { ENTRIES = sizeof entries / sizeof *entries, LAYOUTS = 4 };

/* Layouts: named dimensions; the last only; none but split over data; named and split over data. */
static void lay_out(trd__entry *to, int layout)
{
    for (int i = 0; i < ENTRIES; i++) {
        to[i] = entries[i];
        test_mesh_axes(&to[i]);
        for (int d = 0; d < to[i].shape.rank; d++)
            if (layout == 2 || (layout == 1 && d + 1 < to[i].shape.rank)) to[i].axes[d] = NULL;
        to[i].over_data = layout >= 2;
    }
}

/* Booleans stay 0 and 1. */
static unsigned char *fill(const trd__entry *entry)
{
    size_t bytes = trd__entry_bytes(entry);
    unsigned char *data = trd__alloc(bytes + 1, 1);
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(entry->dtype == TRD_BOOL ? i % 3 == 1 : i % 251);
    return data;
}

/* Number of the element of the whole that element i of a part is. */
static size_t whole_index(const trd__pjrt_split *s, const int64_t *origin, size_t i)
{
    size_t index = 0, stride = 1;
    for (int d = s->shape.rank - 1; d >= 0; d--) {
        size_t place = i % (size_t)s->part.dim[d];
        i /= (size_t)s->part.dim[d];
        index += (place + (size_t)origin[d]) * stride;
        stride *= (size_t)s->shape.dim[d];
    }
    return index;
}

/* Every device's buffer of an entry against the whole. */
static void expect_parts(const trd__pjrt_backend *backend, const trd__pjrt_set *set, int entry,
                         const unsigned char *whole)
{
    const trd__pjrt_split *s = &set->splits[entry];
    size_t count = (size_t)trd__shape_count(&s->part), size = trd_dtype_bytes(s->dtype);
    unsigned char *part = trd__alloc(count + 1, size);
    assert_non_null(part);
    for (int d = 0; d < backend->client.device_count; d++) {
        int64_t origin[TRD_MAX_RANK];
        PJRT_Buffer *buffer = trd__pjrt_set_buffers(&backend->client, set, entry)[d];
        PJRT_Buffer_Device_Args where = {.struct_size = PJRT_Buffer_Device_Args_STRUCT_SIZE,
                                         .buffer = buffer};
        assert_null(backend->client.api->PJRT_Buffer_Device(&where));
        assert_ptr_equal(where.device, backend->client.devices[d].device);
        trd__shard_origin(backend->placement, &s->sharding, &s->part, d, origin);
        expect_ok(trd__pjrt_buffer_read(&backend->client, buffer, s->dtype, &s->part, part), "read a part");
        for (size_t i = 0; i < count; i++)
            assert_memory_equal(part + i * size, whole + whole_index(s, origin, i) * size, size);
    }
    trd__free(part);
}

static int split_entries(const trd__pjrt_set *set)
{
    int split = 0;
    for (int i = 0; i < ENTRIES; i++) split += !trd__sharding_is_whole(&set->splits[i].sharding);
    return split;
}

static void round_trip(trd__backend *backend, int layout)
{
    trd__entry layed[ENTRIES];
    trd__set *set;
    lay_out(layed, layout);
    expect_ok(backend->table->set_create(backend, "set", layed, ENTRIES, &set), "create a set");
    assert_true(layout == 2 || split_entries((const trd__pjrt_set *)set) >= 4);
    for (int i = 0; i < ENTRIES; i++) {
        unsigned char *data = fill(&layed[i]), *back = fill(&layed[i]);
        size_t bytes = trd__entry_bytes(&layed[i]);
        expect_ok(backend->table->set_read(backend, set, i, back), "read what was never written");
        for (size_t k = 0; k < bytes; k++) assert_int_equal(back[k], 0);
        expect_ok(backend->table->set_write(backend, set, i, data), "write");
        expect_ok(backend->table->set_read(backend, set, i, back), "read");
        assert_memory_equal(data, back, bytes);
        expect_parts((const trd__pjrt_backend *)backend, (const trd__pjrt_set *)set, i, data);
        trd__free(data);
        trd__free(back);
    }
    backend->table->set_free(backend, set);
}

static void reads_what_was_written(void **state)
{
    (void)state;
    test_need_plugin();
    for (int mesh = 0; mesh < TEST_MESHES; mesh += 2) {
        trd__backend *backend = small_backend_pjrt(&test_mesh_at(mesh)->placement);
        for (int layout = 0; layout < LAYOUTS; layout++) round_trip(backend, layout);
        trd__backend_free(backend);
    }
}

/* w' = w + x, x from a set of its own: the parts that a run leaves behind are the next one's arguments. What
 * was never written is zeros here too. */
static void updates_in_place(void **state)
{
    (void)state;
    test_need_plugin();
    trd__backend *backend = small_backend_pjrt(&test_mesh_at(4)->placement);
    trd__entry w = {.name = "w", .dtype = TRD_F32, .shape = {2, {4, 6}}}, x = w;
    test_mesh_axes(&w);
    trd__program *p;
    expect_ok(trd__program_create("add", &p), "create");
    int state_slot = trd__program_slot(p, "state", TRD__UPDATE, &w, 1);
    int in = trd__program_slot(p, "inputs", TRD__READ, &x, 1);
    trd__program_output(
        p, state_slot, 0,
        trd_add(p->builder, trd__program_input(p, state_slot, 0), trd__program_input(p, in, 0)));
    trd__executable *executable;
    trd__set *sets[2], *other;
    expect_ok(backend->table->compile(backend, p, &(trd__compile_options){0}, &executable), "compile");
    for (int i = 0; i < 2; i++)
        expect_ok(backend->table->set_create(backend, "set", p->slots[i].entries, 1, &sets[i]),
                  "create a set");
    float data[24], found[24];
    for (int i = 0; i < 24; i++) data[i] = (float)i;
    expect_ok(backend->table->set_write(backend, sets[1], 0, data), "write");
    for (int i = 0; i < 100; i++)
        expect_ok(backend->table->execute(backend, executable, sets, NULL), "execute");
    expect_ok(backend->table->set_read(backend, sets[0], 0, found), "read");
    for (int i = 0; i < 24; i++) assert_true(found[i] == 100 * data[i]);
    assert_int_equal(backend->table->stats(backend).executions, 100);
    /* a set of the same shape whose parts lie otherwise */
    expect_ok(backend->table->set_create(backend, "whole", &x, 1, &other), "create a set");
    assert_int_equal(backend->table->execute(backend, executable, (trd__set *[]){other, sets[1]}, NULL),
                     TRD_SHAPE);
    assert_non_null(strstr(trd_error_message(), "slot \"state\": expected the entries split over the mesh"));
    backend->table->set_free(backend, other);
    for (int i = 0; i < 2; i++) backend->table->set_free(backend, sets[i]);
    backend->table->executable_free(backend, executable);
    trd__program_free(p);
    trd__backend_free(backend);
}

/* A failed run may leave the buffers of what it writes failed or given away. What is written without being
 * read is defined anew behind a reset, large or small. */
static void writes_again_after_a_failure(void **state)
{
    (void)state;
    test_need_plugin();
    trd__backend *backend = small_backend_pjrt(NULL);
    const trd__pjrt_client *c = &((const trd__pjrt_backend *)backend)->client;
    const trd__entry out[] = {{.name = "large", .dtype = TRD_F32, .shape = {2, {512, 512}}},
                              {.name = "small", .dtype = TRD_F32, .shape = {1, {3}}}};
    trd__program *p;
    trd__executable *executable;
    trd__set *set;
    expect_ok(trd__program_create("fill", &p), "create");
    int slot = trd__program_slot(p, "results", TRD__WRITE, out, 2);
    for (int i = 0; i < 2; i++)
        trd__program_output(p, slot, i, trd_constant_fill(p->builder, TRD_F32, out[i].shape, 2));
    expect_ok(backend->table->compile(backend, p, NULL, &executable), "compile");
    expect_ok(backend->table->set_create(backend, "results", out, 2, &set), "create a set");
    expect_ok(backend->table->execute(backend, executable, &set, NULL), "execute");
    expect_ok(backend->table->drain(backend), "drain");
    for (int i = 0; i < 2; i++) {
        PJRT_Buffer_Delete_Args lost = {.struct_size = PJRT_Buffer_Delete_Args_STRUCT_SIZE,
                                        .buffer = *trd__pjrt_set_buffers(c, (trd__pjrt_set *)set, i)};
        assert_null(c->api->PJRT_Buffer_Delete(&lost));
    }
    backend->table->reset(backend);
    float *found = trd__alloc(512 * 512, sizeof *found);
    assert_non_null(found);
    for (int run = 0; run < 2; run++) {
        expect_ok(backend->table->execute(backend, executable, &set, NULL), "execute again");
        expect_ok(backend->table->set_read(backend, set, 0, found), "read");
        for (int i = 0; i < 512 * 512; i++) assert_true(found[i] == 2);
    }
    trd__free(found);
    backend->table->set_free(backend, set);
    backend->table->executable_free(backend, executable);
    trd__program_free(p);
    trd__backend_free(backend);
}

enum { ROWS = 8, WIDTH = 4, OUT = 6 };

/* Each replica adds its rows' product into an accumulator of its own; the sum of all rows is everyone's. */
static trd__program *replicas_program(int64_t replicas)
{
    trd__program *p;
    expect_ok(trd__program_create("replicas", &p), "create");
    p->replicas = replicas;
    trd__entry inputs[] = {
        {.name = "x", .dtype = TRD_F32, .shape = {2, {ROWS, WIDTH}}, .replica = TRD__REPLICA_ROWS},
        {.name = "w", .dtype = TRD_F32, .shape = {2, {ROWS, OUT}}, .replica = TRD__REPLICA_ROWS}};
    trd__entry state[] = {{.name = "own",
                           .dtype = TRD_F32,
                           .shape = {3, {replicas, WIDTH, OUT}},
                           .axes = {TRD__AXIS_REPLICA},
                           .replica = TRD__REPLICA_OWN},
                          {.name = "scale", .dtype = TRD_F32, .shape = {1, {OUT}}}};
    trd__entry result = {.name = "sum", .dtype = TRD_F32, .shape = {1, {WIDTH}}};
    for (int i = 0; i < 2; i++) test_mesh_axes(&inputs[i]);
    state[0].axes[1] = "dim1";
    state[0].axes[2] = "dim0";
    int in = trd__program_slot(p, "inputs", TRD__READ, inputs, 2);
    int kept = trd__program_slot(p, "state", TRD__UPDATE, state, 2);
    int out = trd__program_slot(p, "results", TRD__WRITE, &result, 1);
    trd_builder *b = p->builder;
    trd_value x = trd__program_input(p, in, 0), w = trd__program_input(p, in, 1);
    trd_value product = trd_matmul(b, x, trd_mul(b, w, trd__program_input(p, kept, 1)), true, false, TRD_F32);
    trd__program_output(p, kept, 0, trd_accumulate(b, trd__program_input(p, kept, 0), product));
    trd__program_output(p, out, 0, trd__replica_sum(b, trd_reduce_sum(b, x, 1, false, TRD_F32)));
    expect_ok(trd_builder_status(b), "build");
    return p;
}

static void expect_replicas(trd__backend *backend, int64_t replicas)
{
    trd__program *p = replicas_program(replicas);
    trd__executable *executable;
    trd__set *sets[3];
    expect_ok(backend->table->compile(backend, p, &(trd__compile_options){0}, &executable), "compile");
    for (int i = 0; i < 3; i++)
        expect_ok(backend->table->set_create(backend, "set", p->slots[i].entries, p->slots[i].entry_count,
                                             &sets[i]),
                  "create a set");
    float x[ROWS][WIDTH], w[ROWS][OUT], scale[OUT], sum[WIDTH], own[4][WIDTH][OUT];
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < WIDTH; i++) x[r][i] = (float)(r * WIDTH + i);
        for (int j = 0; j < OUT; j++) w[r][j] = (float)(r - j);
    }
    for (int j = 0; j < OUT; j++) scale[j] = (float)(j + 1);
    expect_ok(backend->table->set_write(backend, sets[0], 0, x), "write");
    expect_ok(backend->table->set_write(backend, sets[0], 1, w), "write");
    expect_ok(backend->table->set_write(backend, sets[1], 1, scale), "write");
    for (int i = 0; i < 3; i++)
        expect_ok(backend->table->execute(backend, executable, sets, NULL), "execute");
    expect_ok(backend->table->set_read(backend, sets[1], 0, own), "read");
    expect_ok(backend->table->set_read(backend, sets[2], 0, sum), "read");
    int each = ROWS / (int)replicas;
    for (int i = 0; i < WIDTH; i++) {
        float expected = 0;
        for (int r = 0; r < ROWS; r++) expected += x[r][i];
        assert_true(sum[i] == expected);
        for (int d = 0; d < (int)replicas; d++)
            for (int j = 0; j < OUT; j++) {
                expected = 0;
                for (int r = d * each; r < (d + 1) * each; r++) expected += 3 * x[r][i] * w[r][j] * scale[j];
                assert_float_equal(own[d][i][j], expected, 1e-3);
            }
    }
    for (int i = 0; i < 3; i++) backend->table->set_free(backend, sets[i]);
    backend->table->executable_free(backend, executable);
    trd__program_free(p);
}

static void runs_replicas(void **state)
{
    (void)state;
    test_need_plugin();
    for (int mesh = 0; mesh < TEST_MESHES; mesh++) {
        const trd__placement *placement = &test_mesh_at(mesh)->placement;
        if (placement->size[TRD__MESH_DATA] == 1) continue;
        trd__backend *backend = small_backend_pjrt(placement);
        trd__executable *executable;
        trd__program *other = replicas_program(8);
        expect_replicas(backend, placement->size[TRD__MESH_DATA]);
        assert_int_equal(backend->table->compile(backend, other, &(trd__compile_options){0}, &executable),
                         TRD_INVALID_ARGUMENT);
        assert_non_null(strstr(trd_error_message(), "expected as many replicas as the mesh's data axis"));
        trd__program_free(other);
        trd__backend_free(backend);
    }
}

/* tensor=4 over two hosts: the device (d, t) is on host t / 2, there the device 2 d + t % 2. */
static void keeps_hosts_outermost(void **state)
{
    (void)state;
    const trd__placement flat = {.size = {2, 2, 2, 1}, .hosts = {1, 1, 1, 1}};
    const trd__placement data = {.size = {4, 1, 2, 1}, .hosts = {2, 1, 1, 1}};
    const trd__placement tensor = {.size = {2, 1, 4, 1}, .hosts = {1, 1, 2, 1}};
    static const int64_t between[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    for (int64_t d = 0; d < 8; d++) {
        assert_int_equal(trd__pjrt_mesh_place(&flat, d), d);
        assert_int_equal(trd__pjrt_mesh_place(&data, d), d);
        assert_int_equal(trd__pjrt_mesh_place(&tensor, d), between[d]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_was_written), cmocka_unit_test(updates_in_place),
        cmocka_unit_test(writes_again_after_a_failure), cmocka_unit_test(runs_replicas),
        cmocka_unit_test(keeps_hosts_outermost)};
    return cmocka_run_group_tests_name("backend/pjrt_mesh", tests, NULL, NULL);
}
