/* Optimizers: updates against the formulas in float64 on the host, states, ranges, and which parameters the
 * mask spares from decay. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/shape.h"
#include "nn/optimizer.h"
#include "support/engine.h"
#include "support/scratch.h"
#include "support/small_program.h"

enum { SIZE = 4 };

static const double parameters[SIZE] = {1.0, -2.0, 0.5, 0.0}, gradients[SIZE] = {0.25, -4.0, 0.0, 1e-3};

static const trd_optimizer_options adamw = {
    .type = "adamw", .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .mu_dtype = TRD_F32};

/* What one update makes of values[0 .. 2]: parameter, first and second moment. */
static void update(const trd_optimizer_options *options, trd_dtype dtype, double decay, double rate,
                   int count, double values[3][SIZE])
{
    const trd__optimizer_type *type;
    OK(trd__optimizer_find(options->type, &type));
    trd_shape shape = TRD__SHAPE(SIZE), scalar = trd__shape_scalar();
    small_tensor inputs[6] = {
        small_tensor_make("parameter", dtype, shape), small_tensor_make("gradient", TRD_F32, shape),
        small_tensor_make("rate", TRD_F32, scalar), small_tensor_make("count", TRD_F32, scalar)};
    const trd__parameter info = {.name = "p", .shape = shape};
    trd__optimizer_state described[TRD__OPTIMIZER_STATES];
    int states = type->states ? type->states(options, &info, described) : 0;
    for (int s = 0; s < states; s++)
        inputs[4 + s] = small_tensor_make(described[s].name, described[s].dtype, described[s].shape);
    for (size_t i = 0; i < SIZE; i++) {
        trd__store(dtype, inputs[0].data, i, values[0][i]);
        trd__store(TRD_F32, inputs[1].data, i, gradients[i]);
        for (int s = 0; s < states; s++)
            trd__store(inputs[4 + s].dtype, inputs[4 + s].data, i, values[1 + s][i]);
    }
    trd__store(TRD_F32, inputs[2].data, 0, rate);
    trd__store(TRD_F32, inputs[3].data, 0, count);
    small_program p;
    small_program_begin(&p, inputs, 4 + states);
    trd_builder *b = small_program_builder(&p);
    trd__update_scalars scalars = {.learning_rate = p.values[2], .count = p.values[3]};
    trd__parameter_update u = {
        .info = &info, .decay = decay, .parameter = p.values[0], .gradient = p.values[1]};
    for (int s = 0; s < states; s++) u.states[s] = p.values[4 + s];
    if (type->prepare) type->prepare(b, options, &scalars);
    type->update(b, options, &scalars, &u);
    small_program_result(&p, "parameter", u.new_parameter);
    for (int s = 0; s < states; s++) small_program_result(&p, described[s].name, u.new_states[s]);
    small_program_finish(&p);
    trd__backend *backend = small_backend(NULL, 1);
    small_program_run(&p, backend, false);
    for (int r = 0; r < p.result_count; r++) {
        assert_int_equal(p.results[r].dtype, inputs[r ? 3 + r : 0].dtype);
        for (size_t i = 0; i < SIZE; i++) values[r][i] = trd__load(p.results[r].dtype, p.results[r].data, i);
    }
    small_program_end(&p);
    trd__backend_free(backend);
}

static void expect_close(double found, double expected, double relative)
{
    if (!(fabs(found - expected) <= relative * fabs(expected) + 1e-12))
        fail_msg("expected %.9g, found %.9g", expected, found);
}

/* Kingma & Ba's recursion with decoupled decay. */
static void adamw_on_host(const trd_optimizer_options *o, double decay, double rate, int count,
                          double values[3][SIZE])
{
    for (int i = 0; i < SIZE; i++) {
        double *p = &values[0][i], *mu = &values[1][i], *nu = &values[2][i], g = gradients[i];
        *mu = o->b1 * *mu + (1 - o->b1) * g;
        *nu = o->b2 * *nu + (1 - o->b2) * g * g;
        double mu_hat = *mu / (1 - pow(o->b1, count)), nu_hat = *nu / (1 - pow(o->b2, count));
        *p -= rate * (mu_hat / (sqrt(nu_hat) + o->eps) + decay * *p);
    }
}

static void adamw_steps(void **state)
{
    (void)state;
    double found[3][SIZE] = {{0}}, expected[3][SIZE] = {{0}};
    memcpy(found[0], parameters, sizeof parameters);
    memcpy(expected[0], parameters, sizeof parameters);
    for (int count = 1; count <= 5; count++) {
        update(&adamw, TRD_F32, 0.1, 1e-2, count, found);
        adamw_on_host(&adamw, 0.1, 1e-2, count, expected);
        for (int r = 0; r < 3; r++)
            for (int i = 0; i < SIZE; i++) expect_close(found[r][i], expected[r][i], 2e-6);
    }
    /* The first step by hand: bias correction makes it the gradient's sign, and decay adds 0.1 p. */
    double first[3][SIZE] = {{1.0, -2.0, 0.5, 0.0}};
    update(&adamw, TRD_F32, 0.1, 1e-2, 1, first);
    expect_close(first[0][0], 1.0 - 1e-2 * (1 + 0.1), 1e-6);
    expect_close(first[0][1], -2.0 + 1e-2 * (1 + 0.2), 1e-6);
    expect_close(first[0][2], 0.5 - 1e-2 * 0.05, 1e-6);
    expect_close(first[0][3], -1e-2 * (1e-3 / (1e-3 + 1e-8)), 1e-6);
    expect_close(first[1][0], 0.025, 1e-6);
    expect_close(first[2][1], 0.05 * 16, 1e-6);
    double spared[3][SIZE] = {{1.0, -2.0, 0.5, 0.0}};
    update(&adamw, TRD_F32, 0, 1e-2, 1, spared);
    expect_close(spared[0][0], 1.0 - 1e-2, 1e-6);
    assert_true(spared[0][2] == 0.5); /* no gradient, no decay */
}

/* A bf16 parameter and first moment: math in float32, rounded once. */
static void adamw_in_bfloat16(void **state)
{
    (void)state;
    trd_optimizer_options o = adamw;
    o.mu_dtype = TRD_BF16;
    double values[3][SIZE] = {{1.0, -2.0, 0.5, 0.0}}, exact[3][SIZE] = {{1.0, -2.0, 0.5, 0.0}};
    update(&o, TRD_BF16, 0.1, 0.5, 1, values);
    adamw_on_host(&o, 0.1, 0.5, 1, exact);
    for (int i = 0; i < SIZE; i++) {
        for (int r = 0; r < 2; r++)
            assert_true(values[r][i] == (double)trd__bf16_to_f32(trd__f32_to_bf16((float)exact[r][i])));
        expect_close(values[2][i], exact[2][i], 2e-6);
    }
}

static void sgd(void **state)
{
    (void)state;
    const trd_optimizer_options o = {.type = "sgd"};
    double values[3][SIZE] = {{1.0, -2.0, 0.5, 0.0}};
    update(&o, TRD_F32, 0.5, 0.1, 3, values); /* knows no decay */
    for (int i = 0; i < SIZE; i++)
        assert_true(values[0][i] == (double)((float)parameters[i] - (float)gradients[i] * 0.1f));
}

static const trd_optimizer_options good = {
    .b1 = 0.9,
    .b2 = 0.95,
    .eps = 1e-8,
    .weight_decay = 0.1,
    .mu_dtype = TRD_F32,
    .muon = {.beta = 0.95, .weight_decay = 0.2},
    .adafactor = {.decay_rate = 0.8, .eps = 1e-30, .min_dim_size_to_factor = 8, .weight_decay = 0.3}};

/* Every optimizer with the number of states of a matrix, a table of the vocabulary and a vector. */
static const struct {
    const char *type;
    int matrix, table, vector;
    double matrix_decay, other_decay;
} kinds[] = {{"adamw", 2, 2, 2, 0.1, 0.1},
             {"adam_pax", 2, 2, 2, 0.1, 0.1},
             {"adafactor", 2, 2, 1, 0.3, 0.3},
             {"muon", 1, 2, 2, 0.2, 0.1},
             {"sgd", 0, 0, 0, 0, 0}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const trd__optimizer_type *find(const char *name)
{
    const trd__optimizer_type *type;
    OK(trd__optimizer_find(name, &type));
    assert_string_equal(type->name, name);
    return type;
}

static void names_and_ranges(void **state)
{
    (void)state;
    const trd__optimizer_type *type;
    assert_int_equal(trd__optimizer_find("adam", &type), TRD_INVALID_ARGUMENT);
    expect_message("opt_type: \"adam\" is unknown; known: adamw adam_pax adafactor muon sgd");
    trd_optimizer_options o = good;
    const struct {
        double *field, value;
        const char *key, *types;
    } wrong[] = {
        {&o.b1, 1, "adam_b1: expected at least 0 and less than 1, found 1", "adamw adam_pax muon"},
        {&o.b1, -0.1, "adam_b1", "adamw adam_pax muon"},
        {&o.b2, 1, "adam_b2", "adamw adam_pax muon"},
        {&o.b2, NAN, "adam_b2", "adamw adam_pax muon"},
        {&o.eps, -1, "adam_eps: expected a number of at least 1e-30, found -1", "adamw adam_pax muon"},
        {&o.eps_root, INFINITY, "adam_eps_root", "adamw adam_pax muon"},
        {&o.weight_decay, -1, "adam_weight_decay", "adamw adam_pax muon"},
        {&o.muon.beta, 1, "muon_beta", "muon"},
        {&o.muon.weight_decay, NAN, "muon_weight_decay", "muon"},
        {&o.muon.consistent_rms, -0.2, "muon_consistent_rms", "muon"},
        {&o.adafactor.decay_rate, -1, "adafactor_decay_rate", "adafactor"},
        {&o.adafactor.clipping_threshold, -1, "adafactor_clipping_threshold", "adafactor"},
        {&o.adafactor.eps, -1, "adafactor_eps", "adafactor"},
        {&o.adafactor.weight_decay, -1, "adafactor_weight_decay", "adafactor"}};
    for (int k = 0; k < KINDS; k++) {
        type = find(kinds[k].type);
        if (!type->check) continue;
        OK(type->check(&o));
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            double kept = *wrong[i].field;
            bool known = strstr(wrong[i].types, type->name);
            *wrong[i].field = wrong[i].value;
            assert_int_equal(type->check(&o), known ? TRD_INVALID_ARGUMENT : TRD_OK);
            if (known) expect_message(wrong[i].key);
            *wrong[i].field = kept;
        }
    }
    o.adafactor.min_dim_size_to_factor = 0;
    assert_int_equal(find("adafactor")->check(&o), TRD_INVALID_ARGUMENT);
    expect_message("adafactor_min_dim_size_to_factor");
}

/* What each optimizer keeps of the llama's parameters: shapes, dtypes, axes. */
static void states_of_parameters(void **state)
{
    (void)state;
    trd_model *model = test_llama();
    trd_optimizer_options o = good;
    o.mu_dtype = TRD_BF16;
    for (int k = 0; k < KINDS; k++) {
        const trd__optimizer_type *type = find(kinds[k].type);
        for (int i = 0; i < model->parameter_count; i++) {
            const trd__parameter *p = &model->parameters[i];
            trd__optimizer_state states[TRD__OPTIMIZER_STATES];
            bool vector = p->shape.rank == 1, table = strstr(p->name, "embed_tokens");
            int count = type->states ? type->states(&o, p, states) : 0;
            assert_int_equal(count, vector ? kinds[k].vector : table ? kinds[k].table : kinds[k].matrix);
            for (int s = 0; s < count; s++) {
                bool factored = strcmp(type->name, "adafactor") == 0 && !vector;
                int64_t size = trd__shape_count(&p->shape);
                if (factored) size = p->shape.dim[s];
                assert_int_equal(trd__shape_count(&states[s].shape), size);
                assert_int_equal(states[s].dtype, strcmp(states[s].name, "mu") == 0 ? TRD_BF16 : TRD_F32);
                assert_string_equal(states[s].axes[0], p->axes[factored ? s : 0]);
            }
        }
    }
    trd_model_free(model);
}

static void mask_of_decay(void **state)
{
    (void)state;
    trd_model *model = test_llama();
    const char *patterns[] = {"norm", "layers\\.1\\..*_proj"};
    double decays[64];
    assert_true(model->parameter_count <= 64);
    for (int k = 0; k < KINDS; k++) {
        const trd__optimizer_type *type = find(kinds[k].type);
        trd_optimizer_options o = good;
        o.mask = patterns;
        for (o.mask_count = 0; o.mask_count <= 2; o.mask_count++) {
            int kept = 0;
            OK(trd__optimizer_decays(type, &o, model, decays));
            for (int i = 0; i < model->parameter_count; i++) {
                const char *name = model->parameters[i].name;
                bool spared = (o.mask_count > 0 && strstr(name, "norm")) ||
                              (o.mask_count > 1 && strstr(name, "layers.1."));
                bool matrix = strstr(name, "_proj");
                double expected = matrix ? kinds[k].matrix_decay : kinds[k].other_decay;
                assert_true(decays[i] == (spared ? 0 : expected));
                kept += !spared;
            }
            static const int left[] = {20, 15, 8}; /* at last the embedding and the products of layer 0 */
            assert_int_equal(kept, left[o.mask_count]);
        }
    }
    trd_optimizer_options o = good;
    const char *broken[] = {"norm", "layers.(1"};
    o.mask = broken;
    o.mask_count = 2;
    assert_int_equal(trd__optimizer_decays(find("adamw"), &o, model, decays), TRD_INVALID_ARGUMENT);
    expect_message("adamw_mask: the regular expression \"layers.(1\" is wrong at character 10: ");
    trd_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_steps),   cmocka_unit_test(adamw_in_bfloat16),
        cmocka_unit_test(sgd),           cmocka_unit_test(names_and_ranges),
        cmocka_unit_test(mask_of_decay), cmocka_unit_test(states_of_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
