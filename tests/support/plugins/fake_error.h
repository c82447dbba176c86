/* Errors of a plugin that a test plays: texts that live as long as it. */
#ifndef FAKE_ERROR_H
#define FAKE_ERROR_H

#include <string.h>

#include <pjrt_c_api.h>

struct PJRT_Error {
    const char *message;
    PJRT_Error_Code code;
};

static void error_destroy(PJRT_Error_Destroy_Args *args)
{
    (void)args;
}

static void error_message(PJRT_Error_Message_Args *args)
{
    args->message = args->error->message;
    args->message_size = strlen(args->error->message);
}

static PJRT_Error *error_code(PJRT_Error_GetCode_Args *args)
{
    args->code = args->error->code;
    return NULL;
}

#endif
