/* Data: JSONL files to batches of packed token rows, in a fixed order that can be resumed anywhere.
 *
 * A line is an object with "messages" (the tokenizer's chat template; loss on every assistant turn and its
 * end-of-turn token), with "prompt" and "completion" (encoded one after the other; loss on the completion and
 * EOS) or with "text" (loss on all tokens and EOS), looked for in that order; other fields are ignored. BOS
 * comes first where the tokenizer adds it. An empty completion teaches EOS. Blank lines, a byte order mark
 * and carriage returns at line ends are passed over. A sample is never split over rows. */
#ifndef TREADLE_DATA_H
#define TREADLE_DATA_H

#include <treadle/log.h>
#include <treadle/tensor.h>
#include <treadle/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What becomes of a sample of more tokens than a row has. */
typedef enum trd_too_long {
    TRD_TOO_LONG_TRUNCATE, /* cut, counted */
    TRD_TOO_LONG_DROP,     /* left out, counted */
    TRD_TOO_LONG_ERROR     /* opening fails and names its line */
} trd_too_long;
/* What becomes of a line that is no sample. */
typedef enum trd_bad_line {
    TRD_BAD_LINE_ERROR, /* opening fails and names it */
    TRD_BAD_LINE_SKIP   /* passed over, counted */
} trd_bad_line;

/* Which files, and how they become rows. Everything in it stays the caller's. */
typedef struct trd_data_options {
    const char *const *files;       /* JSONL: "messages", "prompt" + "completion", or "text" per line */
    int file_count;                 /* of files */
    const trd_tokenizer *tokenizer; /* stays the caller's, outlives the loader */
    int rows;                       /* B, rows per batch */
    int length;                     /* T, tokens per row */
    bool packing;                   /* several samples a row with segment ids; else one sample a row */
    int packing_window;             /* samples the best-fit packer looks at; 0: 1024 */
    bool completion_only_loss;      /* loss on completions and assistant turns only (default true) */
    bool shuffle;                   /* permute each epoch by (seed, epoch) */
    uint64_t seed;                  /* of the permutation */
    uint64_t epochs;       /* 0: forever (filled from the next epoch, only the run's last batch is partial) */
    trd_too_long too_long; /* samples longer than a row */
    trd_bad_line bad_line; /* lines that are no sample */
    bool prefetch;         /* a thread prepares the next batches */
    /* Keeps token lengths and offsets under a hash of the files' content; NULL: no cache. */
    const char *cache_directory;
    trd_log_sink log; /* where log lines go */
} trd_data_options;

/* What opening the files found. */
typedef struct trd_data_stats {
    uint64_t samples;        /* usable samples in the files */
    uint64_t tokens;         /* their tokens, after truncation */
    uint64_t loss_tokens;    /* tokens that carry loss */
    uint64_t truncated;      /* samples cut to length */
    uint64_t dropped;        /* samples dropped as too long, or without a token that carries loss */
    uint64_t bad_lines;      /* lines skipped */
    uint64_t content_hash;   /* of the files' bytes: trd_engine_train refuses changed files on resume */
    uint64_t rows_per_epoch; /* packed rows of the first epoch */
} trd_data_stats;

/* Opaque: trd_loader_open makes one, trd_loader_close frees it. */
typedef struct trd_loader trd_loader;

/* Reads and tokenizes what it needs; errors name file, line number and reason. One thread at a time. */
TRD_API trd_status trd_loader_open(const trd_data_options *options, trd_loader **loader);
TRD_API void trd_loader_close(trd_loader *loader);                 /* NULL is fine */
TRD_API trd_data_stats trd_loader_stats(const trd_loader *loader); /* of its files */

/* The next batch, valid until the next call or seek. Rows that end an epoch are filled from the next one.
 * TRD_STATE when a file changed since it was opened. An error is given again by every later call, until a
 * seek. TRD_END after the last one (an untouched message). The last batch of a run may have fewer rows.
 * batch->position counts the rows consumed once it is. */
TRD_API trd_status trd_loader_next(trd_loader *loader, trd_batch *batch);

/* Continues after position rows, as saved from batch->position. Exact: later batches are those of an
 * uninterrupted run. Costs about 70 ns per sample passed over, and reads no file. TRD_INVALID_ARGUMENT beyond
 * the last row. */
TRD_API trd_status trd_loader_seek(trd_loader *loader, uint64_t position);

#ifdef __cplusplus
}
#endif
#endif
