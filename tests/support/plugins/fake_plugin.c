/* A PJRT plugin that is broken as TRD_FAKE_PLUGIN says: "old" speaks a version before what the backend needs,
 * "no_client" refuses to create a client, "no_device" has no device. Compiled with TRD_NO_ENTRY it is a
 * library that is no plugin at all. */
#include <stdlib.h>
#include <string.h>

#include <pjrt_c_api.h>

struct PJRT_Error {
    const char *message;
    PJRT_Error_Code code;
};

static PJRT_Error refused = {"the fake device is on fire", PJRT_Error_Code_RESOURCE_EXHAUSTED};

static int is(const char *kind)
{
    const char *wanted = getenv("TRD_FAKE_PLUGIN");
    return wanted && strcmp(wanted, kind) == 0;
}

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

static PJRT_Error *client_create(PJRT_Client_Create_Args *args)
{
    args->client = (PJRT_Client *)&refused; /* never looked into */
    return is("no_client") ? &refused : NULL;
}

static PJRT_Error *client_destroy(PJRT_Client_Destroy_Args *args)
{
    (void)args;
    return NULL;
}

static PJRT_Error *platform_name(PJRT_Client_PlatformName_Args *args)
{
    args->platform_name = "fake";
    args->platform_name_size = 4;
    return NULL;
}

static PJRT_Error *platform_version(PJRT_Client_PlatformVersion_Args *args)
{
    args->platform_version = "1";
    args->platform_version_size = 1;
    return NULL;
}

static PJRT_Error *devices(PJRT_Client_AddressableDevices_Args *args)
{
    args->num_addressable_devices = 0;
    return NULL;
}

#ifdef TRD_NO_ENTRY
#define ENTRY GetNothing
#else
#define ENTRY GetPjrtApi
#endif

const PJRT_Api *ENTRY(void);
const PJRT_Api *ENTRY(void)
{
    static PJRT_Api api;
    api = (PJRT_Api){.struct_size = is("old") ? offsetof(PJRT_Api, PJRT_Client_Create) : sizeof(PJRT_Api),
                     .pjrt_api_version = {.major_version = 0, .minor_version = is("old") ? 7 : 81},
                     .PJRT_Error_Destroy = error_destroy,
                     .PJRT_Error_Message = error_message,
                     .PJRT_Error_GetCode = error_code,
                     .PJRT_Client_Create = client_create,
                     .PJRT_Client_Destroy = client_destroy,
                     .PJRT_Client_PlatformName = platform_name,
                     .PJRT_Client_PlatformVersion = platform_version,
                     .PJRT_Client_AddressableDevices = devices};
    return &api;
}
