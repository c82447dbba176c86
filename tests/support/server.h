/* A Redis server of a test's own, on a socket in a temporary folder. */
#ifndef TRD_TESTS_SUPPORT_SERVER_H
#define TRD_TESTS_SUPPORT_SERVER_H

#include <stdbool.h>

bool server_start(void); /* false: there is no server to start */
const char *server_socket(void);
void server_stop(void); /* ends it and removes the folder; safe to call again */

#endif
