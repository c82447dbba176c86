/* Gives a client that is being created the exchange with the other processes: the three callbacks that a
 * plugin puts keys, waits for them and looks for them with. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_SERVE_H
#define TRD_BACKEND_PJRT_RUNTIME_SERVE_H

#include "backend/pjrt/runtime/exchange.h"
#include "backend/pjrt/runtime/plugin.h"

/* The exchange must outlive the client. */
void trd__pjrt_exchange_serve(trd__exchange *exchange, PJRT_Client_Create_Args *args);

#endif
