/* The library's version, set by the build. */
#include <treadle/treadle.h>

const char *trd_version(void)
{
    return TRD_VERSION;
}
