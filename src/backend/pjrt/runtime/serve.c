/* See the header. The plugin calls on threads of its own: the thread's message is handed on at once, as the
 * error that the plugin makes of it. */
#include "backend/pjrt/runtime/serve.h"

#include <string.h>

#include "base/alloc.h"

static PJRT_Error *report(PJRT_CallbackError *make, trd_status status)
{
    PJRT_Error_Code code = status == TRD_NOT_FOUND   ? PJRT_Error_Code_NOT_FOUND
                           : status == TRD_NO_MEMORY ? PJRT_Error_Code_RESOURCE_EXHAUSTED
                                                     : PJRT_Error_Code_UNAVAILABLE;
    const char *message = trd_error_message();
    return status ? (*make)(code, message, strlen(message)) : NULL;
}

static void delete_value(char *value)
{
    trd__free(value);
}

static PJRT_Error *get(PJRT_KeyValueGetCallback_Args *args)
{
    args->value_deleter_callback = delete_value;
    trd_status status = trd__exchange_get(args->user_arg, args->key, args->key_size, args->timeout_in_ms,
                                          &args->value, &args->value_size);
    return report(args->callback_error, status);
}

static PJRT_Error *try_get(PJRT_KeyValueTryGetCallback_Args *args)
{
    args->value_deleter_callback = delete_value;
    trd_status status =
        trd__exchange_get(args->user_arg, args->key, args->key_size, 0, &args->value, &args->value_size);
    return report(args->callback_error, status);
}

static PJRT_Error *put(PJRT_KeyValuePutCallback_Args *args)
{
    trd_status status =
        trd__exchange_put(args->user_arg, args->key, args->key_size, args->value, args->value_size);
    return report(args->callback_error, status);
}

void trd__pjrt_exchange_serve(trd__exchange *exchange, PJRT_Client_Create_Args *args)
{
    args->kv_get_callback = get;
    args->kv_try_get_callback = try_get;
    args->kv_put_callback = put;
    args->kv_get_user_arg = args->kv_try_get_user_arg = args->kv_put_user_arg = exchange;
}
