/* Samples are read with pread, not through a map: a file that shrinks while it is in use becomes an error and
 * not a signal. */
#include "data/source.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

static trd_status open_files(trd__source *source)
{
    const trd_data_options *options = source->options;
    source->files = trd__alloc((size_t)options->file_count, sizeof *source->files);
    if (!source->files) return TRD_NO_MEMORY;
    for (int i = 0; i < options->file_count; i++) source->files[i] = -1;
    for (int i = 0; i < options->file_count; i++)
        TRD_TRY(trd__file_open(options->files[i], &source->files[i]));
    return TRD_OK;
}

trd_status trd__source_open(const trd_data_options *options, trd__source *source)
{
    *source = (trd__source){.options = options};
    int32_t pad = trd_tokenizer_pad(options->tokenizer), eos = trd_tokenizer_eos(options->tokenizer);
    source->padding_id = pad >= 0 ? pad : eos >= 0 ? eos : 0;
    trd_status status = open_files(source);
    if (!status) status = trd__index_open(options, &source->index);
    if (status) trd__source_close(source);
    return status;
}

void trd__source_close(trd__source *source)
{
    trd__free(source->line);
    trd__sample_free(&source->sample);
    trd__index_free(&source->index);
    for (int i = 0; source->files && i < source->options->file_count; i++)
        if (source->files[i] >= 0) close(source->files[i]);
    trd__free(source->files);
    *source = (trd__source){0};
}

static trd_status changed(const char *name)
{
    return trd__fail(TRD_STATE,
                     "reading %s: expected the content found at the start, but the file has changed; "
                     "start again with the new file",
                     name);
}

static trd_status load_line(trd__source *source, const trd__sample_ref *ref, const char *name)
{
    if (ref->bytes > source->line_capacity) {
        char *grown = trd__realloc(source->line, ref->bytes, 1);
        if (!grown) return TRD_NO_MEMORY;
        source->line = grown;
        source->line_capacity = ref->bytes;
    }
    for (size_t got = 0; got < ref->bytes;) {
        ssize_t n =
            pread(source->files[ref->file], source->line + got, ref->bytes - got, (off_t)(ref->offset + got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return trd__fail(TRD_IO, "reading %s: %s", name, strerror(errno));
        if (n == 0) return changed(name);
        got += (size_t)n;
    }
    return TRD_OK;
}

/* Reads a sample into source->sample and checks it against the index. */
static trd_status load_sample(trd__source *source, uint64_t number)
{
    const trd_data_options *options = source->options;
    const trd__sample_ref *ref = &source->index.refs[number];
    trd__sample_options sample_options = trd__sample_options_of(options);
    char name[TRD__LINE_NAME_BYTES];
    trd__line_name(options, ref, name);
    TRD_TRY(load_line(source, ref, name));
    trd_status status = trd__sample_read(&source->sample, &sample_options, source->line, ref->bytes, name);
    if (status == TRD_CORRUPT) return changed(name);
    TRD_TRY(status);
    size_t kept =
        source->sample.count < (size_t)options->length ? source->sample.count : (size_t)options->length;
    return kept == source->index.lengths[number] ? TRD_OK : changed(name);
}

trd_status trd__source_row(trd__source *source, const uint64_t *samples, size_t count, int32_t *token_ids,
                           int32_t *segment_ids, float *loss_weights)
{
    size_t length = (size_t)source->options->length, at = 0;
    for (size_t s = 0; s < count; s++) {
        TRD_TRY(load_sample(source, samples[s]));
        size_t tokens = source->index.lengths[samples[s]];
        memcpy(token_ids + at, source->sample.ids, tokens * sizeof *token_ids);
        for (size_t i = 0; i < tokens; i++) {
            segment_ids[at + i] = (int32_t)s + 1;
            loss_weights[at + i] = i > 0 && source->sample.mask[i] ? 1.0f : 0.0f;
        }
        at += tokens;
    }
    for (; at < length; at++) {
        token_ids[at] = source->padding_id;
        segment_ids[at] = 0;
        loss_weights[at] = 0.0f;
    }
    return TRD_OK;
}
