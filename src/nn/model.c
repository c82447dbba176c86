/* Models by config.json or preset, and what a loss asks of one. Invariant: a trd_model is complete (options
 * and parameter table) before anyone else sees it, and never changes afterwards. */
#include "nn/model.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/nearest.h"
#include "base/shape.h"

#define TRD_MODEL(file) extern const trd__model_type trd__model_##file;
#include "nn/models/models.def"
#undef TRD_MODEL

static const trd__model_type *const types[] = {
#define TRD_MODEL(file) &trd__model_##file,
#include "nn/models/models.def"
#undef TRD_MODEL
};
enum { TYPES = sizeof types / sizeof *types };

/* Bytes of parameters and of the optimizer's state of them, in any dtype, then fit 63 bits. */
#define MOST_PARAMETERS (INT64_MAX / 64)

void trd_model_free(trd_model *model)
{
    if (model) trd__arena_free(model->arena);
}

trd_status trd__model_declare(trd_model *model, const trd__parameter *parameter, int *index)
{
    if (model->parameter_count == model->parameter_capacity) {
        int capacity = model->parameter_capacity ? 2 * model->parameter_capacity : 64;
        trd__parameter *grown = trd__arena_alloc(model->arena, (size_t)capacity, sizeof *grown);
        trd__stack *stacks = trd__arena_alloc(model->arena, (size_t)capacity, sizeof *stacks);
        if (!grown || !stacks) return TRD_NO_MEMORY;
        if (model->parameter_count) {
            memcpy(grown, model->parameters, (size_t)model->parameter_count * sizeof *grown);
            memcpy(stacks, model->stacks, (size_t)model->stack_count * sizeof *stacks);
        }
        model->parameters = grown;
        model->stacks = stacks;
        model->parameter_capacity = capacity;
    }
    int64_t elements = trd__shape_count(&parameter->shape);
    if (elements < 0 || elements > MOST_PARAMETERS - model->info.parameters)
        return trd__fail(TRD_INVALID_ARGUMENT, "model: the size of %s overflows", parameter->name);
    model->info.parameters += elements;
    *index = model->parameter_count++;
    trd__parameter *p = &model->parameters[*index];
    *p = *parameter;
    p->stack = model->stack_count++;
    p->row = 0;
    model->stacks[p->stack] = (trd__stack){.one = *p, .first = *index};
    return TRD_OK;
}

trd_status trd__model_declare_state(trd_model *model, const trd__state *state, int *index)
{
    size_t count = (size_t)model->state_count;
    trd__state *grown = trd__arena_alloc(model->arena, count + 1, sizeof *grown);
    if (!grown) return TRD_NO_MEMORY;
    if (count) memcpy(grown, model->states, count * sizeof *grown);
    grown[count] = *state;
    model->states = grown;
    *index = model->state_count++;
    return TRD_OK;
}

static const trd__model_type *find_type(const char *name)
{
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i]->name, name) == 0) return types[i];
    return NULL;
}

static const trd__model_type *find_class(const char *name)
{
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i]->class_name, name) == 0) return types[i];
    return NULL;
}

/* "llama (LlamaForCausalLM), qwen2 (Qwen2ForCausalLM), ...", shortened to bytes. */
static const char *known_types(char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < TYPES && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s (%s)", i ? ", " : "", types[i]->name,
                                 types[i]->class_name);
    return text;
}

/* An encoder or a sequence-to-sequence model deserves to hear why it is refused. */
static bool is_no_decoder(const char *name)
{
    static const char *const marks[] = {"bert",
                                        "Bert",
                                        "electra",
                                        "Electra",
                                        "t5",
                                        "T5",
                                        "bart",
                                        "Bart",
                                        "MaskedLM",
                                        "SequenceClassification",
                                        "ConditionalGeneration"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(name, marks[i])) return true;
    return false;
}

static trd_status choose_type(trd__json config, const trd__model_type **type)
{
    const char *name = NULL, *class_name = NULL;
    TRD_TRY(trd__json_opt_string(config, "model_type", &name));
    trd__json first = trd__json_first(trd__json_find(config, "architectures"));
    if (trd__json_exists(first)) TRD_TRY(trd__json_as_string(first, &class_name));
    *type = class_name ? find_class(class_name) : NULL;
    if (!*type && !class_name && name) *type = find_type(name);
    if (*type) return TRD_OK;
    const char *found = class_name ? class_name : name;
    char known[256];
    if (!found)
        return trd__json_fail(
            config, TRD_INVALID_ARGUMENT,
            "neither architectures nor model_type is given: this is no model's config.json");
    if (is_no_decoder(found))
        return trd__json_fail(
            config, TRD_UNSUPPORTED,
            "\"%s\" is an encoder or sequence-to-sequence model; Treadle trains decoder-only "
            "language models: %s",
            found, known_types(known, sizeof known));
    return trd__json_fail(config, TRD_UNSUPPORTED, "architecture \"%s\" is not supported; known: %s", found,
                          known_types(known, sizeof known));
}

/* bos_token_id and eos_token_id: a number, null, or a list of which the first counts. */
static trd_status token_id(trd__json config, const char *key, int32_t *id)
{
    *id = -1;
    trd__json value = trd__json_find(config, key);
    if (trd__json_kind_of(value) == TRD__JSON_ARRAY) value = trd__json_first(value);
    if (trd__json_kind_of(value) != TRD__JSON_NUMBER) return TRD_OK;
    int64_t number;
    TRD_TRY(trd__json_as_i64(value, &number));
    if (number >= 0 && number <= INT32_MAX) *id = (int32_t)number;
    return TRD_OK;
}

static trd_status build(trd_model *model, trd__json config)
{
    TRD_TRY(trd__json_as_object(config));
    TRD_TRY(choose_type(config, &model->type));
    model->info.architecture = model->type->name;
    TRD_TRY(token_id(config, "bos_token_id", &model->info.bos));
    TRD_TRY(token_id(config, "eos_token_id", &model->info.eos));
    model->options = trd__arena_alloc(model->arena, 1, model->type->options_size);
    if (!model->options) return TRD_NO_MEMORY;
    TRD_TRY(model->type->parse(model, config));
    return model->type->declare(model);
}

trd_status trd_model_from_json(const char *json, size_t bytes, trd_model **out)
{
    *out = NULL;
    trd__json_doc *doc;
    TRD_TRY(trd__json_parse(json, bytes, "config.json", &doc));
    trd__arena *arena = trd__arena_create();
    trd_model *model = arena ? trd__arena_alloc(arena, 1, sizeof *model) : NULL;
    trd_status status = TRD_NO_MEMORY;
    if (model) {
        model->arena = arena;
        status = build(model, trd__json_root(doc));
    }
    trd__json_free(doc);
    if (status)
        trd__arena_free(arena);
    else
        *out = model;
    return status;
}

trd_status trd_model_to_json(const trd_model *model, const char *torch_dtype, char **json)
{
    *json = NULL;
    trd__json_writer w = {.indent = 2};
    trd__json_open_object(&w);
    trd__json_write_key(&w, "architectures");
    trd__json_open_array(&w);
    trd__json_write_string(&w, model->type->class_name);
    trd__json_close(&w);
    trd__json_put_string(&w, "model_type", model->type->name);
    trd__json_put_string(&w, "torch_dtype", torch_dtype);
    trd__json_put_string(&w, "dtype", torch_dtype);
    if (model->info.bos >= 0) trd__json_put_i64(&w, "bos_token_id", model->info.bos);
    if (model->info.eos >= 0) trd__json_put_i64(&w, "eos_token_id", model->info.eos);
    model->type->write(model, &w);
    trd__json_close(&w);
    trd_status status = trd__json_finish(&w);
    if (!status) *json = trd__strdup(w.text);
    trd__json_writer_free(&w);
    return status ? status : *json ? TRD_OK : TRD_NO_MEMORY;
}

trd_model_info trd_model_describe(const trd_model *model)
{
    return model->info;
}

bool trd_inputs_has(const trd_inputs *in, const char *name)
{
    for (int i = 0; i < in->named_count; i++)
        if (strcmp(in->named[i].name, name) == 0) return true;
    return false;
}

trd_value trd_inputs_get(trd_builder *b, const trd_inputs *in, const char *name)
{
    for (int i = 0; i < in->named_count; i++)
        if (strcmp(in->named[i].name, name) == 0) return in->named[i].value;
    return trd_builder_fail(
        b, TRD_INVALID_ARGUMENT,
        "the loss asks for the input \"%s\", which the payload does not have; give it as an "
        "extra array of the batch",
        name);
}

double trd_inputs_constant(const trd_inputs *in, const char *name, double otherwise)
{
    for (int i = 0; i < in->constant_count; i++)
        if (strcmp(in->constants[i].name, name) == 0) return in->constants[i].value;
    return otherwise;
}

trd_value trd__model_weight(trd_builder *b, const trd_inputs *in, int index)
{
    trd_value weight = in->parameters[index];
    return trd_value_dtype(weight) == in->dtype ? weight : trd_cast(b, weight, in->dtype);
}

trd_value trd__model_state(trd_builder *b, const trd_model *model, const trd_inputs *in, int index)
{
    const trd__state *s = &model->states[index];
    return in->states ? in->states->current[index] : trd_constant_fill(b, s->dtype, s->shape, s->initial);
}

void trd__model_replace_state(const trd_inputs *in, int index, trd_value value)
{
    if (in->training) in->states->next[index] = value;
}

trd_status trd__model_use_dropout(trd_model *model, double rate, uint64_t seed)
{
    if (!model->type->dropout)
        return trd__fail(TRD_UNSUPPORTED, "dropout_rate %g: the architecture \"%s\" has no dropout", rate,
                         model->type->name);
    const trd__state counter = {.name = "dropout.micro_batches", .dtype = TRD_I32};
    model->dropout_rate = rate;
    model->dropout_seed = seed;
    return trd__model_declare_state(model, &counter, &model->dropout_counter);
}

bool trd__model_drops(const trd_model *model, const trd_inputs *in)
{
    return in->training && model->dropout_rate > 0;
}

trd_value trd__model_dropout(trd_builder *b, const trd_model *model, const trd_inputs *in, trd_value x,
                             int64_t site)
{
    if (!trd__model_drops(model, in)) return x;
    trd_value counter = trd__model_state(b, model, in, model->dropout_counter);
    trd_value place = trd_scalar(b, TRD_I32, (double)site);
    if (!trd_is_null(in->first_site)) place = trd_add(b, in->first_site, place);
    return trd_dropout(b, x, counter, place, model->dropout_rate, model->dropout_seed);
}

/* Each micro-batch has its own masks, however often it runs the model. */
static void count_micro_batch(trd_builder *b, const trd_model *model, const trd_inputs *in)
{
    if (!trd__model_drops(model, in)) return;
    trd_value counter = trd__model_state(b, model, in, model->dropout_counter);
    trd__model_replace_state(in, model->dropout_counter, trd_add(b, counter, trd_scalar(b, TRD_I32, 1)));
}

trd_value trd_model_hidden(trd_builder *b, const trd_model *model, const trd_inputs *in)
{
    count_micro_batch(b, model, in);
    return model->type->hidden(b, model, in);
}

trd_value trd_model_logits(trd_builder *b, const trd_model *model, const trd_inputs *in)
{
    static const char *const axes[] = {"activation_batch", "activation_length", "activation_vocab"};
    trd_value hidden = trd_model_hidden(b, model, in);
    trd_value logits = trd_linear(b, hidden, model->type->head(b, model, in));
    return trd_cast(b, trd_axes(b, logits, axes), TRD_F32);
}

/* A (B, T) value of hidden rows moved to the tokens they predict. */
static trd_value to_predicted(trd_builder *b, trd_value rows, int64_t length)
{
    return trd_pad(b, trd_slice(b, rows, 1, 0, length - 1), 1, 1, 0, 0);
}

trd_value trd_model_token_logprobs(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                   trd_value weights)
{
    return trd_model_token_statistics(b, model, in, weights, NULL);
}

trd_value trd_model_token_statistics(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                     trd_value weights, trd_value *log_sums)
{
    trd_value ids = trd_inputs_get(b, in, "token_ids");
    trd_value segments = trd_inputs_get(b, in, "segment_ids");
    trd_value hidden = trd_model_hidden(b, model, in);
    if (trd_is_null(hidden)) return hidden;
    int64_t length = trd_value_shape(ids).dim[1];
    if (length < 2) { /* nothing is predicted */
        trd_value zeros = trd_constant_fill(b, TRD_F32, trd_value_shape(ids), 0);
        if (log_sums) *log_sums = zeros;
        return zeros;
    }
    /* Row t-1 of hidden predicts token t: ids, segments and weights move one to the left, the result back. */
    trd_value next = trd_slice(b, segments, 1, 1, length);
    trd_value same = trd_and(b, trd_equal(b, next, trd_slice(b, segments, 1, 0, length - 1)),
                             trd_not_equal(b, next, trd_scalar(b, TRD_I32, 0)));
    if (!trd_is_null(weights))
        same = trd_and(b, same,
                       trd_not_equal(b, trd_slice(b, weights, 1, 1, length), trd_scalar(b, TRD_F32, 0)));
    trd_value mask = trd_pad(b, same, 1, 0, 1, 0);
    trd_value targets = trd_pad(b, trd_slice(b, ids, 1, 1, length), 1, 0, 1, 0);
    trd_value head = model->type->head(b, model, in);
    trd_value logprobs = trd_token_logprobs(b, hidden, head, targets, mask, 1.0, log_sums);
    if (log_sums) *log_sums = to_predicted(b, *log_sums, length);
    return trd_name(b, to_predicted(b, logprobs, length), "token_logprobs");
}
