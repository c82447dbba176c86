/* Inside a generator: its sets, its programs, and the two moves that everything is made of.
 *
 * Token t of a row has position t and cache row t, so rows of different lengths need no padding on the left.
 * prefill writes the keys and values of all prompt tokens but the last; step feeds one token a row and leaves
 * the logits of what follows it. The prefill programs therefore have no head, and no (T, V) array exists.
 * What a chunk writes behind a shorter prompt's end is never seen: a query sees cache rows up to its own
 * position, and each of those is written anew before the row's length passes it. */
#ifndef TRD_GENERATE_GENERATOR_H
#define TRD_GENERATE_GENERATOR_H

#include <treadle/generate.h>

#include "backend/backend.h"
#include "nn/model.h"

enum { TRD__MOST_CHUNKS = 16 };

/* Entries of a program's inputs. */
enum { TRD__FEED_TOKENS, TRD__FEED_SEGMENTS, TRD__FEED_POSITIONS, TRD__FEED_START, TRD__FEED_COUNT };

/* A program that reads `length` tokens a row, and the set its inputs travel in. */
typedef struct trd__feed {
    int64_t length;
    bool logits; /* the decode program */
    trd__executable *executable;
    trd__set *inputs;
    int32_t *tokens, *segments, *positions; /* staging, (B, length) */
} trd__feed;

struct trd_generator {
    trd_generator_options options; /* length and prefill_chunk filled in */
    trd__arena *arena;
    const trd_model *model;
    trd_model *own_model; /* NULL: the engine's */
    trd__backend *backend;
    bool own_backend;
    trd__set *params, *own_params;
    trd__set *cache;   /* keys of every layer, then values: (B, S, G, D) */
    trd__set *results; /* logits (B, V) f32 */
    trd__feed feeds[TRD__MOST_CHUNKS];
    int feed_count;
    int32_t *start;   /* (B) staging: cache row of the first token of a feed */
    int64_t *lengths; /* (B): tokens in the cache */
    float *logits;    /* (B, V), of the last step */
    void *candidates; /* scratch of sampling, V elements */
};

/* load.c: the model and its parameters from files; backend is there. */
trd_status trd__generator_load(trd_generator *generator, const char *path);

/* programs.c */
/* The program for that many tokens a row, compiled on first use: with logits for one token a row. */
trd_status trd__feed_get(trd_generator *generator, int64_t length, bool logits, trd__feed **feed);
trd_status trd__feed_run(trd_generator *generator, trd__feed *feed);

/* generator.c */
/* Forgets all rows. */
void trd__generator_clear(trd_generator *generator);
/* Reads prompts (at most B, checked by the caller) but for their last tokens. */
trd_status trd__generator_prefill(trd_generator *generator, const trd_prompt *prompts, int count);
/* Feeds tokens[row] to every row with active[row]; generator->logits are then theirs. */
trd_status trd__generator_step(trd_generator *generator, const int32_t *tokens, const bool *active);

#endif
