/* All of Treadle. */
#ifndef TREADLE_TREADLE_H
#define TREADLE_TREADLE_H

#include <treadle/checkpoint.h>
#include <treadle/data.h>
#include <treadle/engine.h>
#include <treadle/graph.h>
#include <treadle/log.h>
#include <treadle/loss.h>
#include <treadle/metrics.h>
#include <treadle/model.h>
#include <treadle/ops.h>
#include <treadle/optim.h>
#include <treadle/status.h>
#include <treadle/tensor.h>
#include <treadle/tokenizer.h>

#endif
