/* Inside a model: its tables of parameters and of state, the values a builder sees, and what a model file
 * provides. */
#ifndef TRD_NN_MODEL_H
#define TRD_NN_MODEL_H

#include <treadle/model.h>

#include "base/arena.h"
#include "formats/json.h"
#include "graph/node.h"

typedef enum trd__init { TRD__INIT_NORMAL, TRD__INIT_ONES, TRD__INIT_ZEROS } trd__init;

enum { TRD_PARAM_OVERWRITE = 1, TRD_PARAM_OVERWRITE_MAX = 2 }; /* leaves that take a value, not a gradient */

typedef struct trd__parameter {
    const char *name; /* hub name, "model.layers.0.self_attn.q_proj.weight" */
    trd_shape shape;
    const char *axes[TRD_MAX_RANK];
    trd__init init;
    double deviation; /* of TRD__INIT_NORMAL */
    unsigned flags;
    const char *layer_name; /* what the same weight of every layer is called,
                               "model.layers.*.mlp.up_proj.weight"; NULL: of no layer */
    int stack;              /* where it is held, and as which row; trd__model_declare fills both in */
    int64_t row;
} trd__parameter;

/* A tensor that holds parameters: one as it is, or with stacked layers the same weight of every layer, (L,
 * ...). */
typedef struct trd__stack {
    trd__parameter one; /* each of them; its name is the layer_name where there are several */
    int64_t layers;     /* L; 0: one parameter as it is */
    int first, stride;  /* row i is parameter first + i * stride */
} trd__stack;

/* An entry of a model's state (a counter, a running statistic): not differentiated, replaced by every
 * micro-batch of training in order, read and never written elsewhere. */
typedef struct trd__state {
    const char *name;
    trd_dtype dtype;
    trd_shape shape;
    double initial; /* every element's */
} trd__state;

/* A model's state while a program is traced, by the index of its entries. However often a loss runs the model
 * within one micro-batch, it reads the state that the micro-batch found. */
typedef struct trd__states {
    const trd_value *current;
    trd_value *next; /* null: the entry keeps its value */
} trd__states;

typedef struct trd__named_value {
    const char *name;
    trd_value value;
} trd__named_value;

/* A decode program's key and value caches, (B, S, G, D) a layer; the builder replaces them by their
 * successors. */
typedef struct trd__cache {
    trd_value *keys;
    trd_value *values;
    trd_value start; /* (B) i32: cache row of the first token */
} trd__cache;

struct trd_inputs {
    trd_dtype dtype;             /* compute dtype; parameters of another dtype are cast */
    const trd_value *parameters; /* in the model's table order; null: in a stack of several */
    const trd_value *stacks;     /* by their numbers; unused where no parameter is null */
    const trd__named_value *named;
    int named_count;
    const trd_constant *constants;
    int constant_count;
    trd_rows rows;
    trd__cache *cache;   /* NULL: whole rows, no decoding */
    trd__states *states; /* NULL: the initial values */
    trd_value
        first_site; /* i32, added to the sites of dropout: of a layer that is built once for all; or null */
    bool training;  /* false in evaluation, forward graphs and decoding: no dropout, state stays */
};

typedef struct trd__model_type trd__model_type;

struct trd_model {
    const trd__model_type *type;
    trd__arena *arena;
    void *options; /* the model file's typed struct */
    trd__parameter *parameters;
    int parameter_count, parameter_capacity;
    trd__stack *stacks; /* one a parameter until layers are stacked */
    int stack_count;
    trd__state *states;
    int state_count;
    double dropout_rate; /* 0: none, and then the rest is unused */
    uint64_t dropout_seed;
    int dropout_counter; /* the state that counts micro-batches */
    trd_model_info info;
};

/* What a file in nn/models/ provides; models.def lists them. */
struct trd__model_type {
    const char *name;       /* config.json's model_type */
    const char *class_name; /* config.json's architectures[0] */
    size_t options_size;
    bool dropout; /* hidden applies trd__model_dropout */
    /* Reads config.json into model->options and model->info. */
    trd_status (*parse)(trd_model *model, trd__json config);
    /* Declares every parameter with trd__model_declare, in the hub's order. */
    trd_status (*declare)(trd_model *model);
    /* Final hidden states (B, T, C), after the last norm. */
    trd_value (*hidden)(trd_builder *b, const trd_model *model, const trd_inputs *in);
    /* The output head's weight (V, C): the embedding when tied. */
    trd_value (*head)(trd_builder *b, const trd_model *model, const trd_inputs *in);
    /* Keys of config.json that this model adds, appended as JSON members. */
    trd_status (*write)(const trd_model *model, trd__json_writer *writer);
};

/* Adds a row to the model's table; *index is its number. */
trd_status trd__model_declare(trd_model *model, const trd__parameter *parameter, int *index);
/* From here on the weights of all layers are held in stacks, one a layer_name, and the layers are one loop.
 * Before anyone else sees the model. TRD_UNSUPPORTED: the architecture has no layers. */
trd_status trd__model_stack_layers(trd_model *model);
/* The type of a stack's tensor, and the tensor's name for each axis in axes (may be NULL). */
trd_shape trd__stack_shape(const trd__stack *stack, const char **axes);
/* chosen[i], of parameter i, as by_stack[k] of stack k. TRD_INVALID_ARGUMENT where the patterns of a key of
 * the configuration chose some rows of a stack and not others. */
trd_status trd__model_by_stack(const trd_model *model, const char *key, const bool *chosen, bool *by_stack);
/* The values of parameters, in table order, cut out of their stacks' where whole, and else null. */
void trd__model_unstack(trd_builder *b, const trd_model *model, const trd_value *stacks, bool cut,
                        trd_value *parameters);
/* The same for an entry of the model's state. Names are the model's own, unique among its states. */
trd_status trd__model_declare_state(trd_model *model, const trd__state *state, int *index);
/* State number index as the micro-batch found it. */
trd_value trd__model_state(trd_builder *b, const trd_model *model, const trd_inputs *in, int index);
/* Its successor, of the same type. Outside training nothing happens. */
void trd__model_replace_state(const trd_inputs *in, int index, trd_value value);
/* Before anyone else sees the model, rate in (0, 1). TRD_UNSUPPORTED: the architecture has no dropout. */
trd_status trd__model_use_dropout(trd_model *model, double rate, uint64_t seed);
bool trd__model_drops(const trd_model *model, const trd_inputs *in); /* whether dropout does anything */
/* x with the model's dropout in training, where each site of the model and each micro-batch has masks of its
 * own; else x itself. */
trd_value trd__model_dropout(trd_builder *b, const trd_model *model, const trd_inputs *in, trd_value x,
                             int64_t site);
/* matched[i]: whether pattern, a regular expression, is found in the name of parameter i. key is the
 * configuration key that errors name. */
trd_status trd__model_match(const trd_model *model, const char *key, const char *pattern, bool *matched);
/* Parameter number index as the forward pass wants it: cast to the compute dtype. */
trd_value trd__model_weight(trd_builder *b, const trd_inputs *in, int index);

#endif
