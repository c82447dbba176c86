/* Every optimizer over several steps against float64 runs recorded in data/optimizers.json, which its maker
 * compares with optax: parameters and states, decay, bfloat16 moments, and which states a tensor has. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/shape.h"
#include "formats/json.h"
#include "nn/optimizer.h"
#include "support/engine.h"
#include "support/scratch.h"
#include "support/small_program.h"

enum { MOST = 48 };

static trd__json_doc *doc;
static trd__backend *backend;

static int open_data(void **state)
{
    (void)state;
    backend = small_backend(NULL, 1);
    return trd__json_parse_file("nn/data/optimizers.json", &doc) == TRD_OK ? 0 : -1;
}

static int close_data(void **state)
{
    (void)state;
    trd__json_free(doc);
    trd__backend_free(backend);
    return 0;
}

static int numbers(trd__json list, double *values)
{
    int count = 0;
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v)) {
        assert_true(count < MOST);
        OK(trd__json_as_f64(v, &values[count++]));
    }
    return count;
}

static trd_optimizer_options read_options(trd__json from)
{
    trd_optimizer_options o = {.mu_dtype = TRD_F32};
    const char *mu_dtype = "float32";
    double least = 0;
    const struct {
        const char *key;
        double *field;
    } keys[] = {{"adam_b1", &o.b1},
                {"adam_b2", &o.b2},
                {"adam_eps", &o.eps},
                {"adam_eps_root", &o.eps_root},
                {"adam_weight_decay", &o.weight_decay},
                {"muon_beta", &o.muon.beta},
                {"muon_weight_decay", &o.muon.weight_decay},
                {"muon_consistent_rms", &o.muon.consistent_rms},
                {"adafactor_decay_rate", &o.adafactor.decay_rate},
                {"adafactor_clipping_threshold", &o.adafactor.clipping_threshold},
                {"adafactor_eps", &o.adafactor.eps},
                {"adafactor_min_dim_size_to_factor", &least},
                {"adafactor_weight_decay", &o.adafactor.weight_decay}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        OK(trd__json_opt_f64(from, keys[i].key, keys[i].field));
    OK(trd__json_get_string(from, "opt_type", &o.type));
    OK(trd__json_opt_string(from, "mu_dtype", &mu_dtype));
    OK(trd__json_opt_bool(from, "adafactor_multiply_by_parameter_scale", &o.adafactor.scale_by_parameter));
    OK(trd_dtype_parse(mu_dtype, &o.mu_dtype));
    o.adafactor.min_dim_size_to_factor = (int)least;
    return o;
}

/* One tensor under one optimizer. */
typedef struct subject {
    const trd__optimizer_type *type;
    const trd_optimizer_options *options;
    trd__parameter info;
    int size, states;
    trd__optimizer_state described[TRD__OPTIMIZER_STATES];
    double value[MOST], state[TRD__OPTIMIZER_STATES][MOST];
} subject;

static subject read_subject(trd__json tensor, const trd_optimizer_options *options)
{
    subject s = {.options = options};
    double dims[MOST];
    bool table = false;
    OK(trd__optimizer_find(options->type, &s.type));
    OK(s.type->check(options));
    OK(trd__json_get_string(tensor, "name", &s.info.name));
    OK(trd__json_get_bool(tensor, "vocab", &table));
    s.info.shape.rank = numbers(trd__json_find(tensor, "shape"), dims);
    for (int axis = 0; axis < s.info.shape.rank; axis++) {
        s.info.shape.dim[axis] = (int64_t)dims[axis];
        s.info.axes[axis] = table && axis == 0 ? "vocab" : "embed";
    }
    s.size = numbers(trd__json_find(tensor, "value"), s.value);
    s.states = s.type->states(options, &s.info, s.described);
    assert_in_range(s.states, 1, TRD__OPTIMIZER_STATES);
    return s;
}

static small_tensor tensor_of(const char *name, trd_dtype dtype, trd_shape shape, const double *values)
{
    small_tensor t = small_tensor_make(name, dtype, shape);
    for (size_t i = 0; i < small_tensor_count(&t); i++) trd__store(dtype, t.data, i, values[i]);
    return t;
}

static void step(subject *s, int count, double rate, const double *gradient)
{
    const double number = count;
    small_tensor inputs[4 + TRD__OPTIMIZER_STATES] = {
        tensor_of("parameter", TRD_F32, s->info.shape, s->value),
        tensor_of("gradient", TRD_F32, s->info.shape, gradient),
        tensor_of("rate", TRD_F32, trd__shape_scalar(), &rate),
        tensor_of("count", TRD_F32, trd__shape_scalar(), &number)};
    for (int k = 0; k < s->states; k++)
        inputs[4 + k] =
            tensor_of(s->described[k].name, s->described[k].dtype, s->described[k].shape, s->state[k]);
    small_program p;
    small_program_begin(&p, inputs, 4 + s->states);
    trd_builder *b = small_program_builder(&p);
    trd__update_scalars scalars = {.learning_rate = p.values[2], .count = p.values[3]};
    trd__parameter_update u = {.info = &s->info,
                               .decay = s->type->decay(s->options, &s->info),
                               .parameter = p.values[0],
                               .gradient = p.values[1]};
    for (int k = 0; k < s->states; k++) u.states[k] = p.values[4 + k];
    s->type->prepare(b, s->options, &scalars);
    s->type->update(b, s->options, &scalars, &u);
    small_program_result(&p, "parameter", u.new_parameter);
    for (int k = 0; k < s->states; k++) small_program_result(&p, s->described[k].name, u.new_states[k]);
    small_program_finish(&p);
    small_program_run(&p, backend, false);
    for (int r = 0; r <= s->states; r++) {
        const small_tensor *result = &p.results[r];
        assert_int_equal(result->dtype, r ? s->described[r - 1].dtype : TRD_F32);
        for (size_t i = 0; i < small_tensor_count(result); i++)
            (r ? s->state[r - 1] : s->value)[i] = trd__load(result->dtype, result->data, i);
    }
    small_program_end(&p);
}

static void expect_close(const char *what, const char *name, const double *found, const double *expected,
                         int count, double relative)
{
    double largest = 0;
    for (int i = 0; i < count; i++) largest = fmax(largest, fabs(expected[i]));
    for (int i = 0; i < count; i++)
        if (!(fabs(found[i] - expected[i]) <= relative * largest))
            fail_msg("%s of %s, element %d: expected %.9g, found %.9g", what, name, i, expected[i], found[i]);
}

static void run_case(trd__json recorded)
{
    const trd_optimizer_options options = read_options(trd__json_find(recorded, "options"));
    trd__json root = trd__json_root(doc), parameters = trd__json_find(recorded, "parameters");
    double rates[MOST], expected[MOST], gradient[MOST];
    int steps = numbers(trd__json_find(root, "rates"), rates);
    trd__json t = trd__json_first(trd__json_find(root, "tensors"));
    for (; trd__json_exists(t); t = trd__json_next(t)) {
        subject s = read_subject(t, &options);
        trd__json g = trd__json_first(trd__json_find(t, "gradients"));
        for (int i = 0; i < steps; i++, g = trd__json_next(g)) {
            assert_int_equal(numbers(g, gradient), s.size);
            step(&s, i + 1, rates[i], gradient);
        }
        assert_int_equal(numbers(trd__json_find(parameters, s.info.name), expected), s.size);
        expect_close(options.type, s.info.name, s.value, expected, s.size, 2e-6);
        trd__json states = trd__json_find(trd__json_find(recorded, "states"), s.info.name);
        assert_int_equal((int)trd__json_count(states), s.states);
        for (int k = 0; k < s.states; k++) {
            int size = numbers(trd__json_find(states, s.described[k].name), expected);
            assert_int_equal(size, trd__shape_count(&s.described[k].shape));
            expect_close(s.described[k].name, s.info.name, s.state[k], expected, size, 2e-6);
        }
    }
}

static void recorded_steps(void **state)
{
    (void)state;
    int cases = 0;
    trd__json list = trd__json_find(trd__json_root(doc), "cases");
    for (trd__json c = trd__json_first(list); trd__json_exists(c); c = trd__json_next(c), cases++)
        run_case(c);
    assert_int_equal(cases, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recorded_steps)};
    return cmocka_run_group_tests(tests, open_data, close_data);
}
