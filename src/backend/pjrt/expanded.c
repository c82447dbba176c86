/* Fused ops without rows of their own: XLA fuses their expansions itself. */
#include "backend/pjrt/emit.h"

const trd__pjrt_op trd__pjrt_rms_norm[] = {{0}};
const trd__pjrt_op trd__pjrt_swiglu[] = {{0}};
const trd__pjrt_op trd__pjrt_dropout[] = {{0}};
const trd__pjrt_op trd__pjrt_attention[] = {{0}};
const trd__pjrt_op trd__pjrt_token_logprobs[] = {{0}};
