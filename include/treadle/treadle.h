/* All of Treadle. */
#ifndef TREADLE_TREADLE_H
#define TREADLE_TREADLE_H

#include <treadle/checkpoint.h>
#include <treadle/config.h>
#include <treadle/data.h>
#include <treadle/engine.h>
#include <treadle/generate.h>
#include <treadle/graph.h>
#include <treadle/log.h>
#include <treadle/loss.h>
#include <treadle/mesh.h>
#include <treadle/metrics.h>
#include <treadle/model.h>
#include <treadle/ops.h>
#include <treadle/optim.h>
#include <treadle/plan.h>
#include <treadle/report.h>
#include <treadle/status.h>
#include <treadle/tensor.h>
#include <treadle/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface; the shared library's soname carries it. */
#define TRD_API_VERSION 0

/* "0.1.0" */
TRD_API const char *trd_version(void);

#ifdef __cplusplus
}
#endif

#endif
