#include "support/server.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[64], socket_path[96];
static pid_t server;

const char *server_socket(void)
{
    return socket_path;
}

static void run_server(void)
{
    int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", socket_path, "--save", "", "--dir",
           folder, (char *)NULL);
    _exit(127);
}

/* The socket is there before the server listens on it. */
static bool answers(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    bool connected = client >= 0 && connect(client, (const struct sockaddr *)&address, sizeof address) == 0;
    if (client >= 0) close(client);
    return connected;
}

/* Until the server answers, or is gone. */
bool server_start(void)
{
    snprintf(folder, sizeof folder, "/tmp/treadle-redis-XXXXXX");
    if (!mkdtemp(folder)) return false;
    snprintf(socket_path, sizeof socket_path, "%s/socket", folder);
    server = fork();
    if (server == 0) run_server();
    while (server > 0 && !answers()) {
        if (waitpid(server, NULL, WNOHANG) == server) {
            server = 0;
            server_stop();
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return server > 0;
}

void server_stop(void)
{
    if (server > 0) {
        kill(server, SIGTERM);
        waitpid(server, NULL, 0);
        server = 0;
    }
    if (!*folder) return;
    unlink(socket_path);
    rmdir(folder);
    *folder = '\0';
}
