/* Compile's working state, handed from stage to stage: values and their storage (values.c), drafts of steps
 * (drafts.c, fuser.c), storage for every value (storage.c), steps (emit.c). A repeat's body is lowered like a
 * program of its own (repeat.c), but stands in its draft's place: in time, in the arena and among the steps.
 *
 * Every result of every node is a *value* with a number. A value either owns storage (it is its own root) or
 * views its root's. Drafts are in execution order; a draft's number is the time at which it runs. */
#ifndef TRD_BACKEND_CPU_LOWER_H
#define TRD_BACKEND_CPU_LOWER_H

#include "backend/cpu/cpu.h"

typedef struct trd__storage {
    trd_value value;
    int root;      /* value number */
    size_t offset; /* bytes into the root */
    size_t bytes;
    /* Of roots: */
    int uses;            /* operands of steps and outputs that read it, through views too */
    int def, last;       /* drafts that define it and read it last; def -1: there before the run */
    bool leaf, constant; /* a slot's entry; a fill */
    int output;          /* number of the program's output it becomes, -1 */
    trd__place output_place;
    int buffer;         /* arena buffer, -1 */
    int row;            /* lent row it is in, -1 */
    bool placed, taken; /* place is final; a later value has taken over its buffer */
    trd__place place;
} trd__storage;

/* While a program is lowered, entry e of its slots (counted through all of them) is region TRD__REGION_ENTRY
 * + e. */
enum { TRD__REGION_ENTRY = TRD__REGION_NONE + 1 };

typedef struct trd__lowering trd__lowering;

typedef struct trd__draft {
    const trd__cpu_kernel *kernel; /* NULL: a repeat */
    const trd_node *node;
    trd__lowering *body; /* of a repeat; else NULL */
    trd__cpu_plan plan;
    int *inputs, *outputs; /* value numbers; -1: null, unused, or a constant-0 accumulator */
    int input_count, output_count;
    bool *reuse;    /* [output][input]: the output may take the buffer of the input */
    int *updates;   /* by output: the input in whose buffer it must be, by a copy if need be; -1: none */
    int begin, end; /* positions in the program's time: one, or those of a body */
    uint64_t bytes_read, bytes_written;
    const char *name; /* what a profile calls it */
} trd__draft;

/* A row that a body may compute in: of a stacked operand that nothing else reads once the iteration has, of a
 * made result before it is written. */
typedef struct trd__row {
    trd__place place;
    size_t bytes;
    int last, end; /* free behind draft `last` and before draft `end` */
} trd__row;

/* A copy between storages that placement asked for. */
typedef struct trd__copy {
    int draft; /* before this draft; draft count: at the end */
    trd__place from, to;
    size_t bytes;
} trd__copy;

struct trd__lowering {
    const trd__cpu_info *info;
    const trd_log_sink *log; /* NULL unless verbose */
    trd__executable *executable;
    trd__arena *arena;   /* the executable's */
    trd__cpu_loop *loop; /* of a body; NULL: the program itself */
    trd__program *program;
    trd_graph *graph;
    int *first_value; /* of each node */
    trd__storage *values;
    int value_count;
    trd__draft *drafts;
    int draft_count, draft_capacity;
    trd__copy *copies;
    int copy_count, copy_capacity;
    trd__place *entries; /* what entry regions stand for; of a body known when its draft is emitted */
    int first_entry[TRD__MAX_SLOTS]; /* number of a slot's first entry */
    int length;                      /* positions of its time */
    trd__row *rows;                  /* lent to this body */
    int row_count;
};

static inline int trd__value_number(const trd__lowering *l, trd_value v)
{
    return v.node ? l->first_value[v.node->id] + v.result : -1;
}
static inline trd__storage *trd__root_of(const trd__lowering *l, int value)
{
    return &l->values[l->values[value].root];
}

static inline bool trd__may_reuse(const trd__draft *d, int output, int input)
{
    return d->reuse[output * d->input_count + input];
}

/* Program outputs that no step can write in place (an input, a part of a value, a value bound twice) become
 * copies of their own, so that every output below is a value of one step. Runs on the graph. */
trd_status trd__normalize_outputs(trd__program *program);
extern const trd_op trd__op_copy; /* of this backend only; made by trd__normalize_outputs */
extern const trd__cpu_kernel trd__kernel_copy;

/* Operand i of n is an accumulator that starts from zero: the kernel defines its result and never reads it.
 */
bool trd__starts_from_zero(const trd__lowering *l, const trd_node *n, int i);
trd_status trd__number_values(trd__lowering *l); /* fills values: roots, views, leaves, constants, outputs */
/* From a program that has been through the generic passes to drafts: everything before storage, which only
 * the whole program can be given. */
trd_status trd__draft_program(trd__lowering *l);
void trd__lowering_end(trd__lowering *l);         /* frees what is not the arena's, bodies' too */
void trd__fill_constants(const trd__lowering *l); /* into the executable's constants */
trd__draft *trd__draft_add(trd__lowering *l, const trd_node *node, int inputs,
                           int outputs);                           /* NULL: no memory */
trd_status trd__draft_node(trd__lowering *l, const trd_node *n);   /* drafts.c: the draft of a single node */
void trd__count_traffic(const trd__lowering *l, trd__draft *d);    /* traffic.c: its bytes read and written */
trd_status trd__draft_repeat(trd__lowering *l, const trd_node *n); /* repeat.c: its draft and its body's */
void trd__lend_rows(const trd__lowering *l, const trd__draft *d);  /* of what dies or is made at d */
void trd__bind_body(const trd__lowering *l, const trd__draft *d);  /* places of what the body's entries are */
trd_status trd__fuse(trd__lowering *l);         /* fuser.c: drafts for all nodes, in order */
trd_status trd__place_values(trd__lowering *l); /* storage.c: liveness, in place, arena, copies */
/* Where a value (-1: none) is, in the executable's regions. */
trd__place trd__place_bound(const trd__lowering *l, int value);
trd_status trd__emit_steps(trd__lowering *l); /* emit.c: the executable's steps and what its report says */
trd_status trd__adjoin_step(const trd__lowering *l); /* adjoin.c: joins the newest step to the one before */

#endif
