/* Where parameters come from: a Hugging Face folder or weights file, or one checkpoint of a
 * run. */
#ifndef TRD_ENGINE_ORIGIN_H
#define TRD_ENGINE_ORIGIN_H

#include <treadle/model.h>

#include "base/status.h"
#include "checkpoint/weights.h"

/* One of the two is open. */
typedef struct trd__origin {
    trd__weights *weights;
    struct trd__stored *stored;
} trd__origin;

trd_status trd__origin_open(const char *path, trd__origin *origin);
void trd__origin_close(trd__origin *origin); /* safe on a zeroed one */
trd_status trd__origin_model(const trd__origin *origin, trd_model **model);
/* A tensor by hub name; its data is NULL where it must be read with trd__weights_read. */
bool trd__origin_find(const trd__origin *origin, const char *name, trd_array *array);

#endif
