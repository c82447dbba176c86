/* What the engine asks of a loader beyond its public interface. */
#ifndef TRD_DATA_LOADER_H
#define TRD_DATA_LOADER_H

#include <treadle/data.h>

#include "base/recorder.h"

/* From now on the batches made are recorded; NULL, NULL ends it. Both must live until it is ended. */
void trd__loader_record(trd_loader *loader, trd__recorder *recorder, trd__track *track);

#endif
